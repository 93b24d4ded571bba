// SPDX-License-Identifier: Apache-2.0
/*
 * The vendor's functions as this project uses them: one table of pointers with our names, filled from CUDA's or HIP's names.
 *
 * No vendor header is included; types are opaque pointers and plain structs of the vendor's layout. The table is filled once
 * and then only read; any thread.
 * Invariant: every entry of runtime and driver that is not marked optional can be called. Compiler and collectives can be
 * called where `hasCompiler` and `hasCollectives` say so. Entries know the vendor's name of their function, for errors.
 */
#pragma once

#include <cstddef>
#include <cstdint>

#include <tensorferry_gpu/gpu_codes.h>

namespace tensorferry::gpu {

using StreamHandle = void*;
using EventHandle = void*;
using ModuleHandle = void*;
using FunctionHandle = void*;
using CompilationHandle = void*;
using CommunicatorHandle = void*;

struct IpcHandle {
  uint8_t bytes[64];
};

struct UniqueId {
  uint8_t bytes[128];
};

struct Uuid {
  uint8_t bytes[16];
};

/** Head of ncclConfig_t as of version 2.14: later libraries read `size` and fill in what is missing. */
struct CommunicatorConfig {
  size_t size = sizeof(CommunicatorConfig);
  uint32_t magic = 0xcafebeef;
  uint32_t version = 21400;
  int32_t blocking = 0;
  /** Later versions have a field here; the smallest number means "not set". */
  int32_t unset = INT32_MIN;
};
static_assert(sizeof(CommunicatorConfig) == 24);

enum class Vendor : uint8_t { Cuda, Rocm };

/** A function of a vendor's library. */
template <typename Signature>
struct Entry;

template <typename Answer, typename... Values>
struct Entry<Answer(Values...)> {
  Answer (*function)(Values...) = nullptr;
  const char* name = "";

