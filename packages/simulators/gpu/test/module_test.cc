// SPDX-License-Identifier: Apache-2.0
/*
 * Compiling, loading and launching.
 */
#include <thread>

#include "check.h"
#include "test_kernels.h"

namespace {

const char* const source =
    "// kernels\n#include \"part.h\"\nextern \"C\" void test_add(int value) { use(value, \"{\"); }\n";
const char* const header = "#pragma once\ninline void test_gather() {}\ninline void test_scatter() {}\n";

int compile(const char* text, std::vector<const char*> options, std::string* image, bool real = true,
            std::string* log = nullptr) {
  void* program = nullptr;
  const char* names[] = {"part.h"};
  OK(nvrtcCreateProgram(&program, text, "kernels.cu", 1, &header, names));
  const int answer = nvrtcCompileProgram(program, static_cast<int>(options.size()), options.data());
  size_t size = 0;
  if (log != nullptr) {
    OK(nvrtcGetProgramLogSize(program, &size));
    log->resize(size);
    OK(nvrtcGetProgramLog(program, log->data()));
  }
  if (answer == 0) {
    OK(real ? nvrtcGetCUBINSize(program, &size) : nvrtcGetPTXSize(program, &size));
    image->resize(size);
    if (size > 0) OK(real ? nvrtcGetCUBIN(program, image->data()) : nvrtcGetPTX(program, image->data()));
  }
  OK(nvrtcDestroyProgram(&program));
  CHECK(program == nullptr);
  return answer;
}

void* load(const char* kernel, void** module) {
  std::string image;
  OK(compile(source, {"--gpu-architecture=sm_90", "-default-device", "--std=c++17", "-DX=1", "--fmad=false"}, &image));
  OK(cuModuleLoadData(module, image.data()));
  void* function = nullptr;
  OK(cuModuleGetFunction(&function, *module, kernel));
  return function;
}

int launch(void* function, void* stream, void* parameter) {
  void* parameters[] = {parameter};
  return cuLaunchKernel(function, 2, 1, 1, 128, 1, 1, 0, stream, parameters, nullptr);
}

}  // namespace

TEST(the_compiler_checks) {
  begin("");
  std::string image, log;
  EQUAL(compile("  // nothing\n", {}, &image), 6);
  EQUAL(compile(source, {"--gpu-architecture=sm_12"}, &image), 5);
  EQUAL(compile(source, {"--no-such-option"}, &image, true, &log), 5);
  CHECK(log.find("--no-such-option") != std::string::npos);
  EQUAL(compile("void test_add() {", {}, &image), 6);
  EQUAL(compile("#include <vector>\nint test_add;", {}, &image, true, &log), 6);
  CHECK(log.find("vector") != std::string::npos);
  EQUAL(compile("#error no\n", {}, &image), 6);
  // Machine code needs a real architecture; portable code says what it was made for.
  OK(compile(source, {"--gpu-architecture=compute_90"}, &image));
  EQUAL(image.size(), 0);
  OK(compile(source, {"--gpu-architecture=compute_80"}, &image, false));
  void* module = nullptr;
  OK(cuModuleLoadData(&module, image.data()));
  OK(cuModuleUnload(module));
  OK(compile(source, {"--gpu-architecture=sm_80"}, &image));
  EQUAL(cuModuleLoadData(&module, image.data()), 209);
  OK(compile(source, {"--gpu-architecture=sm_100"}, &image, false));
  EQUAL(cuModuleLoadData(&module, image.data()), 209);
  CLEAN();
}

TEST(an_older_compiler_knows_less) {
  begin("compiler=89");
  int count = 0;
  OK(nvrtcGetNumSupportedArchs(&count));
  std::vector<int> known(static_cast<size_t>(count));
  OK(nvrtcGetSupportedArchs(known.data()));
  EQUAL(known.back(), 89);
  std::string image;
  EQUAL(compile(source, {"--gpu-architecture=sm_90"}, &image), 5);
  OK(compile(source, {"--gpu-architecture=compute_89"}, &image, false));
}

