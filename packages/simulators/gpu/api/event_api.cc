// SPDX-License-Identifier: Apache-2.0
/*
 * The calls about events, in one process and between processes.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "world.h"

namespace tensorferry::gpu::simulator {
namespace {

constexpr uint64_t eventHandleMagic = 0x746665766e743031u;

struct EventHandle {
  uint64_t magic;
  uint32_t process;
  int32_t file;
  uint64_t start;
  uint64_t inode;
  uint64_t index;
  uint64_t life;
  uint64_t node;
  uint64_t check;
};
static_assert(sizeof(EventHandle) == sizeof(IpcHandle));

std::shared_ptr<CellPool> mapPool(int file) {
  auto pool = std::make_shared<CellPool>();
  pool->file = file;
  pool->inode = inodeOf(file);
  void* base = mmap(nullptr, cellBytes * cellsPerPool, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (base == MAP_FAILED) return nullptr;
  pool->base = static_cast<char*>(base);
  return pool;
}

/** A destroyed event's cell is not used again before its last record has run. */
bool hasPendingRecord(const World& world, const EventCell* cell) {
  const auto first = world.events.pending.lower_bound({cell, 0});
  return first != world.events.pending.end() && first->first.first == cell;
}

/** Takes a shared cell of this process. */
bool takeCell(World& world, Event& event) {
  for (int attempt = 0; attempt < 2; attempt++) {
    for (const auto& pool : world.events.pools)
      for (size_t index = 0; index < cellsPerPool; index++) {
        EventCell* cell = pool->cell(index);
        if (cell->life.load(std::memory_order_acquire) != 0 || hasPendingRecord(world, cell)) continue;
        cell->recorded.store(0);
        for (auto& done : cell->done) done.store(0);
        cell->life.store(event.life, std::memory_order_release);
        event.pool = pool;
        event.index = index;
        event.cell = std::shared_ptr<EventCell>(pool, cell);
        return true;
      }
    const int file = memfd_create("tensorferry-simulated-events", MFD_CLOEXEC);
    if (file < 0) return false;
    if (ftruncate(file, cellBytes * cellsPerPool) != 0) {
      close(file);
      return false;
    }
    auto pool = mapPool(file);
    if (pool == nullptr) return false;
    world.events.pools.push_back(std::move(pool));
  }
  return false;
}

bool ownerDestroyed(const Event& event) {
  return event.imported && event.cell->life.load(std::memory_order_acquire) != event.life;
}

class Record final : public Operation {
 public:
  Record(EventRef event, uint64_t number) : event_(std::move(event)), number_(number) {}
  const char* kind() const override { return "an event record"; }
  Progress advance(World& world, Lock&) override {
    EventCell& cell = *event_->cell;
    auto& done = cell.done[number_ % 64];
    if (done.load(std::memory_order_relaxed) < number_) done.store(number_, std::memory_order_release);
    if (event_->reachedRecord < number_) {
      event_->reachedRecord = number_;
      event_->reachedAt = nanoseconds();
    }
    world.events.pending.erase({&cell, number_});
    return Progress::Finished;
  }

 private:
  EventRef event_;
  uint64_t number_;
};

class Wait final : public Operation {
 public:
  Wait(EventRef event, uint64_t number) : event_(std::move(event)), number_(number) {}
  const char* kind() const override { return "a wait for an event"; }
  bool blocked(World& world, std::vector<StreamRef>& needs) override {
    if (event_->cell->isDone(number_)) return false;
    if (ownerDestroyed(*event_)) {
      if (!reported_)
        world.violation("import-after-destroy", "A queued wait for an imported event that its owner destroyed.");
      reported_ = true;
      return false;
    }
    const auto record = world.events.pending.find({event_->cell.get(), number_});
    if (record != world.events.pending.end()) needs.push_back(record->second);
    return true;
  }
  Progress advance(World&, Lock&) override { return Progress::Finished; }

 private:
  EventRef event_;
  uint64_t number_;
  bool reported_ = false;
};

void checkOwner(World& world, const Event& event, const char* function) {
  if (ownerDestroyed(event))
    world.violation("import-after-destroy",
                    std::string(function) + " uses an imported event that its owner has destroyed.");
}

}  // namespace

CellPool::~CellPool() {
  if (base != nullptr) munmap(base, cellBytes * cellsPerPool);
  if (file >= 0) close(file);
}

