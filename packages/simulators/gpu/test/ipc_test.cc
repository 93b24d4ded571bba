// SPDX-License-Identifier: Apache-2.0
/*
 * Memory and events between processes.
 */
#include "check.h"

namespace {

constexpr size_t bytes = 100003;
constexpr int seeds = 200;

struct Shared {
  IpcHandle memory;
  IpcHandle event;
};

}  // namespace

/** Opens what it is told, twice, reads and writes there in its own device's name. */
CHILD(ipc_peer) {
  OK(cudaSetDevice(1));
  const auto shared = hear<Shared>();
  void* opened = nullptr;
  void* again = nullptr;
  OK(cudaIpcOpenMemHandle(&opened, shared.memory, 1));
  OK(cudaIpcOpenMemHandle(&again, shared.memory, 1));
  CHECK(opened == again);
  EQUAL(number("importedMemory"), 1);
  OK(cudaIpcCloseMemHandle(again));
  PointerAttributes attributes;
  OK(cudaPointerGetAttributes(&attributes, opened));
  EQUAL(attributes.device, 0);
  std::vector<char> seen(bytes);
  OK(cudaMemcpy(seen.data(), opened, bytes, 2));
  for (const char byte : seen) EQUAL(byte, 3);
  void* stream = newStream();
  OK(cudaMemsetAsync(opened, 4, bytes, stream));
  OK(cudaStreamSynchronize(stream));
  EQUAL(cudaMemsetAsync(static_cast<char*>(opened) + 1, 4, bytes, stream), 1);
  EQUAL(violations("out-of-bounds"), 1);
  tell(1);
  hear<int>();
  OK(cudaIpcCloseMemHandle(opened));
  EQUAL(cudaIpcCloseMemHandle(opened), 1);
  EQUAL(violations("double-close"), 1);
  tell(2);
  EQUAL(cudaIpcOpenMemHandle(&opened, hear<Shared>().memory, 1), 1);  // freed meanwhile
  OK(cudaStreamDestroy(stream));
}

TEST(memory_is_shared_between_processes) {
  begin("");
  // A small allocation between others, so that its segment is shared.
  char* first = newMemory(1000);
  char* memory = newMemory(bytes);
  void* stream = newStream();
  OK(cudaMemsetAsync(memory, 3, bytes, stream));
  OK(cudaStreamSynchronize(stream));
  Shared shared{};
  OK(cudaIpcGetMemHandle(&shared.memory, memory + 17));  // names the base
  void* own = nullptr;
  EQUAL(cudaIpcOpenMemHandle(&own, shared.memory, 1), 201);
  EQUAL(violations("ipc-open-own"), 1);
  Process peer("ipc_peer", "");
  peer.send(shared);
  peer.receive<int>();
  std::vector<char> seen(bytes);
  OK(cudaMemcpy(seen.data(), memory, bytes, 2));
  for (const char byte : seen) EQUAL(byte, 4);
  peer.send(1);
  peer.receive<int>();
  OK(cudaFree(memory));
  EQUAL(violations("free-while-open"), 0);
  peer.send(shared);
  peer.end();
  OK(cudaFree(first));
}

CHILD(ipc_holder) {
  OK(cudaSetDevice(1));
  const auto shared = hear<Shared>();
  void* opened = nullptr;
  OK(cudaIpcOpenMemHandle(&opened, shared.memory, 1));
  tell(1);
  hear<int>();  // freed by its owner
  void* stream = newStream();
  OK(cudaMemsetAsync(opened, 4, bytes, stream));
  OK(cudaStreamSynchronize(stream));
  CHECK(violations("import-after-free") > 0);
  tell(2);
}

TEST(memory_must_not_go_while_others_have_it) {
  begin("");
  char* memory = newMemory(bytes);
  Shared shared{};
  OK(cudaIpcGetMemHandle(&shared.memory, memory));
  Process peer("ipc_holder", "");
  peer.send(shared);
  peer.receive<int>();
  OK(cudaFree(memory));
  EQUAL(violations("free-while-open"), 1);
  peer.send(1);
  peer.receive<int>();
  peer.end();
}