TEST(hip_names_lead_to_the_same) {
  begin("devices=2");
  int value = 0;
  OK(hipGetDeviceCount(&value));
  EQUAL(value, 2);
  OK(hipDeviceGetAttribute(&value, 23, 0));
  EQUAL(value, 9);
  CHECK(std::string(hipGetErrorName(1)) == "hipErrorInvalidValue");
  void* memory = nullptr;
  OK(hipMalloc(&memory, 10));
  OK(hipFree(memory));
  void* program = nullptr;
  const char* options[] = {"-ffp-contract=off", "--gpu-architecture=gfx942"};
  OK(hiprtcCreateProgram(&program, "void test_add() {}", nullptr, 0, nullptr, nullptr));
  OK(hiprtcCompileProgram(program, 2, options));
  size_t size = 0;
  OK(hiprtcGetCodeSize(program, &size));
  std::string image(size, 0);
  OK(hiprtcGetCode(program, image.data()));
  OK(hiprtcDestroyProgram(&program));
  void* module = nullptr;
  OK(hipModuleLoadData(&module, image.data()));
  OK(hipModuleUnload(module));
  CLEAN();
}

TEST(foreign_and_damaged_images_are_refused) {
  begin("");
  void* module = nullptr;
  EQUAL(cuModuleLoadData(&module,
                         "\x7f"
                         "ELF other"),
        200);
  EQUAL(cuModuleLoadData(&module, ""), 200);
  for (const bool real : {true, false}) {
    std::string image;
    OK(compile(source, {"--gpu-architecture=sm_90"}, &image, real));
    for (size_t at = 0; at + 1 < image.size(); at++) {
      std::string damaged = image;
      damaged[at] ^= 1;
      EQUAL(cuModuleLoadData(&module, damaged.c_str()), 200);
    }
    EQUAL(cuModuleLoadData(&module, image.substr(0, image.size() / 2).c_str()), 200);
  }
}

TEST(functions_are_those_of_the_source) {
  begin("devices=2");
  void* module = nullptr;
  void* add = load("test_add", &module);
  void* other = nullptr;
  OK(cuModuleGetFunction(&other, module, "test_gather"));  // from the header
  EQUAL(cuModuleGetFunction(&other, module, "nothing"), 500);
  OK(cuModuleUnload(module));
  EQUAL(cuModuleUnload(module), 400);
  AddParameter parameter{};
  EQUAL(launch(add, nullptr, &parameter), 400);
  EQUAL(violations("use-after-destroy"), 1);
  int answer = 0;
  std::thread([&] { answer = cuModuleUnload(module); }).join();
  EQUAL(answer, 201);
  EQUAL(violations("no-context"), 1);
}

TEST(launches_run_late_with_the_parameter_of_their_time) {
  for (int seed = 1; seed <= 100; seed++) {
    begin("pace=0,seed=" + std::to_string(seed));
    void* module = nullptr;
    void* add = load("test_add", &module);
    void* stream = newStream();
    constexpr size_t count = 1013;
    auto* memory = newMemory<uint32_t>(count);
    auto* host = newHost<uint32_t>(count);
    for (size_t index = 0; index < count; index++) host[index] = static_cast<uint32_t>(index);
    OK(cudaMemcpyAsync(memory, host, count * 4, 1, stream));
    AddParameter parameter{memory, memory, count, 7, 0};
    OK(launch(add, stream, &parameter));
    size_t size = sizeof parameter;
    void* extra[] = {reinterpret_cast<void*>(1), &parameter, reinterpret_cast<void*>(2), &size, nullptr};
    OK(cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, extra));
    std::memset(&parameter, 0, sizeof parameter);
    OK(cudaMemcpyAsync(host, memory, count * 4, 2, stream));
    OK(cudaStreamSynchronize(stream));
    for (size_t index = 0; index < count; index++) EQUAL(host[index], index + 14);
    EQUAL(number("test_add"), 2);
    size = 8;
    EQUAL(cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, extra), 1);
    EQUAL(violations("kernel-parameter"), 1);
    EQUAL(cuLaunchKernel(add, 0, 1, 1, 32, 1, 1, 0, stream, nullptr, extra), 1);
    EQUAL(cuLaunchKernel(add, 1, 1, 1, 1025, 1, 1, 0, stream, nullptr, extra), 1);
  }
}

TEST(kernels_need_access_to_peers) {
  for (const bool enabled : {false, true})
    for (const bool direct : {false, true}) {
      begin("devices=2,pace=0");
      if (enabled) OK(cudaDeviceEnablePeerAccess(1, 0));
      void* module = nullptr;
      void* gather = load("test_gather", &module);
      void* stream = newStream();
      auto* target = newMemory<uint32_t>(1);
      OK(cudaSetDevice(1));
      auto* foreign = newMemory<uint32_t>(1);
      OK(cudaMemsetAsync(foreign, 1, 4, nullptr));
      OK(cudaDeviceSynchronize());
      OK(cudaSetDevice(0));
      auto** table = newMemory<const uint32_t*>(1);
      const uint32_t* entry = direct ? target : foreign;
      OK(cudaMemcpy(table, &entry, sizeof entry, 1));
      // The last leg of a staged copy is not waited for, and `stream` does not wait for the legacy stream.
      OK(cudaDeviceSynchronize());
      GatherParameter parameter{direct ? foreign : target, table, 1};
      OK(launch(gather, stream, &parameter));
      EQUAL(cudaStreamSynchronize(stream), enabled ? 0 : 700);
      EQUAL(violations("peer-access-not-enabled"), enabled ? 0 : 1);
    }
}

