// SPDX-License-Identifier: Apache-2.0
/*
 * Events: a record is a number, and what was recorded last at the time of a wait is what it waits for.
 *
 * The cell of an event may lie in memory that processes share, so that a record in one is seen by a wait in another.
 * Invariant: `done[n % 64]` holds the largest completed record among those numbers.
 */
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>

#include "../common/handles.h"
#include "streams.h"

namespace tensorferry::gpu::simulator {

struct EventCell {
  std::atomic<uint64_t> recorded;
  /** Zero: the cell is free. */
  std::atomic<uint64_t> life;
  std::atomic<uint64_t> done[64];

  bool isDone(uint64_t record) const { return done[record % 64].load(std::memory_order_acquire) >= record; }
};

inline constexpr size_t cellBytes = 1024;
inline constexpr size_t cellsPerPool = 256;
static_assert(sizeof(EventCell) <= cellBytes);

/** A shared file of cells, made here or mapped from another process. */
struct CellPool {
  int file = -1;
  uint64_t inode = 0;
  char* base = nullptr;
  CellPool() = default;
  CellPool(const CellPool&) = delete;
  CellPool& operator=(const CellPool&) = delete;
  ~CellPool();
  EventCell* cell(size_t index) const { return reinterpret_cast<EventCell*>(base + index * cellBytes); }
};

struct Event {
  uint64_t number = 0;
  int device = 0;
  bool timing = true;
  bool interprocess = false;
  bool imported = false;
  std::shared_ptr<EventCell> cell;
  std::shared_ptr<CellPool> pool;
  size_t index = 0;
  uint64_t life = 0;
  /** When the last record was reached, in nanoseconds. */
  uint64_t reachedAt = 0;
  uint64_t reachedRecord = 0;
};
using EventRef = std::shared_ptr<Event>;

struct Events {
  simulators::Handles<Event> handles{0x5fa2};
  std::vector<std::shared_ptr<CellPool>> pools;
  uint64_t next = 1;
  /** The stream that has the record queued. */
  std::map<std::pair<const EventCell*, uint64_t>, StreamRef> pending;
};

/** The event of a handle: null for a bad one, with a violation. */
EventRef findEvent(World&, const void* handle, const char* function);

}  // namespace tensorferry::gpu::simulator
