// SPDX-License-Identifier: Apache-2.0
/*
 * What of Level Zero's interface is used, in declarations of our own: nothing of the vendor's is needed to build. Plain
 * values; any thread.
 *
 * Invariant: every structure has the layout that the interface states for 64-bit machines; the assertions below hold the
 * sizes and offsets that were read from its specification. Also the simulated driver is written against this file.
 */
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorferry::xpu::ze {

using Result = uint32_t;

namespace code {
inline constexpr Result success = 0, notReady = 1, deviceLost = 0x70000001, outOfHostMemory = 0x70000002,
                        outOfDeviceMemory = 0x70000003, insufficientPermissions = 0x70010000, notAvailable = 0x70010001,
                        uninitialised = 0x78000001, unsupportedVersion = 0x78000002, unsupportedFeature = 0x78000003,
                        invalidArgument = 0x78000004, invalidNullHandle = 0x78000005, handleInUse = 0x78000006,
                        invalidNullPointer = 0x78000007, invalidSize = 0x78000008, unsupportedSize = 0x78000009,
                        unsupportedAlignment = 0x7800000a, invalidSynchronization = 0x7800000b,
                        invalidEnumeration = 0x7800000c, unsupportedEnumeration = 0x7800000d,
                        overlappingRegions = 0x7800001a, unknown = 0x7ffffffe;
}

/** Objects of the driver; tags keep them apart. */
template <typename Tag>
struct Handle;
using DriverHandle = Handle<struct DriverTag>*;
using DeviceHandle = Handle<struct DeviceTag>*;
using ContextHandle = Handle<struct ContextTag>*;
using ListHandle = Handle<struct ListTag>*;
using PoolHandle = Handle<struct PoolTag>*;
using EventHandle = Handle<struct EventTag>*;

/** Says which structure follows; the driver reads it first. */
enum class Kind : uint32_t {
  DriverProperties = 0x1,
  DeviceProperties = 0x3,
  QueueGroupProperties = 0x6,
  MemoryProperties = 0x7,
  ContextDescription = 0xd,
  QueueDescription = 0xe,
  EventPoolDescription = 0x10,
  EventDescription = 0x11,
  DeviceMemoryDescription = 0x15,
  HostMemoryDescription = 0x16,
  RelaxedLimits = 0x20001,
};

inline constexpr uint32_t gpuDevice = 1;
inline constexpr uint32_t groupCopies = 2, groupComputes = 1;
inline constexpr uint32_t queueInOrder = 2;
inline constexpr uint32_t asynchronous = 2;
inline constexpr uint32_t poolHostVisible = 1, poolTimestamps = 4;
inline constexpr uint32_t scopeHost = 4;
/** Versions are major << 16 | minor. From this one on drivers know lists that keep the order. */
inline constexpr uint32_t versionWithInOrder = (1 << 16) | 7;

struct DriverProperties {
  Kind kind = Kind::DriverProperties;
  void* next = nullptr;
  uint8_t uuid[16] = {};
  uint32_t driverVersion = 0;
};

struct DeviceProperties {
  Kind kind = Kind::DeviceProperties;
  void* next = nullptr;
  uint32_t type = 0, vendorId = 0, deviceId = 0, flags = 0, subdeviceId = 0, coreClockRate = 0;
  uint64_t maxAllocationBytes = 0;
  uint32_t maxHardwareContexts = 0, maxQueuePriority = 0, threadsPerUnit = 0, simdWidth = 0, unitsPerSubslice = 0,
           subslicesPerSlice = 0, slices = 0;
  /** Nanoseconds per tick. */
  uint64_t timerResolution = 0;
  uint32_t timestampValidBits = 0, kernelTimestampValidBits = 0;
  uint8_t uuid[16] = {};
  char name[256] = {};
};

struct MemoryProperties {
  Kind kind = Kind::MemoryProperties;
  void* next = nullptr;
  uint32_t flags = 0, maxClockRate = 0, maxBusWidth = 0;
  uint64_t totalBytes = 0;
  char name[256] = {};
};

struct QueueGroupProperties {
  Kind kind = Kind::QueueGroupProperties;
  void* next = nullptr;
  uint32_t flags = 0;
  size_t maxFillPatternBytes = 0;
  uint32_t queues = 0;
};

struct ContextDescription {
  Kind kind = Kind::ContextDescription;
  const void* next = nullptr;
  uint32_t flags = 0;
};

struct QueueDescription {
  Kind kind = Kind::QueueDescription;
  const void* next = nullptr;
  uint32_t ordinal = 0, index = 0, flags = 0, mode = asynchronous, priority = 0;
};

struct EventPoolDescription {
  Kind kind = Kind::EventPoolDescription;
  const void* next = nullptr;
  uint32_t flags = poolHostVisible, count = 0;
};

struct EventDescription {
  Kind kind = Kind::EventDescription;
  const void* next = nullptr;
  uint32_t index = 0, signal = scopeHost, wait = scopeHost;
};

struct DeviceMemoryDescription {
  Kind kind = Kind::DeviceMemoryDescription;
  const void* next = nullptr;
  uint32_t flags = 0, ordinal = 0;
};

/** Follows a memory description: lifts the limit of the size of one allocation. */
struct RelaxedLimits {
  Kind kind = Kind::RelaxedLimits;
  const void* next = nullptr;
  uint32_t flags = 1;
};

struct HostMemoryDescription {
  Kind kind = Kind::HostMemoryDescription;
  const void* next = nullptr;
  uint32_t flags = 0;
};

struct CopyRegion {
  uint32_t originX = 0, originY = 0, originZ = 0, width = 0, height = 0, depth = 0;
};

struct TimestampPair {
  uint64_t start = 0, end = 0;
};

struct KernelTimestamps {
  TimestampPair global, context;
};

static_assert(sizeof(void*) == 8, "Level Zero exists on 64-bit machines only");
static_assert(sizeof(DriverProperties) == 40 && offsetof(DriverProperties, driverVersion) == 32);
static_assert(sizeof(DeviceProperties) == 368 && offsetof(DeviceProperties, maxAllocationBytes) == 40 &&
              offsetof(DeviceProperties, timerResolution) == 80 && offsetof(DeviceProperties, name) == 112);
static_assert(sizeof(MemoryProperties) == 296 && offsetof(MemoryProperties, totalBytes) == 32);
static_assert(sizeof(QueueGroupProperties) == 40 && offsetof(QueueGroupProperties, queues) == 32);
static_assert(sizeof(ContextDescription) == 24 && sizeof(QueueDescription) == 40 && sizeof(EventPoolDescription) == 24);
static_assert(sizeof(EventDescription) == 32 && sizeof(DeviceMemoryDescription) == 24 &&
              sizeof(HostMemoryDescription) == 24 && sizeof(RelaxedLimits) == 24);
static_assert(sizeof(CopyRegion) == 24 && sizeof(KernelTimestamps) == 32);

/** A function of the loader with its name, for error messages. */
template <typename Signature>
struct Entry;
template <typename... Values>
struct Entry<Result(Values...)> {
  const char* name = "";
  Result (*function)(Values...) = nullptr;
  Result operator()(Values... values) const { return function(values...); }
};

/** (member, name, signature) of each function; the loader of version 1.0 has all of them. */
#define TENSORFERRY_LEVEL_ZERO_FUNCTIONS(X)                                                                          \
  X(initialise, zeInit, ze::Result(uint32_t))                                                                        \
  X(drivers, zeDriverGet, ze::Result(uint32_t*, ze::DriverHandle*))                                                  \
  X(driverApiVersion, zeDriverGetApiVersion, ze::Result(ze::DriverHandle, uint32_t*))                                \
  X(driverProperties, zeDriverGetProperties, ze::Result(ze::DriverHandle, ze::DriverProperties*))                    \
  X(extensionFunction, zeDriverGetExtensionFunctionAddress, ze::Result(ze::DriverHandle, const char*, void**))       \
  X(devices, zeDeviceGet, ze::Result(ze::DriverHandle, uint32_t*, ze::DeviceHandle*))                                \
  X(deviceProperties, zeDeviceGetProperties, ze::Result(ze::DeviceHandle, ze::DeviceProperties*))                    \
  X(memoryProperties, zeDeviceGetMemoryProperties, ze::Result(ze::DeviceHandle, uint32_t*, ze::MemoryProperties*))   \
  X(queueGroups, zeDeviceGetCommandQueueGroupProperties,                                                             \
    ze::Result(ze::DeviceHandle, uint32_t*, ze::QueueGroupProperties*))                                              \
  X(createContext, zeContextCreate, ze::Result(ze::DriverHandle, const ze::ContextDescription*, ze::ContextHandle*)) \
  X(destroyContext, zeContextDestroy, ze::Result(ze::ContextHandle))                                                 \
  X(createList, zeCommandListCreateImmediate,                                                                        \
    ze::Result(ze::ContextHandle, ze::DeviceHandle, const ze::QueueDescription*, ze::ListHandle*))                   \
  X(destroyList, zeCommandListDestroy, ze::Result(ze::ListHandle))                                                   \
  X(barrier, zeCommandListAppendBarrier, ze::Result(ze::ListHandle, ze::EventHandle, uint32_t, ze::EventHandle*))    \
  X(copy, zeCommandListAppendMemoryCopy,                                                                             \
    ze::Result(ze::ListHandle, void*, const void*, size_t, ze::EventHandle, uint32_t, ze::EventHandle*))             \
  X(copyRegion, zeCommandListAppendMemoryCopyRegion,                                                                 \
    ze::Result(ze::ListHandle, void*, const ze::CopyRegion*, uint32_t, uint32_t, const void*, const ze::CopyRegion*, \
               uint32_t, uint32_t, ze::EventHandle, uint32_t, ze::EventHandle*))                                     \
  X(fill, zeCommandListAppendMemoryFill,                                                                             \
    ze::Result(ze::ListHandle, void*, const void*, size_t, size_t, ze::EventHandle, uint32_t, ze::EventHandle*))     \
  X(createPool, zeEventPoolCreate,                                                                                   \
    ze::Result(ze::ContextHandle, const ze::EventPoolDescription*, uint32_t, ze::DeviceHandle*, ze::PoolHandle*))    \
  X(destroyPool, zeEventPoolDestroy, ze::Result(ze::PoolHandle))                                                     \
  X(createEvent, zeEventCreate, ze::Result(ze::PoolHandle, const ze::EventDescription*, ze::EventHandle*))           \
  X(destroyEvent, zeEventDestroy, ze::Result(ze::EventHandle))                                                       \
  X(signalEvent, zeEventHostSignal, ze::Result(ze::EventHandle))                                                     \
  X(waitEvent, zeEventHostSynchronize, ze::Result(ze::EventHandle, uint64_t))                                        \
  X(queryEvent, zeEventQueryStatus, ze::Result(ze::EventHandle))                                                     \
  X(resetEvent, zeEventHostReset, ze::Result(ze::EventHandle))                                                       \
  X(eventTimes, zeEventQueryKernelTimestamp, ze::Result(ze::EventHandle, ze::KernelTimestamps*))                     \
  X(allocateDevice, zeMemAllocDevice,                                                                                \
    ze::Result(ze::ContextHandle, const ze::DeviceMemoryDescription*, size_t, size_t, ze::DeviceHandle, void**))     \
  X(allocateHost, zeMemAllocHost,                                                                                    \
    ze::Result(ze::ContextHandle, const ze::HostMemoryDescription*, size_t, size_t, void**))                         \
  X(free, zeMemFree, ze::Result(ze::ContextHandle, void*))

struct Api {
#define TENSORFERRY_LEVEL_ZERO_MEMBER(member, name, ...) Entry<__VA_ARGS__> member;
  TENSORFERRY_LEVEL_ZERO_FUNCTIONS(TENSORFERRY_LEVEL_ZERO_MEMBER)
#undef TENSORFERRY_LEVEL_ZERO_MEMBER
};

/** Functions that a driver may have beside its tables. */
inline constexpr const char* importName = "zexDriverImportExternalPointer";
inline constexpr const char* releaseName = "zexDriverReleaseImportedPointer";
using ImportFunction = Result(DriverHandle, void*, size_t);
using ReleaseFunction = Result(DriverHandle, void*);

}  // namespace tensorferry::xpu::ze
