// SPDX-License-Identifier: Apache-2.0
/*
 * Memory between processes: a handle names the base of an allocation, and opening it maps the file of its segment.
 *
 * As real drivers do: the handle of an inner address is that of the base; a second opening by the same device answers the
 * same address and counts; the process that made a handle cannot open it.
 */
#include <unistd.h>

#include <cstring>

#include "world.h"

namespace tensorferry::gpu::simulator {
namespace {

constexpr uint64_t memoryHandleMagic = 0x7466676d656d3031u;

struct MemoryHandle {
  uint64_t magic;
  uint32_t process;
  int32_t file;
  uint32_t startLow;
  uint16_t slot;
  uint16_t device;
  uint64_t inode;
  uint64_t segmentBytes;
  uint64_t bytes;
  uint32_t granules;
  uint32_t nodeLow;
  uint32_t life;
  uint32_t check;
};
static_assert(sizeof(MemoryHandle) == sizeof(IpcHandle));

uint32_t checkOf(const MemoryHandle& handle) {
  return static_cast<uint32_t>(
      hashText(std::string(reinterpret_cast<const char*>(&handle), offsetof(MemoryHandle, check))));
}

uint32_t nodeOf(const World& world) { return static_cast<uint32_t>(hashText(world.settings.node)); }

/** Counts this process among those that have the allocation open. */
void changeOpeners(SegmentControl& control, size_t slot, int change) {
  const auto process = static_cast<uint32_t>(getpid());
  for (auto& opener : control.openers)
    if (opener.process.load() == process && opener.slot.load() == slot) {
      if (opener.count.fetch_add(static_cast<uint32_t>(change)) + static_cast<uint32_t>(change) == 0)
        opener.process.store(0);
      return;
    }
  if (change < 0) return;
  for (auto& opener : control.openers) {
    uint32_t holder = opener.process.load();
    if (holder != 0 && processAlive(holder, processStart(holder))) continue;
    if (!opener.process.compare_exchange_strong(holder, process)) continue;
    opener.slot.store(static_cast<uint32_t>(slot));
    opener.count.store(1);
    return;
  }
}

/** What this process already has of the file, opened by the device. */
SegmentRef segmentOf(World& world, uint64_t inode, int opener) {
  for (const auto& entry : world.memory.allocations) {
    const Allocation& allocation = entry.second;
    if (allocation.kind == Kind::Imported && allocation.segment->inode == inode && allocation.opener == opener)
      return allocation.segment;
  }
  return nullptr;
}

}  // namespace

void closeImports(World& world) {
  for (auto& entry : world.memory.allocations) {
    Allocation& allocation = entry.second;
    if (allocation.kind == Kind::Imported) changeOpeners(*allocation.segment->control, allocation.slot, -1);
  }
}

TENSORFERRY_SIM_API int cudaIpcGetMemHandle(IpcHandle* out, void* pointer) {
  return runtimeCall("cudaIpcGetMemHandle", [&](Call& call) -> int {
    World& world = call.world;
    const Allocation* allocation = world.memory.find(reinterpret_cast<uintptr_t>(pointer));
    if (out == nullptr || allocation == nullptr) return code::invalidValue;
    // Memory of virtual-memory allocators, and memory that is itself imported, cannot be exported.
    if (allocation->kind != Kind::Device || !world.settings.ipc) return code::invalidValue;
    const auto process = static_cast<uint32_t>(getpid());
    MemoryHandle made{
        memoryHandleMagic,
        process,
        allocation->segment->file,
        static_cast<uint32_t>(processStart(process)),
        static_cast<uint16_t>(allocation->slot),
        static_cast<uint16_t>(allocation->device),
        allocation->segment->inode,
        allocation->segment->bytes,
        allocation->bytes,
        static_cast<uint32_t>((allocation->start - reinterpret_cast<uintptr_t>(allocation->segment->base)) / granule),
        nodeOf(world),
        static_cast<uint32_t>(allocation->life),
        0};
    made.check = checkOf(made);
    std::memcpy(out, &made, sizeof made);
    return 0;
  });
}

TENSORFERRY_SIM_API int cudaIpcOpenMemHandle(void** out, IpcHandle handle, unsigned flags) {
  return runtimeCall("cudaIpcOpenMemHandle", [&](Call& call) -> int {
    World& world = call.world;
    MemoryHandle given;
    std::memcpy(&given, &handle, sizeof given);
    if (out == nullptr || flags != 1) return code::invalidValue;
    if (given.magic != memoryHandleMagic || given.check != checkOf(given)) {
      world.violation("bad-ipc-handle", "cudaIpcOpenMemHandle of bytes that are no memory handle.");
      return code::invalidValue;
    }
    if (given.process == static_cast<uint32_t>(getpid())) {
      world.violation("ipc-open-own", "cudaIpcOpenMemHandle in the process that made the handle.");
      return code::invalidContext;
    }
    if (given.nodeLow != nodeOf(world)) return code::invalidValue;
    const int opener = call.thread.device;
    if (given.device != opener && !world.settings.canAccess(opener, given.device)) return code::peerUnsupported;
    for (auto& entry : world.memory.allocations) {
      Allocation& known = entry.second;
      if (known.kind != Kind::Imported || known.segment->inode != given.inode || known.slot != given.slot) continue;
      if (static_cast<uint32_t>(known.life) != given.life || known.opener != opener) continue;
      known.opens++;
      changeOpeners(*known.segment->control, known.slot, 1);
      *out = reinterpret_cast<void*>(known.start);
      return 0;
    }
    if (static_cast<uint32_t>(processStart(given.process)) != given.startLow) return code::invalidValue;
    SegmentRef segment = segmentOf(world, given.inode, opener);
    if (segment == nullptr) segment = openSegment(world, given.process, given.file, given.inode, given.segmentBytes);
    if (segment == nullptr) return code::invalidValue;
    const uint64_t life = segment->control->lives[given.slot % controlSlots].load(std::memory_order_acquire);
    if (life == 0 || static_cast<uint32_t>(life) != given.life) {
      world.violation("ipc-open-freed", "cudaIpcOpenMemHandle of memory that its owner has freed.");
      return code::invalidValue;
    }
    Allocation made;
    made.segment = segment;
    made.start = reinterpret_cast<uintptr_t>(segment->base) + size_t{given.granules} * granule;
    made.bytes = given.bytes;
    made.slot = given.slot;
    made.life = life;
    made.kind = Kind::Imported;
    made.device = given.device;
    made.opener = opener;
    made.opens = 1;
    made.number = world.memory.next++;
    changeOpeners(*segment->control, made.slot, 1);
    *out = reinterpret_cast<void*>(made.start);
    world.memory.allocations.emplace(made.start, std::move(made));
    return 0;
  });
}

TENSORFERRY_SIM_API int cudaIpcCloseMemHandle(void* pointer) {
  return runtimeCall("cudaIpcCloseMemHandle", [&](Call& call) -> int {
    World& world = call.world;
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    const auto found = world.memory.allocations.find(address);
    if (found == world.memory.allocations.end() || found->second.kind != Kind::Imported) {
      world.violation("double-close", "cudaIpcCloseMemHandle of " + hex(address) + ", which is not open (any more).");
      return code::invalidValue;
    }
    Allocation& allocation = found->second;
    if (allocation.opener != call.thread.device) {
      world.violation("wrong-device", "cudaIpcCloseMemHandle with device " + std::to_string(call.thread.device) +
                                          " current of memory opened with device " + std::to_string(allocation.opener) +
                                          ".");
      return code::invalidValue;
    }
    std::string user;
    if (allocation.opens == 1 && usedByQueue(world, allocation.start, allocation.bytes, &user))
      world.violation("close-in-use", "cudaIpcCloseMemHandle of memory that is used by " + user + ".");
    changeOpeners(*allocation.segment->control, allocation.slot, -1);
    if (--allocation.opens > 0) return 0;
    // Work queued before may still touch it: the mapping stays until that is done.
    Quarantine held{std::move(allocation), everythingPending(world)};
    world.memory.allocations.erase(found);
    if (!held.until.empty()) {
      world.memory.quarantine.push_back(std::move(held));
      wakePacer(world);
    }
    return 0;
  });
}

}  // namespace tensorferry::gpu::simulator
