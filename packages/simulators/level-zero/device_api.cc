// SPDX-License-Identifier: Apache-2.0
/*
 * Drivers, devices, contexts and memory of the simulated driver. Device memory is host memory, filled with poison.
 */

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "api.h"
#include "world.h"

namespace tensorferry::xpu::simulator {
namespace {

constexpr uint8_t poison = 0xcb;
constexpr uint64_t driverNumber = 0x5e10ull << 48 | 1, deviceBase = 0x5e11ull << 48;

bool isDriver(ze::DriverHandle driver) { return reinterpret_cast<uint64_t>(driver) == driverNumber; }

bool isDevice(const World& world, ze::DeviceHandle device) {
  const uint64_t number = reinterpret_cast<uint64_t>(device) - deviceBase;
  return number < world.settings.devices;
}

/** Answers a count, or as many entries as there is room for. */
template <typename Entry, typename Make>
ze::Result list(uint32_t total, uint32_t* count, Entry* entries, Make make) {
  if (count == nullptr) return ze::code::invalidNullPointer;
  if (*count == 0 || entries == nullptr) {
    *count = total;
    return ze::code::success;
  }
  *count = std::min(*count, total);
  for (uint32_t i = 0; i < *count; i++) make(entries[i], i);
  return ze::code::success;
}

ze::Result initialise(uint32_t) {
  return guarded("zeInit", [](Call&) { return ze::code::success; });
}

ze::Result drivers(uint32_t* count, ze::DriverHandle* handles) {
  return guarded("zeDriverGet", [&](Call&) {
    return list(1, count, handles,
                [](auto& handle, uint32_t) { handle = reinterpret_cast<ze::DriverHandle>(driverNumber); });
  });
}

ze::Result driverApiVersion(ze::DriverHandle driver, uint32_t* version) {
  return guarded("zeDriverGetApiVersion", [&](Call& call) {
    if (!isDriver(driver)) return ze::code::invalidNullHandle;
    *version = call.world.settings.apiVersion;
    return ze::code::success;
  });
}

ze::Result driverProperties(ze::DriverHandle driver, ze::DriverProperties* properties) {
  return guarded("zeDriverGetProperties", [&](Call&) {
    if (!isDriver(driver)) return ze::code::invalidNullHandle;
    properties->driverVersion = 42;
    return ze::code::success;
  });
}

ze::Result importPointer(ze::DriverHandle, void* memory, size_t length) {
  return guarded(ze::importName, [&](Call& call) {
    World& world = call.world;
    const auto start = reinterpret_cast<uintptr_t>(memory);
    for (const auto& [other, bytes] : world.imports)
      if (start < other + bytes && other < start + length) return ze::code::invalidArgument;
    world.imports.emplace(start, length);
    return ze::code::success;
  });
}

ze::Result releasePointer(ze::DriverHandle, void* memory) {
  return guarded(ze::releaseName, [&](Call& call) {
    World& world = call.world;
    const auto found = world.imports.find(reinterpret_cast<uintptr_t>(memory));
    if (found == world.imports.end()) {
      world.violation("bad-release", "Memory was released that was not imported.");
      return ze::code::invalidArgument;
    }
    if (isUsed(world, found->first, found->second))
      world.violation("free-in-use", "Imported memory was released while queued work uses it.");
    world.imports.erase(found);
    return ze::code::success;
  });
}

ze::Result extensionFunction(ze::DriverHandle, const char* name, void** address) {
  return guarded("zeDriverGetExtensionFunctionAddress", [&](Call& call) {
    if (!call.world.settings.import) return ze::code::invalidArgument;
    if (std::strcmp(name, ze::importName) == 0) *address = reinterpret_cast<void*>(&importPointer);
    else if (std::strcmp(name, ze::releaseName) == 0) *address = reinterpret_cast<void*>(&releasePointer);
    else return ze::code::invalidArgument;
    return ze::code::success;
  });
}

ze::Result devices(ze::DriverHandle, uint32_t* count, ze::DeviceHandle* handles) {
  return guarded("zeDeviceGet", [&](Call& call) {
    return list(call.world.settings.devices, count, handles,
                [](auto& handle, uint32_t i) { handle = reinterpret_cast<ze::DeviceHandle>(deviceBase + i); });
  });
}

ze::Result deviceProperties(ze::DeviceHandle device, ze::DeviceProperties* properties) {
  return guarded("zeDeviceGetProperties", [&](Call& call) {
    if (!isDevice(call.world, device)) return ze::code::invalidNullHandle;
    properties->type = ze::gpuDevice;
    properties->vendorId = 0x8086;
    properties->maxAllocationBytes = call.world.settings.memory;
    // Ticks of 8 ns in a narrow counter, so that the right unit and its end matter.
    properties->timerResolution = call.world.settings.timestamps ? 8 : 0;
    properties->timestampValidBits = properties->kernelTimestampValidBits = call.world.settings.tickBits;
    std::strncpy(properties->name, call.world.settings.name.c_str(), sizeof properties->name - 1);
    return ze::code::success;
  });
}

ze::Result memoryProperties(ze::DeviceHandle, uint32_t* count, ze::MemoryProperties* properties) {
  return guarded("zeDeviceGetMemoryProperties", [&](Call& call) {
    return list(1, count, properties, [&](auto& one, uint32_t) { one.totalBytes = call.world.settings.memory; });
  });
}

ze::Result queueGroups(ze::DeviceHandle, uint32_t* count, ze::QueueGroupProperties* properties) {
  return guarded("zeDeviceGetCommandQueueGroupProperties", [&](Call&) {
    return list(2, count, properties, [](auto& one, uint32_t i) {
      one.flags = i == 0 ? ze::groupCopies | ze::groupComputes : ze::groupCopies;
      one.maxFillPatternBytes = i == 0 ? 128 : 1;
      one.queues = i == 0 ? 4 : 2;
    });
  });
}

ze::Result createContext(ze::DriverHandle driver, const ze::ContextDescription*, ze::ContextHandle* handle) {
  return guarded("zeContextCreate", [&](Call& call) {
    if (!isDriver(driver)) return ze::code::invalidNullHandle;
    *handle = call.world.contexts.issue(std::make_shared<Context>());
    return ze::code::success;
  });
}

ze::Result destroyContext(ze::ContextHandle handle) {
  return guarded("zeContextDestroy", [&](Call& call) {
    World& world = call.world;
    const auto context = find(call, world.contexts, handle);
    if (context == nullptr) return ze::code::invalidNullHandle;
    size_t users = 0;
    for (const auto& [number, list] : world.lists.all()) users += list->context == context;
    for (const auto& [number, pool] : world.pools.all()) users += pool->context == context;
    for (const auto& [address, block] : world.memory) users += !block.isFreed && block.context == context;
    if (users > 0)
      world.violation("context-in-use", std::to_string(users) + " objects of a destroyed context are alive.");
    world.contexts.release(handle);
    return ze::code::success;
  });
}

ze::Result allocate(Call& call, ze::ContextHandle handle, size_t size, size_t alignment, bool isDevice, void** memory) {
  World& world = call.world;
  const auto context = find(call, world.contexts, handle);
  if (context == nullptr) return ze::code::invalidNullHandle;
  if (size == 0) return ze::code::unsupportedSize;
  if (isDevice && world.memoryBytes + size > world.settings.memory) return ze::code::outOfDeviceMemory;
  uintptr_t address = 0;
  // Freed memory of that length comes back at once, as allocators like to do.
  for (const auto& [start, block] : world.memory)
    if (block.isFreed && block.length == size && block.isDevice == isDevice && !isUsed(world, start, size))
      address = start;
  if (address == 0) {
    void* fresh = std::aligned_alloc(std::max<size_t>(alignment, 64), (size + 4095) / 4096 * 4096);
    if (fresh == nullptr) return ze::code::outOfHostMemory;
    address = reinterpret_cast<uintptr_t>(fresh);
  }
  std::memset(reinterpret_cast<void*>(address), poison, size);
  world.memory[address] = Block{context, size, isDevice, false};
  if (isDevice) world.memoryBytes += size;
  *memory = reinterpret_cast<void*>(address);
  return ze::code::success;
}

ze::Result allocateDevice(ze::ContextHandle context, const ze::DeviceMemoryDescription*, size_t size, size_t alignment,
                          ze::DeviceHandle, void** memory) {
  return guarded("zeMemAllocDevice",
                 [&](Call& call) { return allocate(call, context, size, alignment, true, memory); });
}

ze::Result allocateHost(ze::ContextHandle context, const ze::HostMemoryDescription*, size_t size, size_t alignment,
                        void** memory) {
  return guarded("zeMemAllocHost", [&](Call& call) {
    if (!call.world.settings.hostMemory) return ze::code::unsupportedFeature;
    return allocate(call, context, size, alignment, false, memory);
  });
}

ze::Result freeMemory(ze::ContextHandle, void* memory) {
  return guarded("zeMemFree", [&](Call& call) {
    World& world = call.world;
    const auto found = world.memory.find(reinterpret_cast<uintptr_t>(memory));
    if (found == world.memory.end() || found->second.isFreed) {
      world.violation("bad-free", "What was freed is no memory, or was freed before.");
      return ze::code::invalidArgument;
    }
    if (isUsed(world, found->first, found->second.length))
      world.violation("free-in-use", "Memory was freed while queued work uses it.");
    found->second.isFreed = true;
    found->second.context = nullptr;
    if (found->second.isDevice) world.memoryBytes -= found->second.length;
    std::memset(memory, poison ^ 0xff, found->second.length);
    return ze::code::success;
  });
}

}  // namespace

void judgeRange(World& world, const char* function, const void* start, size_t length) {
  const auto address = reinterpret_cast<uintptr_t>(start);
  const auto after = world.memory.upper_bound(address);
  if (after == world.memory.begin()) return;
  const auto& [base, block] = *std::prev(after);
  if (address >= base + block.length) return;
  if (block.isFreed) world.violation("use-after-free", std::string(function) + " touches memory that was freed.");
  if (address + length > base + block.length)
    world.violation("out-of-bounds", std::string(function) + " leaves its allocation.");
}

void dropMemory(World& world) {
  for (const auto& [address, block] : world.memory) std::free(reinterpret_cast<void*>(address));
  world.memory.clear();
  world.memoryBytes = 0;
}

TENSORFERRY_ENTRY(initialise)
TENSORFERRY_ENTRY(drivers)
TENSORFERRY_ENTRY(driverApiVersion)
TENSORFERRY_ENTRY(driverProperties)
TENSORFERRY_ENTRY(extensionFunction)
TENSORFERRY_ENTRY(devices)
TENSORFERRY_ENTRY(deviceProperties)
TENSORFERRY_ENTRY(memoryProperties)
TENSORFERRY_ENTRY(queueGroups)
TENSORFERRY_ENTRY(createContext)
TENSORFERRY_ENTRY(destroyContext)
TENSORFERRY_ENTRY(allocateDevice)
TENSORFERRY_ENTRY(allocateHost)
decltype(freeEntry) freeEntry{"", freeMemory};

}  // namespace tensorferry::xpu::simulator
