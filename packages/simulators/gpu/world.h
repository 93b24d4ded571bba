// SPDX-License-Identifier: Apache-2.0
/*
 * All that the simulated driver knows in this process, under one lock, and how a call enters it.
 *
 * Invariant: the world is never destroyed, so that threads may be inside while the process ends.
 */
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "abi.h"
#include "communicators.h"
#include "events.h"
#include "memory.h"
#include "modules.h"
#include "report.h"
#include "settings.h"
#include "streams.h"

namespace tensorferry::gpu::simulator {

struct World {
  std::mutex mutex;
  std::condition_variable changed;
  std::condition_variable pacer;
  /** Threads that want the lock: who drives work lets them in between pieces. */
  std::atomic<int> wanting{0};
  int waiting = 0;
  bool pacing = false;
  uint64_t epoch = 1;
  std::chrono::steady_clock::time_point driven{};

  Settings settings;
  Random random;
  Report report;
  Streams streams;
  Events events;
  Memory memory;
  Modules modules;
  Communicators communicators;
  /** The error that a device answers until reset. */
  std::map<int, int> sticky;
  /** Devices whose context was made by a call of the runtime. */
  std::set<int> contexts;
  /** (device, peer) pairs whose access was enabled. */
  std::set<std::pair<int, int>> peers;

  void violation(std::string name, std::string detail) { report.violation(std::move(name), std::move(detail)); }
  /** Wakes whoever waits for something to change. */
  void announce() {
    if (waiting > 0) changed.notify_all();
  }
};

World& world();

/** Names a number in error texts of a thread and holds what a thread has current. */
struct ThreadState {
  uint64_t epoch = 0;
  int device = 0;
  /** A thread without a context cannot use the driver's interface. */
  bool bound = false;
  int lastError = 0;
  bool inHostFunction = false;
};

/** The calling thread's state, fresh after a reset. Needs the lock. */
ThreadState& threadState(World&);

/** One call into the library: the lock, and what planned faults say about it. */
struct Call {
  Call(World& world, const char* function);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  World& world;
  const char* function;
  Lock lock;
  ThreadState& thread;
  /** The answer that a planned fault wants; nothing else may be done then. */
  int fault = 0;
  bool faulted = false;
  bool stall = false;
  int late = 0;
};

/** Runs a body as a call; exceptions become `failed`. */
template <typename Body>
int guarded(const char* function, int failed, Body body) noexcept {
  try {
    Call call(world(), function);
    if (call.faulted) return call.fault;
    return body(call);
  } catch (...) {
    return failed;
  }
}

/** A call of the runtime: binds the thread, answers a broken device's error, and keeps the last error. */
template <typename Body>
int runtimeCall(const char* function, Body body) noexcept {
  return guarded(function, code::unknown, [&](Call& call) {
    call.thread.bound = true;
    call.world.contexts.insert(call.thread.device);
    int answer = call.world.settings.devices == 0 ? code::noDevice : 0;
    if (answer == 0) {
      const auto sticky = call.world.sticky.find(call.thread.device);
      answer = sticky == call.world.sticky.end() ? body(call) : sticky->second;
    }
    if (answer != 0) call.thread.lastError = answer;
    return answer;
  });
}

/** A call of the driver's interface that needs a context. */
template <typename Body>
int driverCall(const char* function, Body body) noexcept {
  return guarded(function, code::unknown, [&](Call& call) -> int {
    if (!call.thread.bound) {
      call.world.violation("no-context", std::string(function) + " on a thread without a current context.");
      return code::invalidContext;
    }
    const auto sticky = call.world.sticky.find(call.thread.device);
    return sticky == call.world.sticky.end() ? body(call) : sticky->second;
  });
}

uint64_t nanoseconds();

/** True while the process of that number and start is alive and not just waiting to be collected. */
bool processAlive(uint32_t process, uint64_t start);
/** When a process started, in the system's ticks; zero when there is none. */
uint64_t processStart(uint32_t process);
/** Opens a file that another process holds; -1 when it is gone or is another one. */
int openForeignFile(uint32_t process, int file, uint64_t inode);
uint64_t inodeOf(int file);
uint64_t hashText(const std::string& text, uint64_t seed = 14695981039346656037u);

}  // namespace tensorferry::gpu::simulator
