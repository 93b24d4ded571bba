// SPDX-License-Identifier: Apache-2.0
/*
 * The scheduler: which piece of which stream runs next.
 *
 * A wait runs what leads to it, in a random order, and sometimes what does not. Who waits in vain looks again after a short
 * while, because other processes and threads change what is shared.
 */
#include "streams.h"

#include <algorithm>
#include <array>
#include <set>
#include <thread>

#include "world.h"

namespace tensorferry::gpu::simulator {
namespace {

constexpr auto shortestPause = std::chrono::microseconds(50);
constexpr auto longestPause = std::chrono::microseconds(1000);

/** True when the head of the stream can run a piece; adds what it needs first. */
bool canRun(World& world, const Stream& stream, std::vector<StreamRef>& needs) {
  if (stream.queue.empty() || stream.running) return false;
  Operation& head = *stream.queue.front();
  bool free = true;
  for (const auto& dependency : head.dependencies) {
    if (dependency.met()) continue;
    free = false;
    needs.push_back(dependency.stream);
  }
  if (!free) return false;
  if (head.stalled && !head.released()) return false;
  return !head.blocked(world, needs);
}

/** The streams that can run a piece, among those that the roots need. */
std::vector<StreamRef> frontier(World& world, std::vector<StreamRef> open) {
  std::vector<StreamRef> ready;
  std::set<const Stream*> seen;
  while (!open.empty()) {
    const StreamRef stream = std::move(open.back());
    open.pop_back();
    if (stream == nullptr || !seen.insert(stream.get()).second) continue;
    if (canRun(world, *stream, open)) ready.push_back(stream);
  }
  std::sort(ready.begin(), ready.end(), [](const auto& a, const auto& b) { return a->number < b->number; });
  return ready;
}

std::vector<StreamRef> allReady(World& world) {
  std::vector<StreamRef> ready;
  std::vector<StreamRef> needs;
  for (const auto& entry : world.streams.active) {
    needs.clear();
    if (canRun(world, *entry.second, needs)) ready.push_back(entry.second);
  }
  return ready;
}

void finish(World& world, const StreamRef& stream) {
  const std::unique_ptr<Operation> head = std::move(stream->queue.front());
  stream->queue.pop_front();
  stream->completed = head->sequence;
  world.streams.pending--;
  if (head->lateError != 0) world.sticky[stream->device] = head->lateError;
  if (stream->destroyed && stream->queue.empty()) world.streams.active.erase(stream->number);
}

/** Runs one piece of the head, which is not blocked. */
void step(World& world, Lock& lock, const StreamRef& stream) {
  const uint64_t epoch = world.epoch;
  const Progress progress = stream->queue.front()->advance(world, lock);
  if (world.epoch != epoch) return;
  world.driven = std::chrono::steady_clock::now();
  if (progress == Progress::Finished) finish(world, stream);
  world.announce();
}

/** How one wait chooses. Drawn anew for each, so that every order comes up under some seed. */
struct Policy {
  enum class Choice { Any, Oldest, Newest } choice;
  unsigned others;

