// SPDX-License-Identifier: Apache-2.0
/*
 * The calls about memory: allocate, free, page-lock, ask about pointers.
 */
#include <sys/mman.h>

#include "simulator_control.h"
#include "world.h"

namespace tensorferry::gpu::simulator {
namespace {

bool overlapsHost(World& world, uintptr_t start, size_t bytes) {
  for (const auto& entry : world.memory.host)
    if (Span{entry.second.start, entry.second.bytes}.overlaps(start, bytes)) return true;
  return false;
}

/** Ends page-locked memory; the caller says how it must have begun. */
int endHost(Call& call, void* pointer, bool registered, int otherwise) {
  World& world = call.world;
  const auto found = world.memory.host.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == world.memory.host.end() || found->second.registered != registered) {
    world.violation("bad-free", std::string(call.function) + " of " + hex(reinterpret_cast<uintptr_t>(pointer)) +
                                    ", which is no start of such memory.");
    return otherwise;
  }
  std::string user;
  if (usedByQueue(world, found->second.start, found->second.bytes, &user))
    world.violation("free-in-use", std::string(call.function) + " of page-locked memory that is used by " + user + ".");
  if (!registered) munmap(pointer, (found->second.bytes + pageBytes - 1) / pageBytes * pageBytes);
  world.memory.host.erase(found);
  return 0;
}

/** Processes other than this one that have the allocation open. */
int openElsewhere(const Allocation& allocation) {
  int open = 0;
  for (const auto& opener : allocation.segment->control->openers) {
    const uint32_t process = opener.process.load(std::memory_order_acquire);
    if (process == 0 || opener.slot.load(std::memory_order_acquire) != allocation.slot) continue;
    if (opener.count.load(std::memory_order_acquire) > 0 && processAlive(process, processStart(process))) open++;
  }
  return open;
}

int freeDevice(Call& call, uintptr_t address, Kind kind) {
  World& world = call.world;
  const auto found = world.memory.allocations.find(address);
  if (found == world.memory.allocations.end() || found->second.kind != kind) {
    const bool freed = found == world.memory.allocations.end() && world.memory.inSegment(address);
    world.violation(freed ? "double-free" : "bad-free",
                    std::string(call.function) + " of " + hex(address) +
                        (freed ? ", which is not allocated (any more)." : ", which is no start of such memory."));
    return code::invalidValue;
  }
  std::string user;
  const Allocation& allocation = found->second;
  if (usedByQueue(world, allocation.start, allocation.bytes, &user))
    world.violation("free-in-use", std::string(call.function) + " of device memory that is used by " + user + ".");
  if (const int open = openElsewhere(allocation); open > 0)
    world.violation("free-while-open", std::string(call.function) + " of device memory that " + std::to_string(open) +
                                           " other process(es) have open.");
  release(world, address);
  wakePacer(world);
  return 0;
}

}  // namespace

TENSORFERRY_SIM_API int cudaMalloc(void** pointer, size_t size) {
  return runtimeCall("cudaMalloc", [&](Call& call) -> int {
    if (pointer == nullptr) return code::invalidValue;
    *pointer = nullptr;
    if (size == 0) return 0;
    const Allocation* made = allocate(call.world, call.thread.device, size, Kind::Device);
    if (made == nullptr) return code::outOfMemory;
    *pointer = reinterpret_cast<void*>(made->start);
    return 0;
  });
}

TENSORFERRY_SIM_API int cudaFree(void* pointer) {
  return runtimeCall("cudaFree", [&](Call& call) -> int {
    return pointer == nullptr ? 0 : freeDevice(call, reinterpret_cast<uintptr_t>(pointer), Kind::Device);
  });
}

TENSORFERRY_SIM_API int cudaMemGetInfo(size_t* freeBytes, size_t* total) {
  return runtimeCall("cudaMemGetInfo", [&](Call& call) -> int {
    if (freeBytes == nullptr || total == nullptr) return code::invalidValue;
    *total = call.world.settings.memory;
    const uint64_t used = call.world.memory.used[call.thread.device];
    *freeBytes = used > *total ? 0 : *total - used;
    return 0;
  });
}

TENSORFERRY_SIM_API int cudaHostAlloc(void** pointer, size_t size, unsigned flags) {
  return runtimeCall("cudaHostAlloc", [&](Call& call) -> int {
    if (pointer == nullptr || flags > 7) return code::invalidValue;
    *pointer = nullptr;
    if (size == 0) return 0;
    void* made = mmap(nullptr, (size + pageBytes - 1) / pageBytes * pageBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) return code::outOfMemory;
    *pointer = made;
    const auto start = reinterpret_cast<uintptr_t>(made);
    call.world.memory.host[start] = {start, size, false, call.thread.device, call.world.memory.next++};
    return 0;
  });
}

TENSORFERRY_SIM_API int cudaFreeHost(void* pointer) {
  return runtimeCall("cudaFreeHost", [&](Call& call) -> int {
    return pointer == nullptr ? 0 : endHost(call, pointer, false, code::invalidValue);
  });
}

