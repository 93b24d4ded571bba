// SPDX-License-Identifier: Apache-2.0
/*
 * NCCL: communicators whose ranks meet in a shared file (the room), and groups of sends and receives.
 *
 * A channel of the room leads from one rank to another: a ring of letters. A sender whose turn has come posts where its bytes
 * lie; the receiver takes them straight from there and marks the letter. Nothing is buffered: a send is done when its
 * receive is.
 * Invariant: letters of a channel are numbered in the order in which both ends queued their operations.
 */
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../common/handles.h"
#include "abi.h"
#include "memory.h"
#include "streams.h"

namespace tensorferry::gpu::simulator {

inline constexpr uint32_t maxRanks = 128;
inline constexpr uint64_t ringLetters = 1024;

enum class RankState : uint32_t { Absent, Joined, Aborted, Left };

struct RankSlot {
  std::atomic<uint32_t> state;
  std::atomic<uint32_t> process;
  std::atomic<uint64_t> start;
  std::atomic<uint64_t> device;
};

enum class LetterState : uint64_t { Empty, Posted, Taken, Mismatched };

struct Letter {
  /** Number * 4 + state; zero is empty. */
  std::atomic<uint64_t> state;
  uint32_t process;
  int32_t file;
  uint64_t inode;
  uint64_t segmentBytes;
  uint64_t offset;
  uint64_t bytes;
  uint64_t unused[2];
};
static_assert(sizeof(Letter) == 64);

struct RoomHead {
  std::atomic<uint64_t> magic;
  std::atomic<uint32_t> ranks;
  RankSlot slots[maxRanks];
};
inline constexpr size_t roomHeadBytes = 8192;
static_assert(sizeof(RoomHead) <= roomHeadBytes);

struct Room {
  int file = -1;
  uint64_t inode = 0;
  RoomHead* head = nullptr;
  size_t bytes = 0;
  uint32_t ranks = 0;
  Room() = default;
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  ~Room();
  Letter& letter(uint32_t from, uint32_t to, uint64_t number) const {
    auto* letters = reinterpret_cast<Letter*>(reinterpret_cast<char*>(head) + roomHeadBytes);
    return letters[(uint64_t{from} * ranks + to) * ringLetters + number % ringLetters];
  }
};

/** One send or receive. */
struct Part {
  bool send = false;
  uint32_t peer = 0;
  uintptr_t address = 0;
  size_t bytes = 0;
  uint64_t number = 0;
  size_t progress = 0;
  bool posted = false;
};

/** What a group queued on one communicator. */
struct GroupWork {
  std::vector<Part> parts;
  std::vector<StreamRef> streams;
  bool stall = false;
  int late = 0;
};

struct Communicator {
  uint64_t number = 0;
  std::shared_ptr<Room> room;
  uint32_t rank = 0;
  int device = 0;
  bool blocking = true;
  /** All ranks are there. */
  bool ready = false;
  bool aborted = false;
  bool finalized = false;
  int asyncError = 0;
  std::string lastError;
  std::vector<uint64_t> sent;
  std::vector<uint64_t> received;
  Dependency last{nullptr, 0};
  /** Groups that a communicator which does not block has accepted and not yet queued. */
  std::deque<GroupWork> accepted;
  unsigned polls = 0;
  uint64_t watchedAt = 0;

  bool busy() const { return last.stream != nullptr && !last.met(); }
  void fail(int error, std::string text) {
    if (asyncError == 0) {
      asyncError = error;
      lastError = std::move(text);
    }
  }
};
using CommunicatorRef = std::shared_ptr<Communicator>;

struct Communicators {
  simulators::Handles<Communicator> handles{0x5fa6};
  /** Rooms that this process has mapped, by the file's inode. */
  std::map<uint64_t, std::weak_ptr<Room>> rooms;
  /** Rooms made here stay until reset, so that others can come in. */
  std::vector<std::shared_ptr<Room>> made;
  std::string lastError;
};

/** Notices ranks that died or left while work with them is open. */
void watchPeers(World&, Communicator&, bool all);

/** Queues the groups that were accepted earlier. */
void queueAccepted(World&, const CommunicatorRef&);

/** What the pacer does for communicators. */
void paceCommunicators(World&);

}  // namespace tensorferry::gpu::simulator
