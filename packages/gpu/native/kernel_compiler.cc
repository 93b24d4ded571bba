// SPDX-License-Identifier: Apache-2.0
/*
 * See kernel_compiler.h. The options are those that keep the bits of results; kernels/kernel_source.h states them.
 */
#include "kernel_compiler.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

#include <tensorferry_gpu/gpu_status.h>

#include "kernels/kernel_source.h"

namespace tensorferry::gpu {
namespace {

std::vector<std::string> baseOptions(Vendor vendor, unsigned part) {
  const std::string chosen = "-DTENSORFERRY_PART=" + std::to_string(part);
  if (vendor == Vendor::Rocm) return {"-std=c++17", "-ffp-contract=off", chosen};
  return {"--std=c++17", "--fmad=false", chosen};
}

/** One compilation of a part of the source. */
class Compilation {
 public:
  Compilation(const GpuApi& api, unsigned part) noexcept : api_(api), part_(part) {}
  Compilation(const Compilation&) = delete;
  Compilation& operator=(const Compilation&) = delete;
  ~Compilation() {
    if (handle_ != nullptr) api_.destroyCompilation(&handle_);
  }

  Status run(const std::string& architecture) {
    Status status = callCompiler(api_, api_.createCompilation, &handle_, kernelSource, "tensorferry_kernels.cu", 0,
                                 static_cast<const char* const*>(nullptr), static_cast<const char* const*>(nullptr));
    if (!status.ok()) return status;
    std::vector<std::string> options = baseOptions(api_.vendor, part_);
    if (!architecture.empty()) options.push_back("--gpu-architecture=" + architecture);
    std::vector<const char*> pointers;
    for (const std::string& option : options) pointers.push_back(option.c_str());
    status = callCompiler(api_, api_.compile, handle_, static_cast<int>(pointers.size()),
                          static_cast<const char* const*>(pointers.data()));
    if (!status.ok()) status.detail += log();
    return status;
  }

  Result<std::string> image() { return text(api_.imageSize, api_.image); }
  Result<std::string> assembly() { return text(api_.assemblySize, api_.assembly); }

 private:
  template <typename Size, typename Get>
  Result<std::string> text(const Size& size, const Get& get) {
    size_t length = 0;
    Status status = callCompiler(api_, size, handle_, &length);
    if (!status.ok()) return status;
    std::string content(length, '\0');
    status = callCompiler(api_, get, handle_, content.data());
    if (!status.ok()) return status;
    return content;
  }

  /** The beginning of what the compiler complains about. */
  std::string log() {
    auto content = text(api_.logSize, api_.log);
    if (!content.ok()) return "";
    const std::string begin = content.value().substr(0, std::min(content.value().find('\0'), size_t{2000}));
    return begin.empty() ? "" : "\n" + begin;
  }

  const GpuApi& api_;
  const unsigned part_;
  CompilationHandle handle_ = nullptr;
};

/** The newest architecture that this compiler knows and the device understands; 0 where there is none. */
int newestKnown(const GpuApi& api, int architecture) {
  std::vector<int> known = {90, 89, 86, 80, 75, 70};
  int count = 0;
  if (api.architectureCount && api.architectures && api.architectureCount(&count) == 0 && count > 0) {
    known.assign(static_cast<size_t>(count), 0);
    if (api.architectures(known.data()) != 0) known.clear();
  }
  int newest = 0;
  for (const int candidate : known)
    if (candidate < architecture) newest = std::max(newest, candidate);
  return newest;
}

Result<std::string> compilePart(const GpuApi& api, const Target& target, unsigned part) {
  Compilation compilation(api, part);
  Status status = compilation.run(target.name);
  if (status.ok()) return compilation.image();
  const bool canFallBack = api.vendor == Vendor::Cuda && status.nativeCode == compiler::invalidOption && api.assembly;
  const int older = canFallBack ? newestKnown(api, target.architecture) : 0;
  if (older == 0) return status;
  // A compiler older than the device: the driver translates what is meant for an older device.
  Compilation again(api, part);
  status = again.run("compute_" + std::to_string(older));
  if (!status.ok()) return status;
  return again.assembly();
}

}  // namespace

Result<Target> targetOf(const GpuApi& api, int ordinal) {
  Target target;
  if (api.vendor == Vendor::Rocm) {
    // The name stands somewhere in a structure whose layout changes between versions.
    std::string properties(8192, '\0');
    if (api.getProperties && api.getProperties(properties.data(), ordinal) == code::success) {
      const size_t at = properties.find("gfx", 256);
      if (at != std::string::npos)
        target.name = properties.substr(at, properties.find_first_of(std::string("\0:", 2), at) - at);
    }
    if (target.name.size() > 3)
      target.architecture = static_cast<int>(std::strtol(target.name.c_str() + 3, nullptr, 16));
    return target;
  }
  int major = 0, minor = 0;
  const AttributeNumbers numbers = attributeNumbers(api.vendor);
  Status status = callRuntime(api, api.getAttribute, &major, numbers.major, ordinal);
  if (status.ok()) status = callRuntime(api, api.getAttribute, &minor, numbers.minor, ordinal);
  if (!status.ok()) return status;
  target.architecture = 10 * major + minor;
  target.name = "sm_" + std::to_string(target.architecture);
  return target;
}

std::string compilationKey(const Libraries& libraries, const Target& target, unsigned part) {
  std::string key = libraries.api.vendor == Vendor::Cuda ? "cuda" : "rocm";
  for (const std::string& each : {libraries.driverVersion, libraries.compilerVersion, target.name}) key += "\n" + each;
  for (const std::string& option : baseOptions(libraries.api.vendor, part)) key += "\n" + option;
  return key + "\n" + std::string(kernelSource, kernelSourceLength);
}

Result<std::vector<std::string>> compileKernels(const Libraries& libraries, const Target& target,
                                                const std::vector<unsigned>& parts) {
  const GpuApi& api = libraries.api;
  if (!api.hasCompiler)
    return failure(Code::Unsupported, "compile",
                   "Kernels must be compiled once, but the run-time compiler (NVRTC or hipRTC) was not found. "
                   "Install it or name its path.");
  std::vector<std::string> images(parts.size());
  std::vector<Status> ends(parts.size());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t at = next++; at < parts.size(); at = next++)
      ends[at] = caught("compile", [&] {
        auto image = compilePart(api, target, parts[at]);
        if (!image.ok()) return image.status();
        images[at] = std::move(image.value());
        return Status{};
      });
  };
  std::vector<std::thread> helpers;
  const size_t processors = std::max(1u, std::thread::hardware_concurrency());
  try {
    while (helpers.size() + 1 < std::min(parts.size(), processors)) helpers.emplace_back(work);
  } catch (const std::system_error&) {
    // As many as there are do it.
  }
  work();
  for (std::thread& helper : helpers) helper.join();
  for (Status& end : ends)
    if (!end.ok()) return std::move(end);
  return images;
}

}  // namespace tensorferry::gpu
