// SPDX-License-Identifier: Apache-2.0
/*
 * The same driver under the names of HIP and hipRTC. Common error numbers and flags are the same; attributes, compiler
 * options and the structure of properties are not. Calls are counted and planned faults named by the CUDA names.
 */
#include <cstring>
#include <string>
#include <vector>

#include "abi.h"

using tensorferry::gpu::simulator::IpcHandle;
using tensorferry::gpu::simulator::Uuid;

#define FORWARD(hip, cuda, parameters, values) \
  extern "C" int cuda parameters;              \
  TENSORFERRY_SIM_API int hip parameters { return cuda values; }

FORWARD(hipGetDeviceCount, cudaGetDeviceCount, (int* a), (a))
FORWARD(hipSetDevice, cudaSetDevice, (int a), (a))
FORWARD(hipGetDevice, cudaGetDevice, (int* a), (a))
FORWARD(hipDeviceGetPCIBusId, cudaDeviceGetPCIBusId, (char* a, int b, int c), (a, b, c))
FORWARD(hipMemGetInfo, cudaMemGetInfo, (size_t* a, size_t* b), (a, b))
FORWARD(hipRuntimeGetVersion, cudaRuntimeGetVersion, (int* a), (a))
FORWARD(hipDriverGetVersion, cudaDriverGetVersion, (int* a), (a))
FORWARD(hipGetLastError, cudaGetLastError, (), ())
FORWARD(hipPeekAtLastError, cudaPeekAtLastError, (), ())
FORWARD(hipMalloc, cudaMalloc, (void** a, size_t b), (a, b))
FORWARD(hipFree, cudaFree, (void* a), (a))
FORWARD(hipHostMalloc, cudaHostAlloc, (void** a, size_t b, unsigned c), (a, b, c))
FORWARD(hipHostFree, cudaFreeHost, (void* a), (a))
FORWARD(hipHostRegister, cudaHostRegister, (void* a, size_t b, unsigned c), (a, b, c))
FORWARD(hipHostUnregister, cudaHostUnregister, (void* a), (a))
FORWARD(hipHostGetDevicePointer, cudaHostGetDevicePointer, (void** a, void* b, unsigned c), (a, b, c))
FORWARD(hipMemcpyAsync, cudaMemcpyAsync, (void* a, const void* b, size_t c, int d, void* e), (a, b, c, d, e))
FORWARD(hipMemcpy, cudaMemcpy, (void* a, const void* b, size_t c, int d), (a, b, c, d))
FORWARD(hipMemcpy2DAsync, cudaMemcpy2DAsync,
        (void* a, size_t b, const void* c, size_t d, size_t e, size_t f, int g, void* h), (a, b, c, d, e, f, g, h))
FORWARD(hipMemsetAsync, cudaMemsetAsync, (void* a, int b, size_t c, void* d), (a, b, c, d))
FORWARD(hipStreamCreateWithFlags, cudaStreamCreateWithFlags, (void** a, unsigned b), (a, b))
FORWARD(hipStreamCreateWithPriority, cudaStreamCreateWithPriority, (void** a, unsigned b, int c), (a, b, c))
FORWARD(hipStreamDestroy, cudaStreamDestroy, (void* a), (a))
FORWARD(hipStreamSynchronize, cudaStreamSynchronize, (void* a), (a))
FORWARD(hipStreamQuery, cudaStreamQuery, (void* a), (a))
FORWARD(hipStreamWaitEvent, cudaStreamWaitEvent, (void* a, void* b, unsigned c), (a, b, c))
FORWARD(hipEventCreateWithFlags, cudaEventCreateWithFlags, (void** a, unsigned b), (a, b))
FORWARD(hipEventDestroy, cudaEventDestroy, (void* a), (a))
FORWARD(hipEventRecord, cudaEventRecord, (void* a, void* b), (a, b))
FORWARD(hipEventQuery, cudaEventQuery, (void* a), (a))
FORWARD(hipEventSynchronize, cudaEventSynchronize, (void* a), (a))
FORWARD(hipEventElapsedTime, cudaEventElapsedTime, (float* a, void* b, void* c), (a, b, c))
FORWARD(hipDeviceCanAccessPeer, cudaDeviceCanAccessPeer, (int* a, int b, int c), (a, b, c))
FORWARD(hipDeviceEnablePeerAccess, cudaDeviceEnablePeerAccess, (int a, unsigned b), (a, b))
FORWARD(hipIpcGetMemHandle, cudaIpcGetMemHandle, (IpcHandle * a, void* b), (a, b))
FORWARD(hipIpcOpenMemHandle, cudaIpcOpenMemHandle, (void** a, IpcHandle b, unsigned c), (a, b, c))
FORWARD(hipIpcCloseMemHandle, cudaIpcCloseMemHandle, (void* a), (a))
FORWARD(hipIpcGetEventHandle, cudaIpcGetEventHandle, (IpcHandle * a, void* b), (a, b))
FORWARD(hipIpcOpenEventHandle, cudaIpcOpenEventHandle, (void** a, IpcHandle b), (a, b))
FORWARD(hipDeviceSynchronize, cudaDeviceSynchronize, (), ())
FORWARD(hipLaunchHostFunc, cudaLaunchHostFunc, (void* a, void (*b)(void*), void* c), (a, b, c))
FORWARD(hipInit, cuInit, (unsigned a), (a))
FORWARD(hipDeviceGet, cuDeviceGet, (int* a, int b), (a, b))
FORWARD(hipDeviceGetName, cuDeviceGetName, (char* a, int b, int c), (a, b, c))
FORWARD(hipDeviceGetUuid, cuDeviceGetUuid, (Uuid * a, int b), (a, b))
FORWARD(hipDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, (int a, unsigned* b, int* c), (a, b, c))
FORWARD(hipModuleLoadData, cuModuleLoadData, (void** a, const void* b), (a, b))
FORWARD(hipModuleUnload, cuModuleUnload, (void* a), (a))
FORWARD(hipModuleGetFunction, cuModuleGetFunction, (void** a, void* b, const char* c), (a, b, c))
FORWARD(hipModuleOccupancyMaxActiveBlocksPerMultiprocessor, cuOccupancyMaxActiveBlocksPerMultiprocessor,
        (int* a, void* b, int c, size_t d), (a, b, c, d))