TEST(late_kernels_find_freed_memory) {
  begin("pace=0");
  void* module = nullptr;
  void* add = load("test_add", &module);
  void* gather = nullptr;
  OK(cuModuleGetFunction(&gather, module, "test_gather"));
  void* stream = newStream();
  auto* memory = newMemory<uint32_t>(4);
  AddParameter parameter{memory, memory, 4, 1, 0};
  OK(launch(add, stream, &parameter));
  OK(cudaFree(memory));
  EQUAL(violations("free-in-use"), 1);
  EQUAL(cudaStreamSynchronize(stream), 700);
  EQUAL(violations("use-after-free"), 2);
}

TEST(memory_freed_under_a_table_is_not_given_out_again) {
  begin("pace=0");
  void* module = nullptr;
  void* gather = load("test_gather", &module);
  void* add = nullptr;
  OK(cuModuleGetFunction(&add, module, "test_add"));
  void* stream = newStream();
  auto** table = newMemory<const uint32_t*>(1);
  auto* target = newMemory<uint32_t>(1);
  auto* source = newMemory<uint32_t>(1);
  auto* out = newHost<uint32_t>(1);
  AddParameter count{source, source, 1, 0, 0};
  OK(cudaMemsetAsync(source, 5, 4, stream));
  OK(launch(add, stream, &count));
  OK(cudaStreamSynchronize(stream));
  const uint32_t* entry = source;
  OK(cudaMemcpy(table, &entry, sizeof entry, 1));
  OK(cudaDeviceSynchronize());
  GatherParameter parameter{target, table, 1};
  OK(launch(gather, stream, &parameter));
  OK(cudaFree(source));  // nothing names it but the table
  EQUAL(violations("free-in-use"), 0);
  auto* again = newMemory<uint32_t>(1);
  CHECK(again != source);  // not given out while work is queued that may use it
  OK(cudaMemcpyAsync(out, target, 4, 2, stream));
  OK(cudaStreamSynchronize(stream));
  CHECK(*out != 0x05050505);  // what was there is gone
  again = newMemory<uint32_t>(1);
  CHECK(again == source);
}

TEST(a_write_after_free_through_a_table_is_found) {
  begin("pace=0");
  void* module = nullptr;
  void* scatter = load("test_scatter", &module);
  void* stream = newStream();
  auto** table = newMemory<uint32_t*>(1);
  auto* target = newMemory<uint32_t>(1);
  OK(cudaMemcpy(table, &target, sizeof target, 1));
  OK(cudaDeviceSynchronize());
  ScatterParameter parameter{table, 1, 77, 0};
  OK(launch(scatter, stream, &parameter));
  OK(cudaFree(target));
  OK(cudaStreamSynchronize(stream));
  OK(cudaFree(table));
  EQUAL(violations("write-after-free"), 1);
  EQUAL(number("violationCount"), 1);
}

TEST(a_wild_address_ends_the_kernel_and_breaks_the_device) {
  begin("devices=2");
  void* module = nullptr;
  void* add = load("test_add", &module);
  void* stream = newStream();
  auto* memory = newMemory<uint32_t>(4);
  AddParameter parameter{memory, reinterpret_cast<const uint32_t*>(16), 4, 1, 0};
  OK(launch(add, stream, &parameter));
  EQUAL(cudaStreamSynchronize(stream), 700);
  EQUAL(violations("illegal-address"), 1);
  EQUAL(cudaFree(memory), 700);
  OK(cudaSetDevice(1));
  OK(cudaFree(nullptr));
}

TEST(launches_are_bound_to_their_device) {
  begin("devices=2");
  void* module = nullptr;
  void* add = load("test_add", &module);
  OK(cudaSetDevice(1));
  void* foreign = newStream();
  AddParameter parameter{};
  EQUAL(launch(add, foreign, &parameter), 400);
  EQUAL(violations("wrong-device"), 1);
  EQUAL(cuModuleUnload(module), 400);
  EQUAL(violations("wrong-device"), 2);
}
