// SPDX-License-Identifier: Apache-2.0
/*
 * Allocation, poison, guards, ranges, page-locked memory, limits and planned faults.
 */
#include <sys/mman.h>

#include "check.h"

TEST(memory_is_poisoned_and_found_by_inner_addresses) {
  begin("seed=5");
  for (const size_t bytes : {size_t{1}, size_t{511}, size_t{512}, size_t{513}, size_t{100003}, size_t{1} << 20,
                             (size_t{1} << 20) + 1, size_t{2} << 20, size_t{5000011}}) {
    char* memory = newMemory(bytes);
    EQUAL(reinterpret_cast<uintptr_t>(memory) % 512, 0);
    std::vector<char> seen(bytes, 0);
    OK(cudaMemcpy(seen.data(), memory, bytes, 2));
    for (const char byte : seen) CHECK(byte != 0);
    uintptr_t base = 0;
    size_t size = 0;
    OK(cuMemGetAddressRange_v2(&base, &size, reinterpret_cast<uintptr_t>(memory) + bytes - 1));
    EQUAL(base, reinterpret_cast<uintptr_t>(memory));
    EQUAL(size, bytes);
    PointerAttributes attributes;
    OK(cudaPointerGetAttributes(&attributes, memory + bytes / 2));
    EQUAL(attributes.type, 2);
    EQUAL(attributes.device, 0);
    unsigned capable = 0;
    OK(cuPointerGetAttribute(&capable, 10, reinterpret_cast<uintptr_t>(memory)));
    EQUAL(capable, 1);
    OK(cudaFree(memory));
  }
  CLEAN();
}

TEST(more_than_four_gigabytes_stay_sparse) {
  begin("memory=16g");
  const size_t bytes = (size_t{5} << 30) + 7;
  char* memory = newMemory(bytes);
  const char text[] = "far away";
  char back[sizeof text] = {};
  OK(cudaMemcpy(memory + (size_t{4} << 30) + 3, text, sizeof text, 1));
  OK(cudaMemcpy(back, memory + (size_t{4} << 30) + 3, sizeof text, 2));
  EQUAL(std::memcmp(text, back, sizeof text), 0);
  OK(cudaFree(memory));
  CLEAN();
}

TEST(memory_of_a_device_is_limited) {
  begin("memory=1m");
  void* memory = nullptr;
  EQUAL(cudaMalloc(&memory, (1 << 20) + 1), 2);
  EQUAL(cudaPeekAtLastError(), 2);
  EQUAL(cudaGetLastError(), 2);
  EQUAL(cudaGetLastError(), 0);
  char* all = newMemory(1 << 20);
  size_t free = 1;
  size_t total = 0;
  OK(cudaMemGetInfo(&free, &total));
  EQUAL(free, 0);
  EQUAL(total, 1 << 20);
  OK(cudaFree(all));
  OK(cudaMalloc(&memory, 0));
  CHECK(memory == nullptr);
  OK(cudaFree(nullptr));
  CLEAN();
}

TEST(guards_show_writes_outside) {
  for (const size_t bytes : {size_t{1000}, size_t{3} << 20}) {
    begin("");
    char* memory = newMemory(bytes);
    memory[bytes] = 1;  // what a kernel does that runs past its end
    EQUAL(violations("guard-overwritten"), 1);
    OK(cudaFree(memory));
    EQUAL(violations("guard-overwritten"), 1);
  }
  begin("");
  char* memory = newMemory(1000);
  memory[-1] = 1;
  OK(cudaFree(memory));
  EQUAL(violations("guard-overwritten"), 1);
}

TEST(wrong_frees_are_named) {
  begin("");
  char* memory = newMemory(1000);
  EQUAL(cudaFree(memory + 1), 1);
  OK(cudaFree(memory));
  EQUAL(cudaFree(memory), 1);
  EQUAL(violations("double-free"), 2);
  int here = 0;
  EQUAL(cudaFree(&here), 1);
  EQUAL(cudaFreeHost(&here), 1);
  EQUAL(cudaHostUnregister(&here), 713);
  EQUAL(violations("bad-free"), 3);
}

TEST(copies_outside_are_refused) {
  begin("");
  void* stream = newStream();
  char* memory = newMemory(1000);
  std::vector<char> host(2000);
  EQUAL(cudaMemcpyAsync(memory, host.data(), 1001, 1, stream), 1);
  EQUAL(cudaMemsetAsync(memory + 999, 0, 2, stream), 1);
  EQUAL(cudaMemcpy2DAsync(memory, 500, host.data(), 400, 400, 3, 1, stream), 1);
  EQUAL(violations("out-of-bounds"), 3);
  EQUAL(cudaMemcpy2DAsync(memory, 10, host.data(), 400, 11, 3, 1, stream), 12);
  EQUAL(cudaMemcpyAsync(memory, host.data(), 10, 2, stream), 1);
  EQUAL(violations("wrong-direction"), 1);
  EQUAL(cudaMemcpyAsync(memory, host.data(), 10, 7, stream), 21);
  char* pinned = newHost(100);
  EQUAL(cudaMemcpyAsync(memory, pinned + 1, 100, 1, stream), 1);
  EQUAL(violations("out-of-bounds"), 4);
  OK(cudaFree(memory));
  EQUAL(cudaMemcpyAsync(memory, host.data(), 10, 4, stream), 1);
  EQUAL(violations("use-after-free"), 1);
}