FORWARD(hipPointerGetAttribute, cuPointerGetAttribute, (void* a, int b, uintptr_t c), (a, b, c))
FORWARD(hipMemGetAddressRange, cuMemGetAddressRange_v2, (uintptr_t* a, size_t* b, uintptr_t c), (a, b, c))
FORWARD(hipDrvGetErrorName, cuGetErrorName, (int a, const char** b), (a, b))
FORWARD(hipDrvGetErrorString, cuGetErrorString, (int a, const char** b), (a, b))
FORWARD(hiprtcVersion, nvrtcVersion, (int* a, int* b), (a, b))
FORWARD(hiprtcCreateProgram, nvrtcCreateProgram,
        (void** a, const char* b, const char* c, int d, const char* const* e, const char* const* f), (a, b, c, d, e, f))
FORWARD(hiprtcDestroyProgram, nvrtcDestroyProgram, (void** a), (a))
FORWARD(hiprtcGetCodeSize, nvrtcGetCUBINSize, (void* a, size_t* b), (a, b))
FORWARD(hiprtcGetCode, nvrtcGetCUBIN, (void* a, char* b), (a, b))
FORWARD(hiprtcGetProgramLogSize, nvrtcGetProgramLogSize, (void* a, size_t* b), (a, b))
FORWARD(hiprtcGetProgramLog, nvrtcGetProgramLog, (void* a, char* b), (a, b))

extern "C" const char* cudaGetErrorName(int);
extern "C" const char* cudaGetErrorString(int);
extern "C" const char* nvrtcGetErrorString(int);
extern "C" int cudaDeviceGetAttribute(int*, int, int);
extern "C" int nvrtcCompileProgram(void*, int, const char* const*);
extern "C" int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                              void**, void**);

namespace {

constexpr char machine[] = "gfx942";

/** HIP's number of an attribute to CUDA's; the others are not known here. */
int attributeOf(int hip) {
  switch (hip) {
    case 16:
      return 18;  // integrated
    case 23:
      return 75;
    case 61:
      return 76;
    case 63:
      return 16;
    default:
      return -1;
  }
}

}  // namespace

TENSORFERRY_SIM_API const char* hipGetErrorName(int error) {
  thread_local std::string name;
  name = cudaGetErrorName(error);
  if (name.rfind("cuda", 0) == 0) name.replace(0, 4, "hip");
  return name.c_str();
}
TENSORFERRY_SIM_API const char* hipGetErrorString(int error) { return cudaGetErrorString(error); }
TENSORFERRY_SIM_API const char* hiprtcGetErrorString(int error) { return nvrtcGetErrorString(error); }

TENSORFERRY_SIM_API int hipDeviceGetAttribute(int* value, int attribute, int device) {
  return cudaDeviceGetAttribute(value, attributeOf(attribute), device);
}

TENSORFERRY_SIM_API int hipGetDevicePropertiesR0600(void* properties, int device) {
  int value = 0;
  if (properties == nullptr) return tensorferry::gpu::code::invalidValue;
  if (const int answer = cudaDeviceGetAttribute(&value, 16, device); answer != 0) return answer;
  constexpr size_t bytes = 1472;
  constexpr size_t architectureAt = 1160;
  std::memset(properties, 0, bytes);
  std::strcpy(static_cast<char*>(properties), "Simulated-GPU");
  std::strcpy(static_cast<char*>(properties) + architectureAt, (std::string(machine) + ":sramecc+:xnack-").c_str());
  return 0;
}

TENSORFERRY_SIM_API int hiprtcCompileProgram(void* program, int count, const char* const* options) {
  int device = 0;
  int major = 0;
  int minor = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, 75, device);
  cudaDeviceGetAttribute(&minor, 76, device);
  const std::string own = "--gpu-architecture=sm_" + std::to_string(10 * major + minor);
  std::vector<std::string> kept;
  for (int index = 0; index < count; index++) {
    const std::string option = options[index];
    const size_t equals = option.find('=');
    const std::string key = option.substr(0, equals);
    if (key == "-ffp-contract") continue;
    const bool architecture = key == "--gpu-architecture" || key == "--offload-arch";
    // One of its own machines is what the simulated device is.
    kept.push_back(architecture && option.compare(equals + 1, sizeof machine - 1, machine) == 0 ? own : option);
  }
  std::vector<const char*> pointers;
  for (const auto& option : kept) pointers.push_back(option.c_str());
  return nvrtcCompileProgram(program, static_cast<int>(pointers.size()), pointers.data());
}

TENSORFERRY_SIM_API int hipModuleLaunchKernel(void* function, unsigned gridX, unsigned gridY, unsigned gridZ,
                                              unsigned blockX, unsigned blockY, unsigned blockZ, unsigned shared,
                                              void* stream, void** parameters, void** extra) {
  // The list of extras ends with 3 here, not with null.
  void* list[5] = {};
  if (extra != nullptr)
    for (size_t at = 0; at < 4 && extra[at] != reinterpret_cast<void*>(3); at++) list[at] = extra[at];
  return cuLaunchKernel(function, gridX, gridY, gridZ, blockX, blockY, blockZ, shared, stream, parameters,
                        extra == nullptr ? nullptr : list);
}
