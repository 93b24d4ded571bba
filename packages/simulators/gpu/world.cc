// SPDX-License-Identifier: Apache-2.0
/*
 * The world of this process, how calls enter it, and small facts about processes and files.
 */
#include "world.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "control.h"

namespace tensorferry::gpu::simulator {

World& world() {
  static World* const theWorld = [] {
    auto* made = new World;
    readEnvironment(*made);
    return made;
  }();
  return *theWorld;
}

ThreadState& threadState(World& world) {
  thread_local ThreadState state;
  if (state.epoch != world.epoch) {
    const bool inHostFunction = state.inHostFunction;
    state = ThreadState{};
    state.epoch = world.epoch;
    state.inHostFunction = inHostFunction;
  }
  return state;
}

namespace {

Lock enter(World& world) {
  world.wanting.fetch_add(1, std::memory_order_relaxed);
  Lock lock(world.mutex);
  world.wanting.fetch_sub(1, std::memory_order_relaxed);
  return lock;
}

/** Blocks until the faults are cleared, a reset, or the bound of all waits. */
void hang(Call& call) {
  World& world = call.world;
  const uint64_t epoch = world.epoch;
  const uint64_t end = nanoseconds() + uint64_t{world.settings.stuck} * 1000000;
  while (world.epoch == epoch && nanoseconds() < end) {
    bool planned = false;
    for (const auto& fault : world.settings.faults)
      planned |= fault.kind == FaultKind::Hang && fault.function == call.function;
    if (!planned) return;
    world.waiting++;
    world.changed.wait_until(call.lock, std::chrono::system_clock::now() + std::chrono::milliseconds(5));
    world.waiting--;
  }
}

}  // namespace

Call::Call(World& where, const char* name)
    : world(where), function(name), lock(enter(where)), thread(threadState(where)) {
  world.report.calls[name]++;
  if (thread.inHostFunction && std::strncmp(name, "tensorferry", 11) != 0) {
    world.violation("call-in-host-function", std::string(name) + " was called by a function of cudaLaunchHostFunc.");
    faulted = true;
    fault = code::notPermitted;
    return;
  }
  bool hanging = false;
  for (auto& planned : world.settings.faults) {
    if (planned.function != name) continue;
    planned.seen++;
    if (planned.call != 0 && planned.call != planned.seen) continue;
    if (planned.kind == FaultKind::Fail) {
      faulted = true;
      fault = planned.code;
    } else if (planned.kind == FaultKind::Hang) {
      hanging = true;
    } else if (planned.kind == FaultKind::Stall) {
      stall = true;
    } else {
      late = planned.code;
    }
  }
  if (hanging) hang(*this);
  if (faulted && std::strncmp(name, "cuda", 4) == 0) thread.lastError = fault;
}

Call::~Call() = default;

uint64_t nanoseconds() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

namespace {

/** The state letter and the start time of a process; false when there is none. */
bool readProcess(uint32_t process, char& state, uint64_t& start) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%u/stat", process);
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  char text[1024];
  const ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  if (length <= 0) return false;
  text[length] = 0;
  // The name may hold anything; what follows starts after the last parenthesis.
  const char* rest = std::strrchr(text, ')');
  if (rest == nullptr) return false;
  unsigned long long ticks = 0;
  if (std::sscanf(rest + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &state,
                  &ticks) != 2)
    return false;
  start = ticks;
  return true;
}

}  // namespace

uint64_t processStart(uint32_t process) {
  char state = 0;
  uint64_t start = 0;
  return readProcess(process, state, start) ? start : 0;
}

bool processAlive(uint32_t process, uint64_t expected) {
  char state = 0;
  uint64_t start = 0;
  return readProcess(process, state, start) && start == expected && state != 'Z' && state != 'X';
}

uint64_t inodeOf(int file) {
  struct stat about;
  return fstat(file, &about) == 0 ? about.st_ino : 0;
}

int openForeignFile(uint32_t process, int file, uint64_t inode) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%u/fd/%d", process, file);
  const int opened = open(path, O_RDWR | O_CLOEXEC);
  if (opened >= 0 && inodeOf(opened) != inode) {
    close(opened);
    return -1;
  }
  return opened;
}

uint64_t hashText(const std::string& text, uint64_t seed) {
  uint64_t hash = seed;
  for (const unsigned char byte : text) hash = (hash ^ byte) * 1099511628211u;
  return hash;
}

}  // namespace tensorferry::gpu::simulator