CHILD(ipc_refused) {
  const auto shared = hear<Shared>();
  void* opened = nullptr;
  OK(cudaSetDevice(1));
  EQUAL(cudaIpcOpenMemHandle(&opened, shared.memory, 1), 217);
  OK(tensorferry_sim_configure("peers=all,node=elsewhere"));
  EQUAL(cudaIpcOpenMemHandle(&opened, shared.memory, 1), 1);
  EQUAL(cudaIpcOpenEventHandle(&opened, shared.event), 400);
  OK(tensorferry_sim_configure("node="));
  EQUAL(cudaIpcOpenMemHandle(&opened, shared.memory, 0), 1);
  Shared damaged = shared;
  damaged.memory.bytes[20] ^= 1;
  damaged.event.bytes[20] ^= 1;
  EQUAL(cudaIpcOpenMemHandle(&opened, damaged.memory, 1), 1);
  EQUAL(cudaIpcOpenEventHandle(&opened, damaged.event), 400);
  EQUAL(violations("bad-ipc-handle"), 2);
  OK(cudaIpcOpenMemHandle(&opened, shared.memory, 1));
  void* stream = newStream();
  OK(tensorferry_sim_configure("pace=0"));
  OK(cudaMemsetAsync(opened, 4, bytes, stream));
  OK(cudaIpcCloseMemHandle(opened));
  EQUAL(violations("close-in-use"), 1);
  OK(cudaStreamSynchronize(stream));  // the late fill finds the memory gone instead of crashing
  EQUAL(violations("use-after-free"), 1);
}

TEST(handles_are_checked) {
  begin("");
  char* memory = newMemory(bytes);
  void* event = newEvent(6);
  void* plain = newEvent(2);
  Shared shared{};
  OK(cudaIpcGetMemHandle(&shared.memory, memory));
  OK(cudaIpcGetEventHandle(&shared.event, event));
  EQUAL(cudaIpcGetEventHandle(&shared.event, plain), 400);
  void* own = nullptr;
  EQUAL(cudaIpcOpenEventHandle(&own, shared.event), 201);
  Process peer("ipc_refused", "peers=none");
  peer.send(shared);
  peer.end();
}

/** Waits for the other's event or not, then reads its memory; one round for each message. */
CHILD(ipc_reader) {
  OK(cudaSetDevice(1));
  const auto shared = hear<Shared>();
  void* opened = nullptr;
  void* event = nullptr;
  OK(cudaIpcOpenMemHandle(&opened, shared.memory, 1));
  OK(cudaIpcOpenEventHandle(&event, shared.event));
  void* stream = newStream();
  char* out = newHost(bytes);
  int wait = 0;
  while (hear(&wait, sizeof wait)) {
    if (wait != 0) OK(cudaStreamWaitEvent(stream, event, 0));
    OK(cudaMemcpyAsync(out, opened, bytes, 2, stream));
    OK(cudaStreamSynchronize(stream));
    const char first = out[0];
    bool whole = true;
    for (size_t index = 0; index < bytes; index++) whole &= out[index] == first;
    tell(whole ? static_cast<int>(first) : -1);
  }
  OK(cudaEventDestroy(event));
  OK(cudaIpcCloseMemHandle(opened));
  OK(cudaFreeHost(out));
  OK(cudaStreamDestroy(stream));
  CLEAN();
}

TEST(events_order_processes) {
  begin("pace=1,seed=3");
  char* memory = newMemory(bytes);
  void* event = newEvent(6);
  void* stream = newStream();
  Shared shared{};
  OK(cudaIpcGetMemHandle(&shared.memory, memory));
  OK(cudaIpcGetEventHandle(&shared.event, event));
  {
    Process peer("ipc_reader", "seed=4");
    peer.send(shared);
    for (int round = 1; round <= seeds; round++) {
      const int value = round % 100 + 1;
      const int wait = round % 2;
      // Without a wait the work does not run before the other has read; with one it runs late.
      OK(tensorferry_sim_configure(wait != 0 ? "pace=1" : "pace=0"));
      OK(cudaMemsetAsync(memory, value, bytes, stream));
      OK(cudaEventRecord(event, stream));
      peer.send(wait);  // the work is queued, not done
      const int seen = peer.receive<int>();
      if (wait != 0) EQUAL(seen, value);
      else CHECK(seen != value);
      OK(cudaStreamSynchronize(stream));
    }
  }
  OK(cudaEventDestroy(event));
  OK(cudaStreamDestroy(stream));
}
