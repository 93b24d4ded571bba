// SPDX-License-Identifier: Apache-2.0
/*
 * The calls of NVSHMEM that are no work on a stream: joining, memory, pointers, leaving.
 */
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "pes.h"

namespace tensorferry::gpu::simulator {
namespace {

constexpr uint64_t roomMagic = 0x7466737973686d31u;
constexpr size_t blockAlignment = 512;

/** The layout that the library's headers fix. */
struct NvshmemUniqueId {
  int version;
  struct {
    uint64_t magic;
    uint64_t start;
    uint64_t inode;
    uint32_t process;
    int32_t file;
    char unused[84];
  } __attribute__((packed)) room;
  char padding[8];
};
static_assert(sizeof(NvshmemUniqueId) == 128);

struct UniqueIdArguments {
  int version;
  NvshmemUniqueId* id;
  int rank, size;
};
static_assert(sizeof(UniqueIdArguments) == 24);

struct InitArguments {
  int version;
  UniqueIdArguments uid;
  char unused[96];
};

struct InitAttributes {
  int version;
  void* communicator;
  InitArguments arguments;
};
static_assert(sizeof(InitAttributes) == 144);

constexpr unsigned byUniqueId = 1 << 3;

template <typename Layout>
constexpr int versionOf() {
  return (1 << 16) + static_cast<int>(sizeof(Layout));
}

std::shared_ptr<PeRoom> mapRoom(int file) {
  auto room = std::make_shared<PeRoom>();
  room->file = file;
  room->inode = inodeOf(file);
  void* head = mmap(nullptr, sizeof(PeRoomHead), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (head == MAP_FAILED) return nullptr;
  room->head = static_cast<PeRoomHead*>(head);
  return room;
}

std::shared_ptr<PeRoom> enterRoom(World& world, const NvshmemUniqueId& id) {
  if (id.room.magic != roomMagic || id.version != versionOf<NvshmemUniqueId>()) return nullptr;
  auto& known = pes(world).rooms[id.room.inode];
  auto room = known.lock();
  if (room != nullptr) return room;
  if (!processAlive(id.room.process, id.room.start)) return nullptr;
  const int file = openForeignFile(id.room.process, id.room.file, id.room.inode);
  if (file < 0) return nullptr;
  room = mapRoom(file);
  known = room;
  return room;
}

/** Makes the heap of another PE visible here. */
uintptr_t heapOf(World& world, Pe& pe, uint32_t other) {
  const PeSlot& slot = pe.slot(other);
  if (slot.process == static_cast<uint32_t>(getpid())) {
    const auto found = pes(world).byDevice.find(slot.device);
    return found == pes(world).byDevice.end() ? 0 : found->second->heap;
  }
  const SegmentRef segment = openSegment(world, slot.process, slot.file, slot.inode, slot.segmentBytes);
  if (segment == nullptr) return 0;
  Allocation made;
  made.segment = segment;
  made.start = reinterpret_cast<uintptr_t>(segment->base) + slot.heapOffset;
  made.bytes = pe.heapBytes;
  made.kind = Kind::Imported;
  made.device = slot.device;
  made.opener = pe.device;
  made.life = segment->control->lives[0].load(std::memory_order_acquire);
  made.number = world.memory.next++;
  const uintptr_t start = made.start;
  pe.imported.push_back(start);
  world.memory.allocations.emplace(start, std::move(made));
  return start;
}

int join(Call& call, Pe& pe) {
  World& world = call.world;
  uint32_t agreed = 0;
  if (!pe.room->head->size.compare_exchange_strong(agreed, pe.size) && agreed != pe.size) return 1;
  const Allocation* heap = allocate(world, pe.device, pes(world).settings.heapBytes, Kind::Virtual);
  if (heap == nullptr) return 2;
  pe.heap = heap->start;
  pe.heapBytes = heap->bytes;
  PeSlot& slot = pe.slot(pe.rank);
  if (static_cast<PeState>(slot.state.load()) != PeState::Absent) {
    world.violation("nvshmem-rank-twice", "Rank " + std::to_string(pe.rank) + " joined twice.");
    release(world, pe.heap);
    return 1;
  }
  slot.process = static_cast<uint32_t>(getpid());
  slot.start = processStart(slot.process);
  slot.device = pe.device;
  slot.file = heap->segment->file;
  slot.inode = heap->segment->inode;
  slot.segmentBytes = heap->segment->bytes;
  slot.heapOffset = heap->start - reinterpret_cast<uintptr_t>(heap->segment->base);
  slot.state.store(static_cast<uint32_t>(PeState::Joined), std::memory_order_release);
  return 0;
}

void letGo(World& world, Pe& pe) {
  for (const uintptr_t start : pe.imported) world.memory.allocations.erase(start);
  release(world, pe.heap);
  pes(world).byDevice.erase(pe.device);
}

/** The first gap that is long enough. All PEs make the same calls, so all find the same. */
bool carveBlock(Pe& pe, size_t bytes, size_t& offset) {
  size_t at = 0;
  for (const auto& block : pe.blocks) {
    if (block.first >= at + bytes) break;
    at = (block.first + block.second + blockAlignment - 1) / blockAlignment * blockAlignment;
  }
  if (bytes > pe.heapBytes || at > pe.heapBytes - bytes) return false;
  offset = at;
  pe.blocks.emplace(at, bytes);
  return true;
}

/** A call of the thread's PE that answers a number; `failed` where there is no PE. */
template <typename Body>
int peCall(const char* function, int failed, Body body) noexcept {
  return guarded(function, failed, [&](Call& call) -> int {
    const PeRef pe = findPe(call.world, call.thread.device, function);
    return pe == nullptr ? failed : body(call, *pe);
  });
}

}  // namespace

TENSORFERRY_SIM_API int nvshmemx_get_uniqueid(NvshmemUniqueId* out) {
  return guarded("nvshmemx_get_uniqueid", 1, [&](Call& call) -> int {
    const int file = memfd_create("nvshmem-room", MFD_CLOEXEC);
    if (out == nullptr || file < 0 || ftruncate(file, sizeof(PeRoomHead)) != 0) return 1;
    auto room = mapRoom(file);
    if (room == nullptr) return 1;
    *out = NvshmemUniqueId{};
    out->version = versionOf<NvshmemUniqueId>();
    out->room.magic = roomMagic;
    out->room.process = static_cast<uint32_t>(getpid());
    out->room.start = processStart(out->room.process);
    out->room.file = file;
    out->room.inode = room->inode;
    Pes& all = pes(call.world);
    all.rooms[room->inode] = room;
    all.made.push_back(std::move(room));
    return 0;
  });
}

TENSORFERRY_SIM_API int nvshmemx_set_attr_uniqueid_args(int rank, int size, const NvshmemUniqueId* id,
                                                        InitAttributes* attributes) {
  if (id == nullptr || attributes == nullptr || attributes->version != versionOf<InitAttributes>()) return 1;
  attributes->arguments.uid = {versionOf<UniqueIdArguments>(), const_cast<NvshmemUniqueId*>(id), rank, size};
  return 0;
}

/** As the real library, a second call only counts: whoever asks for another rank finds out by asking which it has. */
TENSORFERRY_SIM_API int nvshmemx_hostlib_init_attr(unsigned flags, InitAttributes* attributes) {
  return guarded("nvshmemx_hostlib_init_attr", 7, [&](Call& call) -> int {
    World& world = call.world;
    if (flags != byUniqueId || attributes == nullptr || attributes->version != versionOf<InitAttributes>()) return 1;
    if (!call.thread.bound) world.violation("no-context", "nvshmemx_hostlib_init_attr on a thread without a device.");
    Pes& all = pes(world);
    if (const auto known = all.byDevice.find(call.thread.device); known != all.byDevice.end()) {
      known->second->initialisations++;
      return 0;
    }
    const UniqueIdArguments& given = attributes->arguments.uid;
    auto pe = std::make_shared<Pe>();
    pe->room = enterRoom(world, *given.id);
    if (pe->room == nullptr || given.size < 1 || static_cast<uint32_t>(given.size) > maxPes || given.rank >= given.size)
      return 1;
    pe->rank = static_cast<uint32_t>(given.rank);
    pe->size = static_cast<uint32_t>(given.size);
    pe->device = call.thread.device;
    pe->initialisations = 1;
    if (const int answer = join(call, *pe); answer != 0) return answer;
    all.byDevice[pe->device] = pe;
    const bool isComplete = waitUntil(call, "nvshmemx_hostlib_init_attr", [&] {
      for (uint32_t other = 0; other < pe->size; other++)
        if (static_cast<PeState>(pe->slot(other).state.load(std::memory_order_acquire)) == PeState::Absent)
          return false;
      return true;
    });
    if (!isComplete) return 7;
    for (uint32_t other = 0; other < pe->size; other++) {
      const int device = pe->slot(other).device;
      const bool isReached = other == pe->rank || world.settings.canAccess(pe->device, device);
      pe->heaps.push_back(other == pe->rank ? pe->heap : heapOf(world, *pe, other));
      // The library maps heaps so that kernels may touch them.
      if (isReached && other != pe->rank) world.peers.insert({pe->device, device});
    }
    return meet(call, *pe, "nvshmemx_hostlib_init_attr") ? 0 : 7;
  });
}

TENSORFERRY_SIM_API void nvshmemx_hostlib_finalize() {
  peCall("nvshmemx_hostlib_finalize", 1, [](Call& call, Pe& pe) -> int {
    if (--pe.initialisations > 0) return 0;
    World& world = call.world;
    const auto kept = pes(world).byDevice[pe.device];
    const uint64_t epoch = world.epoch;
    for (const Dependency& one : pe.underWay)
      if (!one.met()) world.violation("nvshmem-finalize-in-use", "nvshmemx_hostlib_finalize while puts are under way.");
    if (!meet(call, *kept, "nvshmemx_hostlib_finalize") || world.epoch != epoch) return 0;
    kept->slot(kept->rank).state.store(static_cast<uint32_t>(PeState::Left), std::memory_order_release);
    letGo(world, *kept);
    return 0;
  });
}

TENSORFERRY_SIM_API int nvshmem_my_pe() {
  return peCall("nvshmem_my_pe", -1, [](Call&, Pe& pe) { return static_cast<int>(pe.rank); });
}

TENSORFERRY_SIM_API int nvshmem_n_pes() {
  return peCall("nvshmem_n_pes", -1, [](Call&, Pe& pe) { return static_cast<int>(pe.size); });
}

TENSORFERRY_SIM_API void* nvshmem_malloc(size_t bytes) {
  void* address = nullptr;
  peCall("nvshmem_malloc", 0, [&](Call& call, Pe& pe) {
    const auto kept = pes(call.world).byDevice[pe.device];
    size_t offset = 0;
    if (carveBlock(*kept, bytes, offset)) address = reinterpret_cast<void*>(kept->heap + offset);
    if (!meet(call, *kept, "nvshmem_malloc")) address = nullptr;
    return 0;
  });
  return address;
}

TENSORFERRY_SIM_API void nvshmem_free(void* address) {
  peCall("nvshmem_free", 0, [&](Call& call, Pe& pe) {
    const auto kept = pes(call.world).byDevice[pe.device];
    std::string user;
    const auto start = reinterpret_cast<uintptr_t>(address);
    const auto block = kept->blocks.find(start - kept->heap);
    if (block == kept->blocks.end()) {
      call.world.violation("bad-free", "nvshmem_free of " + hex(start) + ", which is no block.");
      return 0;
    }
    if (usedByQueue(call.world, start, block->second, &user))
      call.world.violation("free-in-use", "nvshmem_free of memory that is in use by " + user + ".");
    kept->blocks.erase(block);
    meet(call, *kept, "nvshmem_free");
    return 0;
  });
}

TENSORFERRY_SIM_API void* nvshmem_ptr(const void* address, int other) {
  void* there = nullptr;
  peCall("nvshmem_ptr", 0, [&](Call& call, Pe& pe) {
    size_t offset = 0;
    if (other < 0 || static_cast<uint32_t>(other) >= pe.size ||
        !pe.offsetOf(call.world, reinterpret_cast<uintptr_t>(address), 1, "nvshmem_ptr", offset))
      return 0;
    const bool isReached =
        static_cast<uint32_t>(other) == pe.rank || call.world.settings.canAccess(pe.device, pe.slot(other).device);
    if (isReached && pe.heaps[other] != 0) there = reinterpret_cast<void*>(pe.heaps[other] + offset);
    return 0;
  });
  return there;
}

TENSORFERRY_SIM_API void nvshmemx_vendor_get_version_info(int* major, int* minor, int* patch) {
  guarded("nvshmemx_vendor_get_version_info", 0, [&](Call& call) -> int {
    const auto& version = pes(call.world).settings.version;
    *major = version[0];
    *minor = version[1];
    *patch = version[2];
    return 0;
  });
}

}  // namespace tensorferry::gpu::simulator
