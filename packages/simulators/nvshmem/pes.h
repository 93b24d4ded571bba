// SPDX-License-Identifier: Apache-2.0
/*
 * The PEs of this process, as the simulated NVSHMEM knows them: which room each has joined, its heap, and where the heaps of
 * the others lie.
 *
 * A process has one PE per simulated device, found by the device that is current on the calling thread or owns the stream;
 * the real library has one per process. PEs of one room meet in a shared file, so that they may be threads or processes.
 * Invariant: everything here is guarded by the simulated driver's lock and dropped when that is reset.
 */
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "world.h"

namespace tensorferry::gpu::simulator {

inline constexpr uint32_t maxPes = 128;

enum class PeState : uint32_t { Absent, Joined, Left };

/** What a PE tells the others, in the room's file. */
struct PeSlot {
  std::atomic<uint32_t> state;
  uint32_t process;
  uint64_t start;
  int32_t device;
  int32_t file;
  uint64_t inode;
  uint64_t segmentBytes;
  uint64_t heapOffset;
  /** Meetings this PE has come to. */
  std::atomic<uint64_t> meetings;
};

struct PeRoomHead {
  std::atomic<uint32_t> size;
  PeSlot slots[maxPes];
};

struct PeRoom {
  int file = -1;
  uint64_t inode = 0;
  PeRoomHead* head = nullptr;
  PeRoom() = default;
  PeRoom(const PeRoom&) = delete;
  PeRoom& operator=(const PeRoom&) = delete;
  ~PeRoom();
};

struct Pe {
  std::shared_ptr<PeRoom> room;
  uint32_t rank = 0, size = 0;
  int device = 0;
  int initialisations = 0;
  uintptr_t heap = 0;
  size_t heapBytes = 0;
  /** Heaps of all PEs in this process's addresses; zero where one cannot be mapped. */
  std::vector<uintptr_t> heaps;
  /** Heaps that were mapped from other processes. */
  std::vector<uintptr_t> imported;
  /** Offset to length, of what is allocated. */
  std::map<size_t, size_t> blocks;
  /** Puts and signals that have not arrived, as the ends of hidden streams. */
  std::vector<Dependency> underWay;

  /** Offset of an address in the own heap; the range must lie in one block. False with a violation. */
  bool offsetOf(World&, uintptr_t address, size_t bytes, const char* function, size_t& offset) const;
  PeSlot& slot(uint32_t pe) const { return room->head->slots[pe]; }
};
using PeRef = std::shared_ptr<Pe>;

/**
 * What a test can set, beside the settings of the driver: the environment variable TENSORFERRY_NVSHMEM_SIMULATOR, read at
 * the first call after a reset, with `heap=2m` and `version=3.4.5`, separated by white space.
 */
struct PeSettings {
  size_t heapBytes = size_t{2} << 20;
  int version[3] = {3, 4, 5};
  static PeSettings read();
};

struct Pes {
  uint64_t epoch = 0;
  PeSettings settings = PeSettings::read();
  std::map<int, PeRef> byDevice;
  std::map<uint64_t, std::weak_ptr<PeRoom>> rooms;
  /** Rooms made here stay, so that others can come in. */
  std::vector<std::shared_ptr<PeRoom>> made;
};

/** Fresh after a reset of the driver. Needs the lock. */
Pes& pes(World&);

/** The PE of a device: null with a violation where there is none. */
PeRef findPe(World&, int device, const char* function);

/** Lets go of the lock until a condition holds; false after a reset, or when nothing came for as long as waits last. */
bool waitUntil(Call&, const char* what, const std::function<bool()>& holds);

/** Waits until all PEs have come here as often as this one. */
bool meet(Call&, Pe&, const char* what);

}  // namespace tensorferry::gpu::simulator
