// SPDX-License-Identifier: Apache-2.0
/*
 * Modules and launches. An image is text sealed by a check sum, so that nothing but what the simulated compiler made loads.
 */
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "kernel_guard.h"
#include "world.h"

namespace tensorferry::gpu::simulator {
namespace {

constexpr char portableMagic[] = "// simulated-ptx ";
constexpr char realMagic[] =
    "\x7f"
    "SIMULATED-CUBIN ";

/** The rest of a launch: the kernel and its one parameter. */
class Launch final : public Operation {
 public:
  Launch(const SimulatedKernel* kernel, const void* parameter, unsigned grid, unsigned block, int device)
      : kernel_(kernel), parameter_((kernel->parameterBytes + 7) / 8), grid_(grid), block_(block), device_(device) {
    std::memcpy(parameter_.data(), parameter, kernel->parameterBytes);
  }
  const char* kind() const override { return kernel_->name; }
  /** Device addresses in the parameter count as used. */
  void findUses(World& world) {
    for (const uint64_t word : parameter_)
      if (const Allocation* allocation = word == 0 ? nullptr : world.memory.find(word))
        uses.push_back({allocation->start, allocation->bytes});
      else if (const HostRange* range = word == 0 ? nullptr : world.memory.findHost(word))
        uses.push_back({range->start, range->bytes});
  }
  Progress advance(World& world, Lock&) override {
    uintptr_t address = 0;
    if (lateError == 0 && check(world) && !runGuarded(*kernel_, parameter_.data(), grid_, block_, &address)) {
      world.violation("illegal-address", std::string(kernel_->name) + " touched " + hex(address) + ".");
      world.sticky[device_] = code::illegalAddress;
    }
    return Progress::Finished;
  }

 private:
  /** What a device would fault on, as far as addresses in the parameter and in the tables it points to tell. */
  bool check(World& world) {
    bool fine = true;
    const auto& all = world.memory.allocations;
    const uintptr_t lowest = all.empty() ? 0 : all.begin()->first;
    const uintptr_t highest = all.empty() ? 0 : all.rbegin()->second.start + all.rbegin()->second.bytes;
    for (const uint64_t word : parameter_) {
      if (word == 0 || !checkAddress(world, word, "its parameter")) {
        fine &= word == 0;
        continue;
      }
      const Allocation* table = world.memory.find(word);
      if (table == nullptr) continue;
      const size_t length = std::min<size_t>(table->start + table->bytes - word, size_t{1} << 20) / 8;
      const auto* words = reinterpret_cast<const char*>(word);
      for (size_t at = 0; at < length; at++) {
        uint64_t inner = 0;
        std::memcpy(&inner, words + at * 8, 8);
        // Freed addresses in a table may be left over from an earlier use of it; foreign devices' are not.
        if (inner >= lowest && inner < highest && world.memory.find(inner) != nullptr)
          fine &= checkAddress(world, inner, "memory it points to");
      }
    }
    if (!fine) world.sticky[device_] = code::illegalAddress;
    return fine;
  }
  bool checkAddress(World& world, uint64_t address, const char* where) {
    const Allocation* allocation = world.memory.find(address);
    if (allocation == nullptr) {
      // One past the end is no access by itself.
      if (!world.memory.inSegment(address) || (address > 0 && world.memory.find(address - 1) != nullptr)) return true;
      world.violation("use-after-free", std::string(kernel_->name) + ": an address in " + where +
                                            " lies in device memory that is not allocated.");
      return false;
    }
    const int home = allocation->kind == Kind::Imported ? allocation->opener : allocation->device;
    if (home == device_ || world.peers.count({device_, home}) > 0) return true;
    world.violation("peer-access-not-enabled", std::string(kernel_->name) + " on device " + std::to_string(device_) +
                                                   ": an address in " + where + " lies on device " +
                                                   std::to_string(home) + ", to which access was not enabled.");
    return false;
  }

