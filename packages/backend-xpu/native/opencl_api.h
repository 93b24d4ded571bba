// SPDX-License-Identifier: Apache-2.0
/*
 * What of OpenCL's interface is used, in declarations of our own: nothing of the vendors' is needed to build. Plain values;
 * any thread.
 *
 * Invariant: numbers and types are the ones that the interface states for 64-bit machines.
 */
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorferry::xpu::cl {

namespace code {
inline constexpr int32_t success = 0, deviceNotFound = -1, allocationFailure = -4, outOfResources = -5,
                         outOfHostMemory = -6, profilingUnavailable = -7, waitListFailed = -14, invalidValue = -30,
                         invalidOperation = -59, noPlatform = -1001;
}

template <typename Tag>
struct Handle;
using PlatformHandle = Handle<struct PlatformTag>*;
using DeviceHandle = Handle<struct DeviceTag>*;
using ContextHandle = Handle<struct ContextTag>*;
using QueueHandle = Handle<struct QueueTag>*;
using EventHandle = Handle<struct EventTag>*;

inline constexpr uint64_t deviceCpu = 2, deviceGpu = 4, deviceAccelerator = 8, deviceAll = 0xffffffff;
inline constexpr uint32_t deviceType = 0x1000, deviceMaxAllocation = 0x1010, deviceGlobalMemory = 0x101f,
                          deviceName = 0x102b, driverVersion = 0x102d, deviceVersion = 0x102f,
                          deviceSvmCapabilities = 0x1053;
inline constexpr uint64_t svmCoarseBuffer = 1;
inline constexpr uint64_t memoryReadWrite = 1;
/** A property of a queue and its value. */
inline constexpr uint64_t queueProperties = 0x1093, queueProfiling = 2;
inline constexpr uint32_t eventStatus = 0x11d3;
inline constexpr int32_t statusComplete = 0;
inline constexpr uint32_t profilingStart = 0x1282, profilingEnd = 0x1283;

static_assert(sizeof(void*) == 8 && sizeof(size_t) == 8, "written for 64-bit machines");

using Notify = void(EventHandle, int32_t, void*);

template <typename Signature>
struct Entry;
template <typename Answer, typename... Values>
struct Entry<Answer(Values...)> {
  const char* name = "";
  Answer (*function)(Values...) = nullptr;
  Answer operator()(Values... values) const { return function(values...); }
};

/** (member, name, signature); all are part of OpenCL 2.0. */
#define TENSORFERRY_OPENCL_FUNCTIONS(X)                                                                              \
  X(platforms, clGetPlatformIDs, int32_t(uint32_t, PlatformHandle*, uint32_t*))                                      \
  X(devices, clGetDeviceIDs, int32_t(PlatformHandle, uint64_t, uint32_t, DeviceHandle*, uint32_t*))                  \
  X(deviceInfo, clGetDeviceInfo, int32_t(DeviceHandle, uint32_t, size_t, void*, size_t*))                            \
  X(createContext, clCreateContext,                                                                                  \
    ContextHandle(const intptr_t*, uint32_t, const DeviceHandle*, void (*)(const char*, const void*, size_t, void*), \
                  void*, int32_t*))                                                                                  \
  X(releaseContext, clReleaseContext, int32_t(ContextHandle))                                                        \
  X(createQueue, clCreateCommandQueueWithProperties,                                                                 \
    QueueHandle(ContextHandle, DeviceHandle, const uint64_t*, int32_t*))                                             \
  X(releaseQueue, clReleaseCommandQueue, int32_t(QueueHandle))                                                       \
  X(flush, clFlush, int32_t(QueueHandle))                                                                            \
  X(allocate, clSVMAlloc, void*(ContextHandle, uint64_t, size_t, uint32_t))                                          \
  X(free, clSVMFree, void(ContextHandle, void*))                                                                     \
  X(copy, clEnqueueSVMMemcpy,                                                                                        \
    int32_t(QueueHandle, uint32_t, void*, const void*, size_t, uint32_t, const EventHandle*, EventHandle*))          \
  X(fill, clEnqueueSVMMemFill,                                                                                       \
    int32_t(QueueHandle, void*, const void*, size_t, size_t, uint32_t, const EventHandle*, EventHandle*))            \
  X(marker, clEnqueueMarkerWithWaitList, int32_t(QueueHandle, uint32_t, const EventHandle*, EventHandle*))           \
  X(barrier, clEnqueueBarrierWithWaitList, int32_t(QueueHandle, uint32_t, const EventHandle*, EventHandle*))         \
  X(userEvent, clCreateUserEvent, EventHandle(ContextHandle, int32_t*))                                              \
  X(setUserEvent, clSetUserEventStatus, int32_t(EventHandle, int32_t))                                               \
  X(releaseEvent, clReleaseEvent, int32_t(EventHandle))                                                              \
  X(eventInfo, clGetEventInfo, int32_t(EventHandle, uint32_t, size_t, void*, size_t*))                               \
  X(eventCallback, clSetEventCallback, int32_t(EventHandle, int32_t, Notify*, void*))                                \
  X(eventProfile, clGetEventProfilingInfo, int32_t(EventHandle, uint32_t, size_t, void*, size_t*))

struct Api {
#define TENSORFERRY_OPENCL_MEMBER(member, name, ...) Entry<__VA_ARGS__> member;
  TENSORFERRY_OPENCL_FUNCTIONS(TENSORFERRY_OPENCL_MEMBER)
#undef TENSORFERRY_OPENCL_MEMBER
};

}  // namespace tensorferry::xpu::cl