EventRef findEvent(World& world, const void* handle, const char* function) {
  auto event = world.events.handles.find(handle);
  if (event == nullptr) {
    const bool released = world.events.handles.wasReleased(handle);
    world.violation(released ? "use-after-destroy" : "bad-handle",
                    std::string(function) + " with an event that " + (released ? "was destroyed." : "does not exist."));
    return nullptr;
  }
  checkOwner(world, *event, function);
  return event;
}

TENSORFERRY_SIM_API int cudaEventCreateWithFlags(void** handle, unsigned flags) {
  return runtimeCall("cudaEventCreateWithFlags", [&](Call& call) -> int {
    const bool interprocess = (flags & 4) != 0;
    const bool timing = (flags & 2) == 0;
    if (handle == nullptr || flags > 7 || (interprocess && timing)) return code::invalidValue;
    auto event = std::make_shared<Event>();
    event->number = call.world.events.next++;
    event->life = event->number;
    event->device = call.thread.device;
    event->timing = timing;
    event->interprocess = interprocess;
    if (!interprocess) event->cell = std::make_shared<EventCell>();
    else if (!takeCell(call.world, *event)) return code::outOfMemory;
    *handle = call.world.events.handles.issue(std::move(event));
    return 0;
  });
}

TENSORFERRY_SIM_API int cudaEventDestroy(void* handle) {
  return runtimeCall("cudaEventDestroy", [&](Call& call) -> int {
    Events& events = call.world.events;
    const EventRef event = events.handles.release(handle);
    if (event == nullptr) {
      call.world.violation(events.handles.wasReleased(handle) ? "double-destroy" : "bad-handle",
                           "cudaEventDestroy of an event that does not exist (any more).");
      return code::invalidHandle;
    }
    // Queued records and waits hold the cell; a shared one is only marked, and taken again later.
    if (event->interprocess && !event->imported) event->cell->life.store(0, std::memory_order_release);
    return 0;
  });
}

TENSORFERRY_SIM_API int cudaEventRecord(void* handle, void* streamHandle) {
  return runtimeCall("cudaEventRecord", [&](Call& call) -> int {
    World& world = call.world;
    const EventRef event = findEvent(world, handle, call.function);
    if (event == nullptr) return code::invalidHandle;
    const StreamRef stream = findStream(world, streamHandle, call.function);
    if (stream == nullptr) return code::invalidHandle;
    if (stream->device != event->device) {
      world.violation("wrong-device", "cudaEventRecord of an event of device " + std::to_string(event->device) +
                                          " in a stream of device " + std::to_string(stream->device) + ".");
      return code::invalidHandle;
    }
    const uint64_t number = event->cell->recorded.fetch_add(1, std::memory_order_acq_rel) + 1;
    world.events.pending[{event->cell.get(), number}] = stream;
    submit(call, stream, std::make_unique<Record>(event, number));
    return 0;
  });
}

TENSORFERRY_SIM_API int cudaStreamWaitEvent(void* streamHandle, void* handle, unsigned flags) {
  return runtimeCall("cudaStreamWaitEvent", [&](Call& call) -> int {
    if (flags > 1) return code::invalidValue;
    const EventRef event = findEvent(call.world, handle, call.function);
    if (event == nullptr) return code::invalidHandle;
    const StreamRef stream = findStream(call.world, streamHandle, call.function);
    if (stream == nullptr) return code::invalidHandle;
    const uint64_t number = event->cell->recorded.load(std::memory_order_acquire);
    if (number != 0) submit(call, stream, std::make_unique<Wait>(event, number));
    return 0;
  });
}

/** The driver's forms. Counted, and made to fail, under the runtime's names. */
TENSORFERRY_SIM_API int cuEventRecord(void* event, void* stream) { return cudaEventRecord(event, stream); }

TENSORFERRY_SIM_API int cuStreamWaitEvent(void* stream, void* event, unsigned flags) {
  return cudaStreamWaitEvent(stream, event, flags);
}

TENSORFERRY_SIM_API int cudaEventQuery(void* handle) {
  return runtimeCall("cudaEventQuery", [&](Call& call) -> int {
    const EventRef event = findEvent(call.world, handle, call.function);
    if (event == nullptr) return code::invalidHandle;
    nudge(call.world, call.lock);
    const auto sticky = call.world.sticky.find(event->device);
    if (sticky != call.world.sticky.end()) return sticky->second;
    const uint64_t number = event->cell->recorded.load(std::memory_order_acquire);
    return event->cell->isDone(number) ? 0 : code::notReady;
  });
}

