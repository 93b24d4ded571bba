// SPDX-License-Identifier: Apache-2.0
/*
 * All that the simulated driver knows in this process, under one lock, and how a call enters it.
 *
 * Invariant: the world is never destroyed, so that threads may be inside while the process ends.
 */
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>

#include <tensorferry_xpu/level_zero_api.h>
#include "../common/handles.h"
#include "settings.h"

namespace tensorferry::xpu::simulator {

/** A small generator that gives the same numbers for a seed everywhere. */
class Random {
 public:
  void seed(uint64_t seed) { state_ = seed * 0x9e3779b97f4a7c15u + 1; }
  uint64_t below(uint64_t limit) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return limit == 0 ? 0 : (state_ * 0x2545f4914f6cdd1du >> 11) % limit;
  }
  bool chance(uint32_t percent) { return below(100) < percent; }

 private:
  uint64_t state_ = 1;
};

struct Context {};

struct Pool {
  std::shared_ptr<Context> context;
  uint32_t count = 0;
  bool timed = false;
};

struct Event {
  std::shared_ptr<Pool> pool;
  uint32_t index = 0;
  bool signalled = false;
  /** Commands that will signal it, and that wait for it. */
  int signalling = 0, waited = 0;
  uint64_t start = 0, end = 0;
};

/** Rows of bytes; a copy of one run is one row. */
struct Command {
  enum class Kind { Copy, Fill, Barrier } kind = Kind::Barrier;
  uint8_t* destination = nullptr;
  const uint8_t* source = nullptr;
  uint8_t byte = 0;
  size_t width = 0, rows = 1, destinationPitch = 0, sourcePitch = 0;
  std::vector<std::shared_ptr<Event>> waits;
  std::shared_ptr<Event> signal;
  /** Bytes done so far. */
  size_t done = 0;
};

struct List {
  std::shared_ptr<Context> context;
  bool isInOrder = false;
  std::deque<std::shared_ptr<Command>> queue;
};

struct Block {
  std::shared_ptr<Context> context;
  size_t length = 0;
  bool isDevice = true;
  bool isFreed = false;
};

struct Call;

struct World {
  std::mutex mutex;
  std::condition_variable changed, wanted;
  Settings settings;
  Random random;
  bool hasWorker = false, isLost = false;
  /** Threads that wait for events, and pieces that queries let run. */
  int waiting = 0;
  uint64_t allowed = 0, commands = 0;
  simulators::Handles<Context, ze::ContextHandle> contexts{0x5e01};
  simulators::Handles<List, ze::ListHandle> lists{0x5e02};
  simulators::Handles<Pool, ze::PoolHandle> pools{0x5e03};
  simulators::Handles<Event, ze::EventHandle> events{0x5e04};
  /** Memory by address; freed blocks stay until they are used again. */
  std::map<uintptr_t, Block> memory;
  uint64_t memoryBytes = 0;
  std::map<uintptr_t, size_t> imports;
  std::vector<std::pair<std::string, std::string>> violations;
  std::map<std::string, uint64_t> calls;

  void violation(std::string name, std::string detail) {
    if (violations.size() < 1000) violations.emplace_back(std::move(name), std::move(detail));
  }
};

World& world();

/** One call into the library: the lock, and what planned faults say about it. */
struct Call {
  Call(World& owner, const char* name);
  World& world;
  const char* function;
  std::unique_lock<std::mutex> lock;
  /** What the call shall answer instead of doing anything; success where nothing is planned. */
  ze::Result planned = ze::code::success;
};

/** Runs a body as a call; exceptions become "unknown". */
template <typename Body>
ze::Result guarded(const char* function, Body body) noexcept {
  try {
    Call call(world(), function);
    return call.planned == ze::code::success ? body(call) : call.planned;
  } catch (...) {
    return ze::code::unknown;
  }
}

/** The object of a handle; null for a bad one, with a violation. */
template <typename Object, typename Raw>
std::shared_ptr<Object> find(Call& call, const simulators::Handles<Object, Raw>& handles, Raw handle) {
  auto object = handles.find(handle);
  if (object == nullptr)
    call.world.violation("bad-handle", std::string(call.function) + " with a handle of nothing alive.");
  return object;
}

uint64_t nanoseconds();

/** Judges a range that a command will touch. */
void judgeRange(World&, const char* function, const void* start, size_t length);
/** True where queued work touches the range. */
bool isUsed(World&, uintptr_t start, size_t length);
/** Queues a command and counts what it signals and waits for. */
ze::Result submit(Call&, List& list, std::shared_ptr<Command> command, ze::EventHandle signal, uint32_t waitCount,
                  ze::EventHandle* waits);
void startWorker(World&);
/** Gives memory back to the system. */
void dropMemory(World&);

}  // namespace tensorferry::xpu::simulator
