// SPDX-License-Identifier: Apache-2.0
/*
 * The calls under test, as their users declare them.
 */
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi.h"
#include "simulator_control.h"

using tensorferry::gpu::simulator::IpcHandle;
using tensorferry::gpu::simulator::NcclConfig;
using tensorferry::gpu::simulator::PointerAttributes;
using tensorferry::gpu::simulator::UniqueId;

extern "C" {
int cudaGetDeviceCount(int*);
int cudaSetDevice(int);
int cudaGetDevice(int*);
int cudaDeviceGetAttribute(int*, int, int);
int cudaDeviceGetPCIBusId(char*, int, int);
int cudaMemGetInfo(size_t*, size_t*);
const char* cudaGetErrorName(int);
const char* cudaGetErrorString(int);
int cudaGetLastError();
int cudaPeekAtLastError();
int cudaMalloc(void**, size_t);
int cudaFree(void*);
int cudaHostAlloc(void**, size_t, unsigned);
int cudaFreeHost(void*);
int cudaHostRegister(void*, size_t, unsigned);
int cudaHostUnregister(void*);
int cudaHostGetDevicePointer(void**, void*, unsigned);
int cudaMemcpyAsync(void*, const void*, size_t, int, void*);
int cudaMemcpy(void*, const void*, size_t, int);
int cudaMemcpy2DAsync(void*, size_t, const void*, size_t, size_t, size_t, int, void*);
int cudaMemsetAsync(void*, int, size_t, void*);
int cudaStreamCreateWithFlags(void**, unsigned);
int cudaStreamCreateWithPriority(void**, unsigned, int);
int cudaStreamDestroy(void*);
int cudaStreamSynchronize(void*);
int cudaStreamQuery(void*);
int cudaStreamWaitEvent(void*, void*, unsigned);
int cudaEventCreateWithFlags(void**, unsigned);
int cudaEventDestroy(void*);
int cudaEventRecord(void*, void*);
int cudaEventQuery(void*);
int cudaEventSynchronize(void*);
int cudaEventElapsedTime(float*, void*, void*);
int cudaDeviceCanAccessPeer(int*, int, int);
int cudaDeviceEnablePeerAccess(int, unsigned);
int cudaIpcGetMemHandle(IpcHandle*, void*);
int cudaIpcOpenMemHandle(void**, IpcHandle, unsigned);
int cudaIpcCloseMemHandle(void*);
int cudaIpcGetEventHandle(IpcHandle*, void*);
int cudaIpcOpenEventHandle(void**, IpcHandle);
int cudaDeviceSynchronize();
int cudaPointerGetAttributes(PointerAttributes*, const void*);
int cudaLaunchHostFunc(void*, void (*)(void*), void*);
int cuInit(unsigned);
int cuDeviceGet(int*, int);
int cuDeviceGetName(char*, int, int);
int cuModuleLoadData(void**, const void*);
int cuModuleUnload(void*);
int cuModuleGetFunction(void**, void*, const char*);
int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
int cuPointerGetAttribute(void*, int, uintptr_t);
int cuMemGetAddressRange_v2(uintptr_t*, size_t*, uintptr_t);
int cuGetErrorName(int, const char**);
int nvrtcVersion(int*, int*);
int nvrtcGetNumSupportedArchs(int*);
int nvrtcGetSupportedArchs(int*);
int nvrtcCreateProgram(void**, const char*, const char*, int, const char* const*, const char* const*);
int nvrtcCompileProgram(void*, int, const char* const*);
int nvrtcGetPTXSize(void*, size_t*);
int nvrtcGetPTX(void*, char*);
int nvrtcGetCUBINSize(void*, size_t*);
int nvrtcGetCUBIN(void*, char*);
int nvrtcGetProgramLogSize(void*, size_t*);
int nvrtcGetProgramLog(void*, char*);
int nvrtcDestroyProgram(void**);
int ncclGetVersion(int*);
int ncclGetUniqueId(UniqueId*);
int ncclCommInitRank(void**, int, UniqueId, int);
int ncclCommInitRankConfig(void**, int, UniqueId, int, const NcclConfig*);
int ncclCommAbort(void*);
int ncclCommDestroy(void*);
int ncclCommFinalize(void*);
int ncclCommGetAsyncError(void*, int*);
int ncclCommCount(void*, int*);
int ncclCommUserRank(void*, int*);
int ncclGroupStart();
int ncclGroupEnd();
int ncclSend(const void*, size_t, int, int, void*, void*);
int ncclRecv(void*, size_t, int, int, void*, void*);
const char* ncclGetErrorString(int);
const char* ncclGetLastError(void*);
int hipGetDeviceCount(int*);
int hipDeviceGetAttribute(int*, int, int);
int hipMalloc(void**, size_t);
int hipFree(void*);
const char* hipGetErrorName(int);
int hiprtcCreateProgram(void**, const char*, const char*, int, const char* const*, const char* const*);
int hiprtcCompileProgram(void*, int, const char* const*);
int hiprtcGetCodeSize(void*, size_t*);
int hiprtcGetCode(void*, char*);
int hiprtcDestroyProgram(void**);
int hipModuleLoadData(void**, const void*);
int hipModuleUnload(void*);
}