TEST(page_locked_memory_is_tracked) {
  begin("");
  std::vector<char> own(10000);
  OK(cudaHostRegister(own.data(), own.size(), 0));
  EQUAL(cudaHostRegister(own.data() + 100, 5, 0), 712);
  PointerAttributes attributes;
  OK(cudaPointerGetAttributes(&attributes, own.data() + 9999));
  EQUAL(attributes.type, 1);
  OK(cudaPointerGetAttributes(&attributes, own.data() + 10000));
  EQUAL(attributes.type, 0);
  void* device = nullptr;
  OK(cudaHostGetDevicePointer(&device, own.data() + 3, 0));
  CHECK(device == own.data() + 3);
  EQUAL(cudaHostGetDevicePointer(&device, own.data() + 10000, 0), 1);
  EQUAL(number("hostRegistrations"), 1);
  OK(cudaHostUnregister(own.data()));
  char* made = newHost(77);
  EQUAL(number("hostMemory"), 1);
  OK(cudaFreeHost(made));
  CLEAN();
}

TEST(memory_in_use_must_not_go) {
  begin("pace=0");
  void* stream = newStream();
  char* memory = newMemory(5000);
  char* pinned = newHost(5000);
  std::vector<char> own(5000);
  OK(cudaHostRegister(own.data(), own.size(), 0));
  OK(cudaMemcpyAsync(memory, pinned, 5000, 1, stream));
  OK(cudaMemcpyAsync(memory, own.data(), 5000, 1, stream));
  OK(cudaFreeHost(pinned));
  OK(cudaHostUnregister(own.data()));
  OK(cudaFree(memory));
  EQUAL(violations("free-in-use"), 3);
  tensorferry_sim_reset();
}

TEST(virtual_memory_cannot_be_exported) {
  begin("");
  void* memory = tensorferry_sim_allocate_virtual(3000);
  CHECK(memory != nullptr);
  unsigned capable = 1;
  OK(cudaGetDeviceCount(reinterpret_cast<int*>(&capable)));
  capable = 1;
  OK(cuPointerGetAttribute(&capable, 10, reinterpret_cast<uintptr_t>(memory)));
  EQUAL(capable, 0);
  IpcHandle handle;
  EQUAL(cudaIpcGetMemHandle(&handle, memory), 1);
  EQUAL(cudaFree(memory), 1);
  EQUAL(violations("bad-free"), 1);
  OK(tensorferry_sim_free_virtual(memory));
  OK(tensorferry_sim_configure("ipc=0"));
  char* plain = newMemory(10);
  OK(cuPointerGetAttribute(&capable, 10, reinterpret_cast<uintptr_t>(plain)));
  EQUAL(capable, 0);
  EQUAL(cudaIpcGetMemHandle(&handle, plain), 1);
  OK(cudaFree(plain));
}

TEST(planned_faults_come_at_their_call) {
  begin("fail=cudaMalloc:2:2,fail=cudaStreamQuery:*:999");
  void* memory = nullptr;
  OK(cudaMalloc(&memory, 10));
  void* second = nullptr;
  EQUAL(cudaMalloc(&second, 10), 2);
  OK(cudaMalloc(&second, 10));
  OK(cudaFree(memory));
  OK(cudaFree(second));
  EQUAL(cudaStreamQuery(nullptr), 999);
  EQUAL(cudaStreamQuery(nullptr), 999);
  OK(tensorferry_sim_configure("clear=faults"));
  OK(cudaStreamQuery(nullptr));
  EQUAL(number("cudaMalloc"), 3);
  // A call that hangs comes back after the bound of all waits, and work that is stalled makes its waits end with an error.
  OK(tensorferry_sim_configure("stuck=30 hang=cudaGetDevice:1 stall=cudaMemsetAsync:1"));
  int device = 0;
  OK(cudaGetDevice(&device));
  void* stream = newStream();
  char* target = newMemory(100);
  OK(cudaMemsetAsync(target, 1, 100, stream));
  EQUAL(cudaStreamSynchronize(stream), 702);
  EQUAL(violations("stuck"), 1);
  // A device that broke stays so.
  begin("late=cudaMemsetAsync:1:700");
  stream = newStream();
  target = newMemory(100);
  OK(cudaMemsetAsync(target, 1, 100, stream));
  EQUAL(cudaStreamSynchronize(stream), 700);
  void* more = nullptr;
  EQUAL(cudaMalloc(&more, 1), 700);
  EQUAL(tensorferry_sim_configure("nonsense=1,devices=x"), -1);
  EQUAL(violations("bad-setting"), 2);
}

TEST(devices_are_as_set) {
  begin("devices=3,peers=0-1+1-2,capability=8.6,processors=7,name=Model-T");
  int count = 0;
  OK(cudaGetDeviceCount(&count));
  EQUAL(count, 3);
  int can = 0;
  OK(cudaDeviceCanAccessPeer(&can, 1, 0));
  EQUAL(can, 1);
  OK(cudaDeviceCanAccessPeer(&can, 0, 2));
  EQUAL(can, 0);
  EQUAL(cudaDeviceEnablePeerAccess(2, 0), 217);
  OK(cudaDeviceEnablePeerAccess(1, 0));
  EQUAL(cudaDeviceEnablePeerAccess(1, 0), 704);
  EQUAL(cudaSetDevice(3), 101);
  int value = 0;
  OK(cudaDeviceGetAttribute(&value, 75, 0));
  EQUAL(value, 8);
  OK(cudaDeviceGetAttribute(&value, 16, 0));
  EQUAL(value, 7);
  char text[64];
  OK(cuDeviceGetName(text, sizeof text, 1));
  CHECK(std::string(text) == "Model-T");
  OK(cudaDeviceGetPCIBusId(text, sizeof text, 1));
  CHECK(std::string(text) == "0000:19:00.0");
  OK(tensorferry_sim_configure("devices=0"));
  EQUAL(cudaGetDeviceCount(&count), 100);
  CHECK(std::string(cudaGetErrorName(100)) == "cudaErrorNoDevice");
}