TENSORFERRY_SIM_API int cudaHostRegister(void* pointer, size_t size, unsigned flags) {
  return runtimeCall("cudaHostRegister", [&](Call& call) -> int {
    if (pointer == nullptr || size == 0 || flags > 15) return code::invalidValue;
    const auto start = reinterpret_cast<uintptr_t>(pointer);
    if (call.world.memory.find(start) != nullptr) return code::invalidValue;
    if (overlapsHost(call.world, start, size)) return code::hostAlreadyRegistered;
    call.world.memory.host[start] = {start, size, true, call.thread.device, call.world.memory.next++};
    return 0;
  });
}

TENSORFERRY_SIM_API int cudaHostUnregister(void* pointer) {
  return runtimeCall("cudaHostUnregister",
                     [&](Call& call) -> int { return endHost(call, pointer, true, code::hostNotRegistered); });
}

TENSORFERRY_SIM_API int cudaHostGetDevicePointer(void** device, void* pointer, unsigned flags) {
  return runtimeCall("cudaHostGetDevicePointer", [&](Call& call) -> int {
    if (device == nullptr || flags != 0) return code::invalidValue;
    if (call.world.memory.findHost(reinterpret_cast<uintptr_t>(pointer)) == nullptr) return code::invalidValue;
    *device = pointer;
    return 0;
  });
}

TENSORFERRY_SIM_API int cudaPointerGetAttributes(PointerAttributes* attributes, const void* pointer) {
  return runtimeCall("cudaPointerGetAttributes", [&](Call& call) -> int {
    if (attributes == nullptr) return code::invalidValue;
    *attributes = PointerAttributes{};
    attributes->device = -2;
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    void* const plain = const_cast<void*>(pointer);
    if (const Allocation* allocation = call.world.memory.find(address)) {
      attributes->type = 2;
      attributes->device = allocation->device;
      attributes->devicePointer = plain;
    } else if (const HostRange* range = call.world.memory.findHost(address)) {
      attributes->type = 1;
      attributes->device = range->device;
      attributes->devicePointer = plain;
      attributes->hostPointer = plain;
    } else {
      attributes->hostPointer = plain;
    }
    return 0;
  });
}

TENSORFERRY_SIM_API int cuMemGetAddressRange_v2(uintptr_t* base, size_t* size, uintptr_t address) {
  return driverCall("cuMemGetAddressRange_v2", [&](Call& call) -> int {
    uintptr_t start = 0;
    size_t bytes = 0;
    if (const Allocation* allocation = call.world.memory.find(address)) {
      start = allocation->start;
      bytes = allocation->bytes;
    } else if (const HostRange* range = call.world.memory.findHost(address)) {
      start = range->start;
      bytes = range->bytes;
    } else {
      return code::notFound;
    }
    if (base != nullptr) *base = start;
    if (size != nullptr) *size = bytes;
    return 0;
  });
}

TENSORFERRY_SIM_API int cuPointerGetAttribute(void* data, int attribute, uintptr_t address) {
  return driverCall("cuPointerGetAttribute", [&](Call& call) -> int {
    if (data == nullptr) return code::invalidValue;
    const Allocation* allocation = call.world.memory.find(address);
    const HostRange* range = allocation == nullptr ? call.world.memory.findHost(address) : nullptr;
    if (allocation == nullptr && range == nullptr) {
      // Asking whether an address is mapped is the one question with an answer for any address.
      if (attribute != 13) return code::invalidValue;
      *static_cast<int*>(data) = 0;
      return 0;
    }
    const bool device = allocation != nullptr;
    switch (attribute) {
      case 2:
        *static_cast<unsigned*>(data) = device ? 2 : 1;
        return 0;
      case 3:
        *static_cast<uintptr_t*>(data) = address;
        return 0;
      case 4:
        if (device) return code::invalidValue;
        *static_cast<uintptr_t*>(data) = address;
        return 0;
      case 7:
        *static_cast<unsigned long long*>(data) = device ? allocation->number : range->number;
        return 0;
      case 8:
        *static_cast<unsigned*>(data) = 0;
        return 0;
      case 9:
        *static_cast<int*>(data) = device ? allocation->device : range->device;
        return 0;
      case 10:
        *static_cast<unsigned*>(data) = device && allocation->kind == Kind::Device && call.world.settings.ipc ? 1 : 0;
        return 0;
      case 11:
        *static_cast<uintptr_t*>(data) = device ? allocation->start : range->start;
        return 0;
      case 12:
        *static_cast<size_t*>(data) = device ? allocation->bytes : range->bytes;
        return 0;
      case 13:
        *static_cast<int*>(data) = 1;
        return 0;
      default:
        return code::notSupported;
    }
  });
}

TENSORFERRY_SIM_API void* tensorferry_sim_allocate_virtual(size_t size) {
  void* pointer = nullptr;
  guarded("tensorferry_sim_allocate_virtual", code::unknown, [&](Call& call) -> int {
    const Allocation* made = size == 0 ? nullptr : allocate(call.world, call.thread.device, size, Kind::Virtual);
    pointer = made == nullptr ? nullptr : reinterpret_cast<void*>(made->start);
    return 0;
  });
  return pointer;
}

TENSORFERRY_SIM_API int tensorferry_sim_free_virtual(void* pointer) {
  return guarded("tensorferry_sim_free_virtual", code::unknown, [&](Call& call) -> int {
    return freeDevice(call, reinterpret_cast<uintptr_t>(pointer), Kind::Virtual);
  });
}

}  // namespace tensorferry::gpu::simulator
