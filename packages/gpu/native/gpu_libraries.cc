// SPDX-License-Identifier: Apache-2.0
/*
 * See gpu_libraries.h. A library that opens but lacks a function is left and the next name is tried.
 */
#include <tensorferry_gpu/gpu_libraries.h>

#include <dlfcn.h>

namespace tensorferry::gpu {
namespace {

/** Looks the functions of one library up; answers what is wrong with it, or nothing. */
using Fill = std::string (*)(GpuApi&, void*);

#define TENSORFERRY_GPU_FILL(function, required, optional)                                      \
  std::string function(GpuApi& api, void* library) {                                            \
    SymbolTable table(library);                                                                 \
    const bool isCuda = api.vendor == Vendor::Cuda;                                             \
    required(TENSORFERRY_GPU_REQUIRED) optional(TENSORFERRY_GPU_OPTIONAL) return table.fault(); \
  }
#define TENSORFERRY_GPU_REQUIRED(member, signature, cuda, hip) table.find(api.member, isCuda ? cuda : hip);
#define TENSORFERRY_GPU_OPTIONAL(member, signature, cuda, hip) table.find(api.member, isCuda ? cuda : hip, false);

TENSORFERRY_GPU_FILL(fillRuntime, TENSORFERRY_GPU_RUNTIME, TENSORFERRY_GPU_RUNTIME_OPTIONAL)
TENSORFERRY_GPU_FILL(fillDriver, TENSORFERRY_GPU_DRIVER, TENSORFERRY_GPU_DRIVER_OPTIONAL)
TENSORFERRY_GPU_FILL(fillCompiler, TENSORFERRY_GPU_COMPILER, TENSORFERRY_GPU_COMPILER_OPTIONAL)
TENSORFERRY_GPU_FILL(fillCollectives, TENSORFERRY_GPU_COLLECTIVES, TENSORFERRY_GPU_COLLECTIVES_OPTIONAL)

LibraryFound openOne(GpuApi& api, const std::vector<std::string>& names, Fill fill) {
  LibraryFound found;
  if (!openFirst(names, found, [&](void* library) { return fill(api, library); })) found.problem += ".";
  return found;
}

/** CUDA counts 1000 per major version and 10 per minor one, HIP 10^7 and 10^5. */
std::string versionText(Vendor vendor, int version) {
  const int major = vendor == Vendor::Cuda ? 1000 : 10'000'000, minor = vendor == Vendor::Cuda ? 10 : 100'000;
  return std::to_string(version / major) + "." + std::to_string(version % major / minor);
}

/** NCCL counted 1000 per major version up to 2.8, 10000 since. */
std::string collectivesVersionText(int version) {
  const int major = version < 10000 ? 1000 : 10000;
  return std::to_string(version / major) + "." + std::to_string(version % major / 100) + "." +
         std::to_string(version % 100);
}

/**
 * NVRTC asks the loader for its second half by name alone, which finds nothing where both lie in a folder that the loader
 * does not search. Loaded beforehand, it is found.
 */
void openBuiltins(const std::string& compilerPath, const std::string& version) {
  const size_t slash = compilerPath.rfind('/');
  if (slash == std::string::npos) return;
  dlopen((compilerPath.substr(0, slash + 1) + "libnvrtc-builtins.so." + version).c_str(), RTLD_NOW | RTLD_LOCAL);
}

}  // namespace

OpenedLibraries openLibraries(Vendor vendor, const LibraryNames& names) {
  auto libraries = std::make_shared<Libraries>();
  GpuApi& api = libraries->api;
  api.vendor = vendor;
  OpenedLibraries opened;
  opened.runtime = openOne(api, names.runtime, fillRuntime);
  opened.driver = openOne(api, names.driver, fillDriver);
  opened.compiler = openOne(api, names.compiler, fillCompiler);
  opened.collectives = openOne(api, names.collectives, fillCollectives);
  int number = 0, minor = 0;
  if (!opened.runtime.path.empty()) {
    if (api.runtimeVersion(&number) == code::success) opened.runtime.version = versionText(vendor, number);
    if (!opened.driver.path.empty() && api.driverVersion(&number) == code::success)
      libraries->driverVersion = opened.driver.version = versionText(vendor, number);
  }
  api.hasCompiler = !opened.compiler.path.empty();
  if (api.hasCompiler && api.compilerVersion(&number, &minor) == 0) {
    libraries->compilerVersion = opened.compiler.version = std::to_string(number) + "." + std::to_string(minor);
    if (vendor == Vendor::Cuda) openBuiltins(opened.compiler.path, opened.compiler.version);
  }
  api.hasCollectives = !opened.collectives.path.empty();
  if (api.hasCollectives && api.collectivesVersion(&number) == collectives::success)
    opened.collectives.version = collectivesVersionText(number);
  if (!opened.runtime.path.empty() && !opened.driver.path.empty()) opened.libraries = std::move(libraries);
  return opened;
}

}  // namespace tensorferry::gpu
