// SPDX-License-Identifier: Apache-2.0
/*
 * Memory of the simulated devices: ordinary host memory in anonymous files, so that other processes can map it.
 *
 * Small allocations share a segment of 2 MiB; larger ones have their own. Every allocation lies between guard bytes, which
 * are checked when it is freed and when a report is made. Freed memory stays mapped, filled with another pattern, until all
 * work queued before is done, so that late use of it is found instead of crashing.
 *
 * Invariant: a segment's control page says which of its allocations live and which processes have opened them.
 */
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "streams.h"

namespace tensorferry::gpu::simulator {

inline constexpr size_t pageBytes = 4096;
inline constexpr size_t segmentBytes = size_t{2} << 20;
inline constexpr size_t smallBytes = size_t{1} << 20;
inline constexpr size_t granule = 512;
inline constexpr size_t controlBytes = 2 * pageBytes;
inline constexpr size_t controlSlots = 512;
inline constexpr size_t controlOpeners = 128;

/** Shared between processes, at the end of the segment's file. */
struct SegmentControl {
  /** Zero when the slot is free, else the number of the allocation's life in it. */
  std::atomic<uint64_t> lives[controlSlots];
  struct Opener {
    std::atomic<uint32_t> process;
    std::atomic<uint32_t> slot;
    std::atomic<uint32_t> count;
  } openers[controlOpeners];
};
static_assert(sizeof(SegmentControl) <= controlBytes);

struct Segment {
  int device = 0;
  int file = -1;
  uint64_t inode = 0;
  char* reservation = nullptr;
  size_t reserved = 0;
  char* base = nullptr;
  size_t bytes = 0;
  SegmentControl* control = nullptr;
  /** Offset to length, of what a shared segment has left. */
  std::map<size_t, size_t> gaps;
  std::vector<bool> slots;
  size_t allocations = 0;

  Segment() = default;
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();
};
using SegmentRef = std::shared_ptr<Segment>;

enum class Kind { Device, Virtual, Imported };

struct Allocation {
  uintptr_t start = 0;
  size_t bytes = 0;
  /** With the guards, inside the segment. */
  size_t outerOffset = 0;
  size_t outerBytes = 0;
  size_t slot = 0;
  uint64_t life = 0;
  Kind kind = Kind::Device;
  int device = 0;
  uint64_t number = 0;
  /** Of its patterns: the setting may change while it lives. */
  uint64_t seed = 0;
  /** Said once. */
  bool guardReported = false;
  SegmentRef segment;
  // Imported memory only.
  int opener = 0;
  int opens = 0;

  bool contains(uintptr_t address, size_t length) const {
    return address >= start && length <= bytes && address - start <= bytes - length;
  }
};

struct HostRange {
  uintptr_t start = 0;
  size_t bytes = 0;
  bool registered = false;
  int device = 0;
  uint64_t number = 0;
};

/** Freed memory that queued work might still touch. */
struct Quarantine {
  Allocation allocation;
  std::vector<Dependency> until;
};

struct Memory {
  std::map<uintptr_t, Allocation> allocations;
  std::map<uintptr_t, HostRange> host;
  std::vector<Quarantine> quarantine;
  /** Shared segments of each device. */
  std::map<int, std::vector<SegmentRef>> shared;
  std::map<int, uint64_t> used;
  /** Every mapped segment by its base, to tell freed and guard bytes from foreign addresses. */
  std::map<uintptr_t, std::weak_ptr<Segment>> segments;
  uint64_t next = 1;

  Allocation* find(uintptr_t address);
  HostRange* findHost(uintptr_t address);
  /** True for an address in a segment, also where nothing is allocated. */
  bool inSegment(uintptr_t address) const;
};

/** Makes an anonymous file and maps it between pages that fault. Null when the system refuses. */
SegmentRef makeSegment(World&, int device, size_t bytes);

/** Maps a segment of another process by where it keeps the file; null when it is gone. */
SegmentRef openSegment(World&, uint32_t process, int file, uint64_t inode, size_t bytes);

Allocation* allocate(World&, int device, size_t bytes, Kind kind);

/** Frees a live allocation by its start: guards checked, contents replaced, unmapped when no queued work is left. */
void release(World&, uintptr_t start);

/** Lets go of quarantined memory whose time has come; `all`: whatever is queued. */
void retire(World&, bool all);

/** Tells the owners of imported memory that this process has closed it. */
void closeImports(World&);

/** Checks the guards of all live allocations. */
void checkGuards(World&);

enum class Place { Pageable, Pinned, Device };

struct Located {
  Place place = Place::Pageable;
  int device = 0;
  /** Not zero: the range is wrong, and a violation was recorded. */
  int error = 0;
  bool imported = false;
};

/** Where a range lies. A range that leaves its memory, or lies in freed memory, is a violation. */
Located locate(World&, uintptr_t address, size_t bytes, const char* function);

std::string hex(uint64_t value);

}  // namespace tensorferry::gpu::simulator
