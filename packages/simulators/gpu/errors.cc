// SPDX-License-Identifier: Apache-2.0
/*
 * Names and texts of error numbers, and the last error of a thread.
 */
#include "world.h"

namespace tensorferry::gpu::simulator {
namespace {

struct Known {
  int number;
  const char* runtime;
  const char* driver;
  const char* text;
};

constexpr Known known[] = {
    {0, "cudaSuccess", "CUDA_SUCCESS", "no error"},
    {1, "cudaErrorInvalidValue", "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "cudaErrorInitializationError", "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "cudaErrorCudartUnloading", "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {9, "cudaErrorInvalidConfiguration", nullptr, "invalid configuration argument"},
    {12, "cudaErrorInvalidPitchValue", nullptr, "invalid pitch argument"},
    {17, "cudaErrorInvalidDevicePointer", nullptr, "invalid device pointer"},
    {21, "cudaErrorInvalidMemcpyDirection", nullptr, "invalid copy direction for memcpy"},
    {35, "cudaErrorInsufficientDriver", nullptr, "CUDA driver version is insufficient for CUDA runtime version"},
    {36, "cudaErrorCallRequiresNewerDriver", "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER",
     "API call is not supported in the installed CUDA driver"},
    {46, "cudaErrorDevicesUnavailable", "CUDA_ERROR_DEVICE_UNAVAILABLE",
     "CUDA-capable device(s) is/are busy or unavailable"},
    {98, "cudaErrorInvalidDeviceFunction", nullptr, "invalid device function"},
    {100, "cudaErrorNoDevice", "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "cudaErrorInvalidKernelImage", "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "cudaErrorDeviceUninitialized", "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {205, "cudaErrorMapBufferObjectFailed", "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {209, "cudaErrorNoKernelImageForDevice", "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {214, "cudaErrorECCUncorrectable", "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {217, "cudaErrorPeerAccessUnsupported", "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
     "peer access is not supported between these two devices"},
    {218, "cudaErrorInvalidPtx", "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {222, "cudaErrorUnsupportedPtxVersion", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
     "the provided PTX was compiled with an unsupported toolchain"},
    {304, "cudaErrorOperatingSystem", "CUDA_ERROR_OPERATING_SYSTEM",
     "OS call failed or operation not supported on this OS"},
    {400, "cudaErrorInvalidResourceHandle", "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "cudaErrorSymbolNotFound", "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "cudaErrorNotReady", "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "cudaErrorIllegalAddress", "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "cudaErrorLaunchOutOfResources", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
     "too many resources requested for launch"},
    {702, "cudaErrorLaunchTimeout", "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {704, "cudaErrorPeerAccessAlreadyEnabled", "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
     "peer access is already enabled"},
    {705, "cudaErrorPeerAccessNotEnabled", "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled"},
    {709, "cudaErrorContextIsDestroyed", "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {711, "cudaErrorTooManyPeers", "CUDA_ERROR_TOO_MANY_PEERS", "peer mapping resources exhausted"},
    {712, "cudaErrorHostMemoryAlreadyRegistered", "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {713, "cudaErrorHostMemoryNotRegistered", "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {716, "cudaErrorMisalignedAddress", "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {719, "cudaErrorLaunchFailure", "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {800, "cudaErrorNotPermitted", "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "cudaErrorNotSupported", "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {802, "cudaErrorSystemNotReady", "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {999, "cudaErrorUnknown", "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const Known* find(int number) {
  for (const auto& one : known)
    if (one.number == number) return &one;
  return nullptr;
}

}  // namespace

TENSORFERRY_SIM_API const char* cudaGetErrorName(int error) {
  const Known* one = find(error);
  return one == nullptr ? "unrecognized error code" : one->runtime;
}

TENSORFERRY_SIM_API const char* cudaGetErrorString(int error) {
  const Known* one = find(error);
  return one == nullptr ? "unrecognized error code" : one->text;
}

TENSORFERRY_SIM_API int cudaGetLastError() {
  return guarded("cudaGetLastError", code::unknown, [](Call& call) { return std::exchange(call.thread.lastError, 0); });
}

TENSORFERRY_SIM_API int cudaPeekAtLastError() {
  return guarded("cudaPeekAtLastError", code::unknown, [](Call& call) { return call.thread.lastError; });
}

TENSORFERRY_SIM_API int cuGetErrorName(int error, const char** text) {
  const Known* one = find(error);
  if (text == nullptr || one == nullptr || one->driver == nullptr) return code::invalidValue;
  *text = one->driver;
  return 0;
}

TENSORFERRY_SIM_API int cuGetErrorString(int error, const char** text) {
  const Known* one = find(error);
  if (text == nullptr || one == nullptr || one->driver == nullptr) return code::invalidValue;
  *text = one->text;
  return 0;
}

}  // namespace tensorferry::gpu::simulator