  explicit operator bool() const noexcept { return function != nullptr; }
  Answer operator()(Values... values) const noexcept { return function(values...); }
};

// Per function: our name, its signature, the name in CUDA, the name in HIP. An empty name: the vendor has no such function.

#define TENSORFERRY_GPU_RUNTIME(X)                                                                       \
  X(getDeviceCount, int(int*), "cudaGetDeviceCount", "hipGetDeviceCount")                                \
  X(setDevice, int(int), "cudaSetDevice", "hipSetDevice")                                                \
  X(getDevice, int(int*), "cudaGetDevice", "hipGetDevice")                                               \
  X(getAttribute, int(int*, int, int), "cudaDeviceGetAttribute", "hipDeviceGetAttribute")                \
  X(getBusId, int(char*, int, int), "cudaDeviceGetPCIBusId", "hipDeviceGetPCIBusId")                     \
  X(getMemoryInfo, int(size_t*, size_t*), "cudaMemGetInfo", "hipMemGetInfo")                             \
  X(runtimeVersion, int(int*), "cudaRuntimeGetVersion", "hipRuntimeGetVersion")                          \
  X(driverVersion, int(int*), "cudaDriverGetVersion", "hipDriverGetVersion")                             \
  X(errorName, const char*(int), "cudaGetErrorName", "hipGetErrorName")                                  \
  X(errorText, const char*(int), "cudaGetErrorString", "hipGetErrorString")                              \
  X(clearError, int(), "cudaGetLastError", "hipGetLastError")                                            \
  X(allocate, int(void**, size_t), "cudaMalloc", "hipMalloc")                                            \
  X(release, int(void*), "cudaFree", "hipFree")                                                          \
  X(allocateHost, int(void**, size_t, unsigned), "cudaHostAlloc", "hipHostMalloc")                       \
  X(releaseHost, int(void*), "cudaFreeHost", "hipHostFree")                                              \
  X(registerHost, int(void*, size_t, unsigned), "cudaHostRegister", "hipHostRegister")                   \
  X(unregisterHost, int(void*), "cudaHostUnregister", "hipHostUnregister")                               \
  X(copy, int(void*, const void*, size_t, int, StreamHandle), "cudaMemcpyAsync", "hipMemcpyAsync")       \
  X(createStream, int(StreamHandle*, unsigned), "cudaStreamCreateWithFlags", "hipStreamCreateWithFlags") \
  X(destroyStream, int(StreamHandle), "cudaStreamDestroy", "hipStreamDestroy")                           \
  X(queryStream, int(StreamHandle), "cudaStreamQuery", "hipStreamQuery")                                 \
  X(waitEvent, int(StreamHandle, EventHandle, unsigned), "cudaStreamWaitEvent", "hipStreamWaitEvent")    \
  X(createEvent, int(EventHandle*, unsigned), "cudaEventCreateWithFlags", "hipEventCreateWithFlags")     \
  X(destroyEvent, int(EventHandle), "cudaEventDestroy", "hipEventDestroy")                               \
  X(recordEvent, int(EventHandle, StreamHandle), "cudaEventRecord", "hipEventRecord")                    \
  X(queryEvent, int(EventHandle), "cudaEventQuery", "hipEventQuery")                                     \
  X(elapsed, int(float*, EventHandle, EventHandle), "cudaEventElapsedTime", "hipEventElapsedTime")       \
  X(canAccessPeer, int(int*, int, int), "cudaDeviceCanAccessPeer", "hipDeviceCanAccessPeer")             \
  X(enablePeer, int(int, unsigned), "cudaDeviceEnablePeerAccess", "hipDeviceEnablePeerAccess")           \
  X(exportMemory, int(IpcHandle*, void*), "cudaIpcGetMemHandle", "hipIpcGetMemHandle")                   \
  X(importMemory, int(void**, IpcHandle, unsigned), "cudaIpcOpenMemHandle", "hipIpcOpenMemHandle")       \
  X(closeImport, int(void*), "cudaIpcCloseMemHandle", "hipIpcCloseMemHandle")

#define TENSORFERRY_GPU_RUNTIME_OPTIONAL(X)                            \
  X(getProperties, int(void*, int), "", "hipGetDevicePropertiesR0600") \
  X(importEvent, int(EventHandle*, IpcHandle), "cudaIpcOpenEventHandle", "hipIpcOpenEventHandle")

#define TENSORFERRY_GPU_DRIVER(X)                                                                                   \
  X(initialise, int(unsigned), "cuInit", "hipInit")                                                                 \
  X(getDriverDevice, int(int*, int), "cuDeviceGet", "hipDeviceGet")                                                 \
  X(getName, int(char*, int, int), "cuDeviceGetName", "hipDeviceGetName")                                           \
  X(getUuid, int(Uuid*, int), "cuDeviceGetUuid", "hipDeviceGetUuid")                                                \
  X(loadModule, int(ModuleHandle*, const void*), "cuModuleLoadData", "hipModuleLoadData")                           \
  X(unloadModule, int(ModuleHandle), "cuModuleUnload", "hipModuleUnload")                                           \
  X(getFunction, int(FunctionHandle*, ModuleHandle, const char*), "cuModuleGetFunction", "hipModuleGetFunction")    \
  X(launch,                                                                                                         \
    int(FunctionHandle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, StreamHandle, void**, \
        void**),                                                                                                    \
    "cuLaunchKernel", "hipModuleLaunchKernel")                                                                      \
  X(pointerAttribute, int(void*, int, uint64_t), "cuPointerGetAttribute", "hipPointerGetAttribute")                 \
  X(addressRange, int(uint64_t*, size_t*, uint64_t), "cuMemGetAddressRange_v2", "hipMemGetAddressRange")

#define TENSORFERRY_GPU_DRIVER_OPTIONAL(X)                                                                           \
  X(contextState, int(int, unsigned*, int*), "cuDevicePrimaryCtxGetState", "hipDevicePrimaryCtxGetState")            \
  X(driverErrorName, int(int, const char**), "cuGetErrorName", "hipDrvGetErrorName")                                 \
  X(driverErrorText, int(int, const char**), "cuGetErrorString", "hipDrvGetErrorString")                             \
  X(writeValue, int(StreamHandle, uint64_t, uint32_t, unsigned), "cuStreamWriteValue32_v2", "hipStreamWriteValue32") \
  X(queueToDevice, int(uint64_t, const void*, size_t, StreamHandle), "cuMemcpyHtoDAsync_v2", "")                     \
  X(queueEvent, int(EventHandle, StreamHandle), "cuEventRecord", "")                                                 \
  X(queueWait, int(StreamHandle, EventHandle, unsigned), "cuStreamWaitEvent", "")                                    \
  X(occupancy, int(int*, FunctionHandle, int, size_t), "cuOccupancyMaxActiveBlocksPerMultiprocessor",                \
    "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor")

#define TENSORFERRY_GPU_COMPILER(X)                                                                                    \
  X(compilerVersion, int(int*, int*), "nvrtcVersion", "hiprtcVersion")                                                 \
  X(compilerErrorText, const char*(int), "nvrtcGetErrorString", "hiprtcGetErrorString")                                \
  X(createCompilation, int(CompilationHandle*, const char*, const char*, int, const char* const*, const char* const*), \
    "nvrtcCreateProgram", "hiprtcCreateProgram")                                                                       \
  X(destroyCompilation, int(CompilationHandle*), "nvrtcDestroyProgram", "hiprtcDestroyProgram")                        \
  X(compile, int(CompilationHandle, int, const char* const*), "nvrtcCompileProgram", "hiprtcCompileProgram")           \
  X(imageSize, int(CompilationHandle, size_t*), "nvrtcGetCUBINSize", "hiprtcGetCodeSize")                              \
  X(image, int(CompilationHandle, char*), "nvrtcGetCUBIN", "hiprtcGetCode")                                            \
  X(logSize, int(CompilationHandle, size_t*), "nvrtcGetProgramLogSize", "hiprtcGetProgramLogSize")                     \
  X(log, int(CompilationHandle, char*), "nvrtcGetProgramLog", "hiprtcGetProgramLog")

#define TENSORFERRY_GPU_COMPILER_OPTIONAL(X)                              \
  X(assemblySize, int(CompilationHandle, size_t*), "nvrtcGetPTXSize", "") \
  X(assembly, int(CompilationHandle, char*), "nvrtcGetPTX", "")           \
  X(architectureCount, int(int*), "nvrtcGetNumSupportedArchs", "")        \
  X(architectures, int(int*), "nvrtcGetSupportedArchs", "")

#define TENSORFERRY_GPU_COLLECTIVES(X)                                                                     \
  X(collectivesVersion, int(int*), "ncclGetVersion", "ncclGetVersion")                                     \
  X(collectivesErrorText, const char*(int), "ncclGetErrorString", "ncclGetErrorString")                    \
  X(createUniqueId, int(UniqueId*), "ncclGetUniqueId", "ncclGetUniqueId")                                  \
  X(connectBlocking, int(CommunicatorHandle*, int, UniqueId, int), "ncclCommInitRank", "ncclCommInitRank") \
  X(abortCommunicator, int(CommunicatorHandle), "ncclCommAbort", "ncclCommAbort")                          \
  X(destroyCommunicator, int(CommunicatorHandle), "ncclCommDestroy", "ncclCommDestroy")                    \
  X(asyncError, int(CommunicatorHandle, int*), "ncclCommGetAsyncError", "ncclCommGetAsyncError")           \
  X(beginGroup, int(), "ncclGroupStart", "ncclGroupStart")                                                 \
  X(endGroup, int(), "ncclGroupEnd", "ncclGroupEnd")                                                       \
  X(send, int(const void*, size_t, int, int, CommunicatorHandle, StreamHandle), "ncclSend", "ncclSend")    \
  X(receive, int(void*, size_t, int, int, CommunicatorHandle, StreamHandle), "ncclRecv", "ncclRecv")

#define TENSORFERRY_GPU_COLLECTIVES_OPTIONAL(X)                                                           \
  X(connect, int(CommunicatorHandle*, int, UniqueId, int, CommunicatorConfig*), "ncclCommInitRankConfig", \
    "ncclCommInitRankConfig")                                                                             \
  X(finalizeCommunicator, int(CommunicatorHandle), "ncclCommFinalize", "ncclCommFinalize")                \
  X(collectivesLastError, const char*(CommunicatorHandle), "ncclGetLastError", "ncclGetLastError")

struct GpuApi {
  Vendor vendor = Vendor::Cuda;
  bool hasCompiler = false, hasCollectives = false;

#define TENSORFERRY_GPU_DECLARE(member, signature, cuda, hip) Entry<signature> member;
  TENSORFERRY_GPU_RUNTIME(TENSORFERRY_GPU_DECLARE)
  TENSORFERRY_GPU_RUNTIME_OPTIONAL(TENSORFERRY_GPU_DECLARE)
  TENSORFERRY_GPU_DRIVER(TENSORFERRY_GPU_DECLARE)
  TENSORFERRY_GPU_DRIVER_OPTIONAL(TENSORFERRY_GPU_DECLARE)
  TENSORFERRY_GPU_COMPILER(TENSORFERRY_GPU_DECLARE)
  TENSORFERRY_GPU_COMPILER_OPTIONAL(TENSORFERRY_GPU_DECLARE)
  TENSORFERRY_GPU_COLLECTIVES(TENSORFERRY_GPU_DECLARE)
  TENSORFERRY_GPU_COLLECTIVES_OPTIONAL(TENSORFERRY_GPU_DECLARE)
#undef TENSORFERRY_GPU_DECLARE
};

// Numbers that both vendors share.

inline constexpr unsigned nonBlockingStream = 1;
inline constexpr unsigned untimedEvent = 2;
inline constexpr unsigned portableHostMemory = 1;
inline constexpr unsigned mappedHostMemory = 2;
inline constexpr unsigned lazyPeerAccess = 1;
/** Direction of a copy, found by the addresses. */
inline constexpr int inferredDirection = 4;
inline constexpr int hostToDevice = 1;

namespace pointer {
inline constexpr int memoryType = 2;
inline constexpr int deviceOrdinal = 9;
inline constexpr int canBeExported = 10;
/** Value of memoryType. */
inline constexpr uint32_t deviceMemory = 2;
}  // namespace pointer

/** Numbers of device attributes, which differ between the vendors. */
struct AttributeNumbers {
  int processors, major, minor;
};

inline constexpr AttributeNumbers attributeNumbers(Vendor vendor) noexcept {
  return vendor == Vendor::Cuda ? AttributeNumbers{16, 75, 76} : AttributeNumbers{63, 23, 61};
}

}  // namespace tensorferry::gpu
