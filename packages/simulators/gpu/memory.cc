// SPDX-License-Identifier: Apache-2.0
/*
 * Segments, allocations, guards and where an address lies.
 */
#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "world.h"

namespace tensorferry::gpu::simulator {
namespace {

/** Larger memory is filled only at both ends, so that it stays sparse. */
constexpr size_t filledWhole = size_t{64} << 20;
constexpr size_t filledEnds = size_t{1} << 20;

enum class Pattern : uint64_t { Fresh = 1, Guard = 2, Freed = 3 };

/** No byte is zero, and the words differ between seeds. */
uint64_t patternWord(const Allocation& allocation, Pattern pattern) {
  return Random(allocation.seed ^ (static_cast<uint64_t>(pattern) << 60)).next() | 0x8181818181818181u;
}

void fill(char* start, size_t bytes, uint64_t word) {
  size_t at = 0;
  for (; at + 8 <= bytes; at += 8) std::memcpy(start + at, &word, 8);
  std::memcpy(start + at, &word, bytes - at);
}

bool holds(const char* start, size_t bytes, uint64_t word, size_t* where) {
  size_t at = 0;
  for (; at + 8 <= bytes; at += 8)
    if (std::memcmp(start + at, &word, 8) != 0) break;
  for (; at < bytes; at++)
    if (start[at] != reinterpret_cast<const char*>(&word)[at % 8]) {
      *where = at;
      return false;
    }
  return true;
}

template <typename Use>
void eachFilled(char* start, size_t bytes, Use use) {
  if (bytes <= filledWhole) {
    use(start, bytes);
  } else {
    use(start, filledEnds);
    use(start + bytes - filledEnds, filledEnds);
  }
}

size_t roundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

/** Maps a file of `bytes` and a control page. Takes the file. */
SegmentRef mapSegment(World& world, int device, int file, size_t bytes) {
  auto segment = std::make_shared<Segment>();
  segment->file = file;
  segment->device = device;
  segment->bytes = bytes;
  segment->inode = inodeOf(file);
  segment->reserved = bytes + 2 * segmentBytes;
  void* reservation = mmap(nullptr, segment->reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reservation == MAP_FAILED) return nullptr;
  segment->reservation = static_cast<char*>(reservation);
  const uintptr_t aligned = roundUp(reinterpret_cast<uintptr_t>(reservation) + pageBytes, segmentBytes);
  void* base = mmap(reinterpret_cast<void*>(aligned), bytes, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file, 0);
  if (base == MAP_FAILED) return nullptr;
  segment->base = static_cast<char*>(base);
  void* control = mmap(nullptr, controlBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, static_cast<off_t>(bytes));
  if (control == MAP_FAILED) return nullptr;
  segment->control = static_cast<SegmentControl*>(control);
  auto& segments = world.memory.segments;
  for (auto at = segments.begin(); at != segments.end();)
    at = at->second.expired() ? segments.erase(at) : std::next(at);
  segments[aligned] = segment;
  return segment;
}

/** Takes bytes from a shared segment; false when it has no gap or slot left. */
bool carve(Segment& segment, size_t outer, size_t& offset, size_t& slot) {
  slot = static_cast<size_t>(std::find(segment.slots.begin(), segment.slots.end(), false) - segment.slots.begin());
  if (slot == segment.slots.size()) return false;
  for (auto gap = segment.gaps.begin(); gap != segment.gaps.end(); ++gap) {
    if (gap->second < outer) continue;
    offset = gap->first;
    const size_t rest = gap->second - outer;
    segment.gaps.erase(gap);
    if (rest > 0) segment.gaps.emplace(offset + outer, rest);
    segment.slots[slot] = true;
    return true;
  }
  return false;
}

void giveBack(Segment& segment, size_t offset, size_t bytes, size_t slot) {
  segment.slots[slot] = false;
  auto gap = segment.gaps.emplace(offset, bytes).first;
  if (const auto after = std::next(gap); after != segment.gaps.end() && offset + bytes == after->first) {
    gap->second += after->second;
    segment.gaps.erase(after);
  }
  if (gap != segment.gaps.begin()) {
    const auto before = std::prev(gap);
    if (before->first + before->second == offset) {
      before->second += gap->second;
      segment.gaps.erase(gap);
    }
  }
}

void checkGuard(World& world, Allocation& allocation) {
  if (allocation.guardReported) return;
  const uint64_t word = patternWord(allocation, Pattern::Guard);
  const char* outer = allocation.segment->base + allocation.outerOffset;
  const auto* start = reinterpret_cast<const char*>(allocation.start);
  const char* end = outer + allocation.outerBytes;
  const auto report = [&](const std::string& where) {
    allocation.guardReported = true;
    world.violation("guard-overwritten", where + " memory of " + std::to_string(allocation.bytes) + " bytes at " +
                                             hex(allocation.start) + " was written.");
  };
  size_t where = 0;
  if (!holds(outer, static_cast<size_t>(start - outer), word, &where))
    report("The byte " + std::to_string(static_cast<size_t>(start - outer) - where) + " before");
  if (!holds(start + allocation.bytes, static_cast<size_t>(end - start) - allocation.bytes, word, &where))
    report("The byte " + std::to_string(where) + " after the end of");
}

}  // namespace

std::string hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

Segment::~Segment() {
  if (reservation != nullptr) munmap(reservation, reserved);
  if (control != nullptr) munmap(control, controlBytes);
  if (file >= 0) close(file);
}

Allocation* Memory::find(uintptr_t address) {
  auto after = allocations.upper_bound(address);
  if (after == allocations.begin()) return nullptr;
  Allocation& allocation = std::prev(after)->second;
  return allocation.contains(address, address == allocation.start ? 0 : 1) ? &allocation : nullptr;
}

HostRange* Memory::findHost(uintptr_t address) {
  auto after = host.upper_bound(address);
  if (after == host.begin()) return nullptr;
  HostRange& range = std::prev(after)->second;
  return address - range.start < range.bytes ? &range : nullptr;
}

bool Memory::inSegment(uintptr_t address) const {
  auto after = segments.upper_bound(address);
  if (after == segments.begin()) return false;
  const auto segment = std::prev(after)->second.lock();
  return segment != nullptr && address - std::prev(after)->first < segment->bytes;
}

SegmentRef makeSegment(World& world, int device, size_t bytes) {
  const int file = memfd_create("tensorferry-simulated-gpu", MFD_CLOEXEC);
  if (file < 0) return nullptr;
  if (ftruncate(file, static_cast<off_t>(bytes + controlBytes)) != 0) {
    close(file);
    return nullptr;
  }
  auto segment = mapSegment(world, device, file, bytes);
  if (segment != nullptr) segment->slots.resize(controlSlots);
  return segment;
}

SegmentRef openSegment(World& world, uint32_t process, int file, uint64_t inode, size_t bytes) {
  const int opened = openForeignFile(process, file, inode);
  return opened < 0 ? nullptr : mapSegment(world, -1, opened, bytes);
}

Allocation* allocate(World& world, int device, size_t bytes, Kind kind) {
  Memory& memory = world.memory;
  retire(world, false);
  if (bytes > world.settings.memory || memory.used[device] + bytes > world.settings.memory) return nullptr;
  Allocation made;
  made.bytes = bytes;
  made.kind = kind;
  made.device = device;
  made.seed = world.settings.seed;
  if (bytes <= smallBytes && kind == Kind::Device) {
    made.outerBytes = granule + roundUp(bytes, granule) + granule;
    auto& shared = memory.shared[device];
    for (const auto& segment : shared)
      if (carve(*segment, made.outerBytes, made.outerOffset, made.slot)) {
        made.segment = segment;
        break;
      }
    if (made.segment == nullptr) {
      made.segment = makeSegment(world, device, segmentBytes);
      if (made.segment == nullptr) return nullptr;
      made.segment->gaps.emplace(0, segmentBytes);
      shared.push_back(made.segment);
      carve(*made.segment, made.outerBytes, made.outerOffset, made.slot);
    }
    made.start = reinterpret_cast<uintptr_t>(made.segment->base) + made.outerOffset + granule;
  } else {
    made.outerBytes = roundUp(bytes, pageBytes) + pageBytes;
    made.segment = makeSegment(world, device, made.outerBytes);
    if (made.segment == nullptr) return nullptr;
    made.start = reinterpret_cast<uintptr_t>(made.segment->base);
  }
  made.number = memory.next++;
  made.life = made.number;
  made.segment->allocations++;
  made.segment->control->lives[made.slot].store(made.life, std::memory_order_release);
  memory.used[device] += bytes;
  auto* start = reinterpret_cast<char*>(made.start);
  char* outer = made.segment->base + made.outerOffset;
  const uint64_t guard = patternWord(made, Pattern::Guard);
  fill(outer, static_cast<size_t>(start - outer), guard);
  eachFilled(start, bytes, [&](char* at, size_t length) { fill(at, length, patternWord(made, Pattern::Fresh)); });
  fill(start + bytes, static_cast<size_t>(outer + made.outerBytes - start) - bytes, guard);
  return &memory.allocations.emplace(made.start, std::move(made)).first->second;
}

void release(World& world, uintptr_t start) {
  Memory& memory = world.memory;
  const auto found = memory.allocations.find(start);
  Quarantine held{std::move(found->second), everythingPending(world)};
  memory.allocations.erase(found);
  Allocation& allocation = held.allocation;
  checkGuard(world, allocation);
  memory.used[allocation.device] -= allocation.bytes;
  allocation.segment->control->lives[allocation.slot].store(0, std::memory_order_release);
  if (!held.until.empty() || allocation.bytes <= smallBytes)
    eachFilled(reinterpret_cast<char*>(start), allocation.bytes,
               [&](char* at, size_t length) { fill(at, length, patternWord(allocation, Pattern::Freed)); });
  memory.quarantine.push_back(std::move(held));
  retire(world, false);
}

void retire(World& world, bool all) {
  auto& quarantine = world.memory.quarantine;
  for (size_t at = 0; at < quarantine.size();) {
    Quarantine& held = quarantine[at];
    const bool due =
        all || std::all_of(held.until.begin(), held.until.end(), [](const auto& one) { return one.met(); });
    if (!due) {
      at++;
      continue;
    }
    Allocation& allocation = held.allocation;
    if (allocation.kind == Kind::Imported) {
      quarantine.erase(quarantine.begin() + static_cast<ptrdiff_t>(at));
      continue;
    }
    if (!held.until.empty()) {
      eachFilled(reinterpret_cast<char*>(allocation.start), allocation.bytes, [&](char* start, size_t length) {
        size_t where = 0;
        if (!holds(start, length, patternWord(allocation, Pattern::Freed), &where))
          world.violation("write-after-free", "Freed memory of " + std::to_string(allocation.bytes) + " bytes at " +
                                                  hex(allocation.start) +
                                                  " was written by work queued before it was freed.");
      });
    }
    Segment& segment = *allocation.segment;
    segment.allocations--;
    giveBack(segment, allocation.outerOffset, allocation.outerBytes, allocation.slot);
    if (segment.allocations == 0) {
      auto& shared = world.memory.shared[allocation.device];
      const auto listed = std::find(shared.begin(), shared.end(), allocation.segment);
      if (listed != shared.end() && shared.size() > 1) shared.erase(listed);
    }
    quarantine.erase(quarantine.begin() + static_cast<ptrdiff_t>(at));
  }
}

void checkGuards(World& world) {
  for (auto& entry : world.memory.allocations)
    if (entry.second.kind != Kind::Imported) checkGuard(world, entry.second);
}

Located locate(World& world, uintptr_t address, size_t bytes, const char* function) {
  Located found;
  if (const Allocation* allocation = world.memory.find(address)) {
    found.place = Place::Device;
    found.device = allocation->device;
    found.imported = allocation->kind == Kind::Imported;
    if (!allocation->contains(address, bytes)) {
      found.error = code::invalidValue;
      world.violation("out-of-bounds", std::string(function) + " touches " + std::to_string(bytes) +
                                           " bytes at offset " + std::to_string(address - allocation->start) +
                                           " of memory of " + std::to_string(allocation->bytes) + " bytes.");
    } else if (found.imported && allocation->segment->control->lives[allocation->slot].load(
                                     std::memory_order_acquire) != allocation->life) {
      world.violation("import-after-free", std::string(function) + " uses imported memory that its owner has freed.");
    }
    return found;
  }
  if (world.memory.inSegment(address)) {
    found.place = Place::Device;
    found.error = code::invalidValue;
    world.violation("use-after-free",
                    std::string(function) + " uses device memory at " + hex(address) + " that is not allocated.");
    return found;
  }
  if (const HostRange* range = world.memory.findHost(address)) {
    found.place = Place::Pinned;
    found.device = range->device;
    if (bytes > range->bytes - (address - range->start)) {
      found.error = code::invalidValue;
      world.violation("out-of-bounds", std::string(function) + " touches " + std::to_string(bytes) +
                                           " bytes at offset " + std::to_string(address - range->start) +
                                           " of page-locked memory of " + std::to_string(range->bytes) + " bytes.");
    }
  }
  return found;
}

}  // namespace tensorferry::gpu::simulator