  const SimulatedKernel* kernel_;
  std::vector<uint64_t> parameter_;
  unsigned grid_;
  unsigned block_;
  int device_;
};

/** The parameter of a launch in either form; null with a violation when it is not one struct of the right size. */
const void* parameterOf(World& world, const SimulatedKernel& kernel, void** parameters, void** extra) {
  if (parameters != nullptr && extra == nullptr) return parameters[0];
  const void* buffer = nullptr;
  size_t bytes = 0;
  if (parameters == nullptr && extra != nullptr) {
    for (size_t at = 0; extra[at] != nullptr; at += 2) {
      if (extra[at] == reinterpret_cast<void*>(1)) buffer = extra[at + 1];
      if (extra[at] == reinterpret_cast<void*>(2)) bytes = *static_cast<const size_t*>(extra[at + 1]);
    }
  }
  if (buffer != nullptr && bytes == kernel.parameterBytes) return buffer;
  world.violation("kernel-parameter", std::string(kernel.name) + " takes one parameter of " +
                                          std::to_string(kernel.parameterBytes) + " bytes, not " +
                                          std::to_string(bytes) + ".");
  return nullptr;
}

const SimulatedKernel* findKernel(const std::string& name) {
  size_t count = 0;
  const SimulatedKernel* kernels = tensorferry_simulated_kernels(&count);
  for (size_t index = 0; index < count; index++)
    if (name == kernels[index].name) return &kernels[index];
  return nullptr;
}

}  // namespace

std::string makeImage(bool real, int architecture, uint64_t sourceHash, const std::vector<std::string>& kernels) {
  std::string body = "arch=" + std::to_string(architecture) + " source=" + hex(sourceHash) + " kernels=";
  for (const auto& kernel : kernels) body += kernel + ",";
  return (real ? realMagic : portableMagic) + std::string("check=") + hex(hashText(body)) + " " + body + "\n";
}

bool readImage(const char* image, ImageContents& contents) {
  const char* rest = nullptr;
  for (const bool real : {false, true}) {
    const char* magic = real ? realMagic : portableMagic;
    if (std::strncmp(image, magic, std::strlen(magic)) == 0) {
      contents.real = real;
      rest = image + std::strlen(magic);
    }
  }
  constexpr size_t longest = 65536;
  if (rest == nullptr || std::strncmp(rest, "check=", 6) != 0) return false;
  rest += 6;
  size_t length = 0;
  while (length < longest && rest[length] != 0 && rest[length] != '\n') length++;
  if (rest[length] != '\n') return false;
  const std::string line(rest, length);
  const size_t space = line.find(' ');
  if (space == std::string::npos || line.substr(0, space) != hex(hashText(line.substr(space + 1)))) return false;
  std::istringstream fields(line.substr(space + 1));
  std::string architecture, source, kernels;
  fields >> architecture >> source >> kernels;
  contents.architecture = std::atoi(architecture.c_str() + 5);
  std::istringstream names(kernels.substr(8));
  for (std::string name; std::getline(names, name, ',');) contents.kernels.push_back(name);
  return true;
}

TENSORFERRY_SIM_API int cuModuleLoadData(void** handle, const void* image) {
  return driverCall("cuModuleLoadData", [&](Call& call) -> int {
    ImageContents contents;
    if (handle == nullptr || image == nullptr) return code::invalidValue;
    if (!readImage(static_cast<const char*>(image), contents)) return code::invalidImage;
    const int own = call.world.settings.capabilityMajor * 10 + call.world.settings.capabilityMinor;
    // Machine code runs within its major version from its own minor on; portable code on everything newer.
    if (contents.architecture > own || (contents.real && contents.architecture / 10 != own / 10))
      return code::noKernelImage;
    auto module = std::make_shared<Module>();
    module->device = call.thread.device;
    module->kernels = std::move(contents.kernels);
    *handle = call.world.modules.handles.issue(std::move(module));
    return 0;
  });
}

TENSORFERRY_SIM_API int cuModuleUnload(void* handle) {
  return driverCall("cuModuleUnload", [&](Call& call) -> int {
    Modules& modules = call.world.modules;
    const auto module = modules.handles.find(handle);
    if (module == nullptr) {
      call.world.violation(modules.handles.wasReleased(handle) ? "double-destroy" : "bad-handle",
                           "cuModuleUnload of a module that does not exist (any more).");
      return code::invalidHandle;
    }
    if (module->device != call.thread.device) {
      call.world.violation("wrong-device",
                           "cuModuleUnload with another device current than the module was loaded with.");
      return code::invalidHandle;
    }
    for (void* function : module->functions) modules.functions.release(function);
    modules.handles.release(handle);
    return 0;
  });
}

TENSORFERRY_SIM_API int cuModuleGetFunction(void** out, void* handle, const char* name) {
  return driverCall("cuModuleGetFunction", [&](Call& call) -> int {
    if (out == nullptr || name == nullptr) return code::invalidValue;
    const auto module = call.world.modules.handles.find(handle);
    if (module == nullptr) {
      call.world.violation("bad-handle", "cuModuleGetFunction with a module that does not exist (any more).");
      return code::invalidHandle;
    }
    const SimulatedKernel* kernel = nullptr;
    for (const auto& one : module->kernels)
      if (one == name) kernel = findKernel(one);
    if (kernel == nullptr) return code::notFound;
    *out = call.world.modules.functions.issue(std::make_shared<Function>(Function{kernel, module->device}));
    module->functions.push_back(*out);
    return 0;
  });
}

TENSORFERRY_SIM_API int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* handle, int threads, size_t) {
  return driverCall("cuOccupancyMaxActiveBlocksPerMultiprocessor", [&](Call& call) -> int {
    if (blocks == nullptr || threads <= 0) return code::invalidValue;
    if (call.world.modules.functions.find(handle) == nullptr) {
      call.world.violation("bad-handle", std::string(call.function) + " of a function that does not exist (any more).");
      return code::invalidHandle;
    }
    *blocks = threads > 1024 ? 0 : 2048 / threads;
    return 0;
  });
}