  explicit Policy(Random& random)
      : choice(static_cast<Choice>(random.below(3))), others(std::array<unsigned, 4>{0, 0, 30, 70}[random.below(4)]) {}
  const StreamRef& pick(Random& random, const std::vector<StreamRef>& ready) const {
    // Even a fixed preference yields now and then.
    if (choice == Choice::Any || random.chance(15)) return ready[random.below(ready.size())];
    return choice == Choice::Oldest ? ready.front() : ready.back();
  }
};

void letOthersIn(World& world, Lock& lock) {
  if (world.wanting.load(std::memory_order_relaxed) == 0) return;
  lock.unlock();
  std::this_thread::yield();
  lock.lock();
}

void pace(World& world) {
  Lock lock(world.mutex);
  unsigned skipped = 0;
  while (true) {
    const bool work =
        world.streams.pending > 0 || world.communicators.handles.size() > 0 || !world.memory.quarantine.empty();
    if (!work || world.settings.pace == 0) {
      world.pacer.wait(lock);
      continue;
    }
    const auto period = std::chrono::milliseconds(world.settings.pace);
    world.pacer.wait_until(lock, std::chrono::system_clock::now() + period);
    // Work that somebody drives gets on anyway; the rest comes late, but comes.
    if (std::chrono::steady_clock::now() - world.driven < period && ++skipped < 8) continue;
    skipped = 0;
    paceCommunicators(world);
    runAny(world, lock, 1 + world.random.below(24));
    retire(world, false);
  }
}

}  // namespace

void wakePacer(World& world) {
  if (!world.pacing) {
    world.pacing = true;
    std::thread([&world] { pace(world); }).detach();
  }
  world.pacer.notify_one();
}

StreamRef makeStream(World& world, int device, bool blocking, bool legacy) {
  auto stream = std::make_shared<Stream>();
  stream->number = world.streams.next++;
  stream->device = device;
  stream->blocking = blocking;
  stream->legacy = legacy;
  world.streams.active.emplace(stream->number, stream);
  return stream;
}

StreamRef findStream(World& world, const void* handle, const char* function) {
  const auto bits = reinterpret_cast<uintptr_t>(handle);
  if (bits <= 1) {
    StreamRef& legacy = world.streams.legacy[threadState(world).device];
    if (legacy == nullptr) legacy = makeStream(world, threadState(world).device, true, true);
    return legacy;
  }
  auto stream = world.streams.handles.find(handle);
  if (stream == nullptr)
    world.violation(world.streams.handles.wasReleased(handle) ? "use-after-destroy" : "bad-handle",
                    std::string(function) + " with a stream that " +
                        (world.streams.handles.wasReleased(handle) ? "was destroyed." : "does not exist."));
  return stream;
}

uint64_t submit(World& world, const StreamRef& stream, std::unique_ptr<Operation> operation) {
  const uint64_t sequence = ++stream->submitted;
  operation->sequence = sequence;
  if (stream->legacy) {
    for (const auto& entry : world.streams.active) {
      const StreamRef& other = entry.second;
      if (other != stream && other->device == stream->device && other->blocking && !other->queue.empty())
        operation->dependencies.push_back({other, other->submitted});
    }
  } else if (stream->blocking) {
    const auto legacy = world.streams.legacy.find(stream->device);
    if (legacy != world.streams.legacy.end() && !legacy->second->queue.empty())
      operation->dependencies.push_back({legacy->second, legacy->second->submitted});
  }
  stream->queue.push_back(std::move(operation));
  world.streams.pending++;
  // A stream destroyed in the meantime is listed again, so that its work still runs.
  world.streams.active.emplace(stream->number, stream);
  wakePacer(world);
  world.announce();
  return sequence;
}

uint64_t submit(Call& call, const StreamRef& stream, std::unique_ptr<Operation> operation) {
  operation->stalled = call.stall;
  operation->lateError = call.late;
  return submit(call.world, stream, std::move(operation));
}

std::vector<Dependency> everythingPending(World& world) {
  std::vector<Dependency> all;
  for (const auto& entry : world.streams.active)
    if (!entry.second->queue.empty()) all.push_back({entry.second, entry.second->submitted});
  return all;
}

bool usedByQueue(World& world, uintptr_t start, size_t bytes, std::string* user) {
  for (const auto& entry : world.streams.active)
    for (const auto& operation : entry.second->queue)
      for (const auto& use : operation->uses)
        if (use.overlaps(start, bytes)) {
          *user = std::string(operation->kind()) + " in " + entry.second->label();
          return true;
        }
  return false;
}

int drive(World& world, Lock& lock, const std::string& what, const Roots& roots, const std::function<bool()>& done) {
  const uint64_t epoch = world.epoch;
  const Policy policy(world.random);
  auto pause = shortestPause;
  uint64_t progressAt = nanoseconds();
  while (!done()) {
    std::vector<StreamRef> open;
    roots(open);
    StreamRef chosen;
    const auto ready = frontier(world, std::move(open));
    if (!ready.empty()) chosen = policy.pick(world.random, ready);
    const bool leads = chosen != nullptr;
    if (world.random.chance(policy.others)) {
      const auto all = allReady(world);
      if (!all.empty()) chosen = all[world.random.below(all.size())];
    }
    if (chosen != nullptr) {
      step(world, lock, chosen);
      letOthersIn(world, lock);
    }
    if (leads) {
      pause = shortestPause;
      progressAt = nanoseconds();
    } else {
      world.waiting++;
      world.changed.wait_until(lock, std::chrono::system_clock::now() + pause);
      world.waiting--;
      pause = std::min(pause * 2, longestPause);
    }
    if (world.epoch != epoch) return code::contextDestroyed;
    if (nanoseconds() - progressAt > uint64_t{world.settings.stuck} * 1000000 && !done()) {
      world.violation("stuck", what + ": nothing got on for " + std::to_string(world.settings.stuck) + " ms.");
      return code::timeout;
    }
  }
  return 0;
}

int driveTo(World& world, Lock& lock, const StreamRef& stream, uint64_t sequence, const std::string& what) {
  return drive(
      world, lock, what, [&](std::vector<StreamRef>& open) { open.push_back(stream); },
      [&] { return stream->completed >= sequence; });
}

void nudge(World& world, Lock& lock) {
  if (world.random.chance(world.settings.query)) runAny(world, lock, 1 + world.random.below(4));
}

size_t runAny(World& world, Lock& lock, size_t count) {
  const uint64_t epoch = world.epoch;
  size_t ran = 0;
  while (ran < count) {
    const auto ready = allReady(world);
    if (ready.empty()) break;
    // A few pieces of one stream in a row, or a change of streams: both come up.
    const StreamRef chosen = ready[world.random.below(ready.size())];
    step(world, lock, chosen);
    ran++;
    letOthersIn(world, lock);
    if (world.epoch != epoch) break;
  }
  return ran;
}

}  // namespace tensorferry::gpu::simulator