TENSORFERRY_SIM_API int cudaEventSynchronize(void* handle) {
  return runtimeCall("cudaEventSynchronize", [&](Call& call) -> int {
    World& world = call.world;
    const EventRef event = findEvent(world, handle, call.function);
    if (event == nullptr) return code::invalidHandle;
    const uint64_t number = event->cell->recorded.load(std::memory_order_acquire);
    const int answer = drive(
        world, call.lock, "cudaEventSynchronize of event " + std::to_string(event->number),
        [&](std::vector<StreamRef>& open) {
          const auto record = world.events.pending.find({event->cell.get(), number});
          if (record != world.events.pending.end()) open.push_back(record->second);
        },
        [&] { return event->cell->isDone(number); });
    const auto sticky = world.sticky.find(event->device);
    return answer == 0 && sticky != world.sticky.end() ? sticky->second : answer;
  });
}

TENSORFERRY_SIM_API int cudaEventElapsedTime(float* milliseconds, void* startHandle, void* endHandle) {
  return runtimeCall("cudaEventElapsedTime", [&](Call& call) -> int {
    const EventRef start = findEvent(call.world, startHandle, call.function);
    const EventRef end = findEvent(call.world, endHandle, call.function);
    if (milliseconds == nullptr) return code::invalidValue;
    if (start == nullptr || end == nullptr || !start->timing || !end->timing || start->device != end->device)
      return code::invalidHandle;
    for (const auto& event : {start, end}) {
      const uint64_t number = event->cell->recorded.load(std::memory_order_acquire);
      if (number == 0) return code::invalidHandle;
      if (!event->cell->isDone(number)) return code::notReady;
    }
    *milliseconds =
        static_cast<float>(static_cast<double>(end->reachedAt) - static_cast<double>(start->reachedAt)) * 1e-6f;
    return 0;
  });
}
// The runtime of CUDA 12.8 and later also exports it by this name.
TENSORFERRY_SIM_API int cudaEventElapsedTime_v2(float* milliseconds, void* start, void* end) {
  return cudaEventElapsedTime(milliseconds, start, end);
}

TENSORFERRY_SIM_API int cudaIpcGetEventHandle(IpcHandle* out, void* handle) {
  return runtimeCall("cudaIpcGetEventHandle", [&](Call& call) -> int {
    if (out == nullptr) return code::invalidValue;
    const EventRef event = findEvent(call.world, handle, call.function);
    if (event == nullptr || !event->interprocess || event->imported) return code::invalidHandle;
    const auto process = static_cast<uint32_t>(getpid());
    EventHandle made{eventHandleMagic,
                     process,
                     event->pool->file,
                     processStart(process),
                     event->pool->inode,
                     event->index,
                     event->life,
                     hashText(call.world.settings.node),
                     0};
    made.check = hashText(std::string(reinterpret_cast<const char*>(&made), offsetof(EventHandle, check)));
    std::memcpy(out, &made, sizeof made);
    return 0;
  });
}

TENSORFERRY_SIM_API int cudaIpcOpenEventHandle(void** out, IpcHandle handle) {
  return runtimeCall("cudaIpcOpenEventHandle", [&](Call& call) -> int {
    World& world = call.world;
    EventHandle given;
    std::memcpy(&given, &handle, sizeof given);
    if (out == nullptr) return code::invalidValue;
    if (given.magic != eventHandleMagic ||
        given.check != hashText(std::string(reinterpret_cast<const char*>(&given), offsetof(EventHandle, check)))) {
      world.violation("bad-ipc-handle", "cudaIpcOpenEventHandle of bytes that are no event handle.");
      return code::invalidHandle;
    }
    if (given.process == static_cast<uint32_t>(getpid())) {
      world.violation("ipc-open-own", "cudaIpcOpenEventHandle in the process that made the handle.");
      return code::invalidContext;
    }
    if (given.node != hashText(world.settings.node) || !processAlive(given.process, given.start))
      return code::invalidHandle;
    const int file = openForeignFile(given.process, given.file, given.inode);
    if (file < 0) return code::invalidHandle;
    auto pool = mapPool(file);
    if (pool == nullptr) return code::outOfMemory;
    EventCell* cell = pool->cell(given.index % cellsPerPool);
    if (cell->life.load(std::memory_order_acquire) != given.life) return code::invalidHandle;
    auto event = std::make_shared<Event>();
    event->number = world.events.next++;
    event->life = given.life;
    event->device = call.thread.device;
    event->timing = false;
    event->interprocess = true;
    event->imported = true;
    event->index = given.index;
    event->cell = std::shared_ptr<EventCell>(pool, cell);
    event->pool = std::move(pool);
    *out = world.events.handles.issue(std::move(event));
    return 0;
  });
}

}  // namespace tensorferry::gpu::simulator