TENSORFERRY_SIM_API int cuLaunchKernel(void* handle, unsigned gridX, unsigned gridY, unsigned gridZ, unsigned blockX,
                                       unsigned blockY, unsigned blockZ, unsigned sharedBytes, void* streamHandle,
                                       void** parameters, void** extra) {
  return driverCall("cuLaunchKernel", [&](Call& call) -> int {
    World& world = call.world;
    const auto function = world.modules.functions.find(handle);
    if (function == nullptr) {
      world.violation(world.modules.functions.wasReleased(handle) ? "use-after-destroy" : "bad-handle",
                      "cuLaunchKernel of a function whose module was unloaded or that does not exist.");
      return code::invalidHandle;
    }
    const StreamRef stream = findStream(world, streamHandle, call.function);
    if (stream == nullptr) return code::invalidHandle;
    if (stream->device != function->device) {
      world.violation("wrong-device", "cuLaunchKernel of a function of device " + std::to_string(function->device) +
                                          " in a stream of device " + std::to_string(stream->device) + ".");
      return code::invalidHandle;
    }
    const bool flat = gridY == 1 && gridZ == 1 && blockY == 1 && blockZ == 1 && sharedBytes == 0;
    if (gridX == 0 || gridX > 2147483647u || blockX == 0 || blockX > 1024 || !flat) {
      if (!flat) world.violation("launch-shape", "Only one-dimensional launches without shared memory are simulated.");
      return code::invalidValue;
    }
    const void* parameter = parameterOf(world, *function->kernel, parameters, extra);
    if (parameter == nullptr) return code::invalidValue;
    auto launch = std::make_unique<Launch>(function->kernel, parameter, gridX, blockX, stream->device);
    launch->findUses(world);
    world.report.launches[function->kernel->name]++;
    submit(call, stream, std::move(launch));
    return 0;
  });
}

}  // namespace tensorferry::gpu::simulator
