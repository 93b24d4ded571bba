// SPDX-License-Identifier: Apache-2.0
/*
 * See replay.h. Pinned memory is handed to the driver on the JS thread, where that takes microseconds; pageable memory is
 * copied by the driver before it returns, so all but short copies of it have a thread.
 */
#include "replay.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "memory.h"

namespace tensorferry::gpu {
namespace {

/** Pageable memory up to this length is read in less time than a thread needs to wake up. */
constexpr size_t inlineBytes = size_t{64} << 10;

/** Bytes per nanosecond that no link exceeds: how soon, at best, a copy has ended. */
constexpr int64_t fastest = 512;

/** How long the end waits for a device that does not answer any more. */
constexpr auto patience = std::chrono::seconds(10);

int64_t now() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/** The event that this slot's latest copy ends with. */
ReplaySlot::Recorded recorded(ReplaySlot* slot) noexcept {
  return slot == nullptr ? ReplaySlot::Recorded{}
                         : ReplaySlot::Recorded{slot, slot->recordings.load(std::memory_order_acquire)};
}

/** The driver's own functions cost a submission less than the runtime's above them; answers are numbered alike. */
int queueCopy(const GpuApi& api, uint64_t destination, uint64_t source, size_t bytes, StreamHandle stream) noexcept {
  const void* from = reinterpret_cast<const void*>(source);
  return api.queueToDevice ? api.queueToDevice(destination, from, bytes, stream)
                           : api.copy(reinterpret_cast<void*>(destination), from, bytes, hostToDevice, stream);
}

int queueEvent(const GpuApi& api, EventHandle event, StreamHandle stream) noexcept {
  return api.queueEvent ? api.queueEvent(event, stream) : api.recordEvent(event, stream);
}

/** Milliseconds between two events; negative where they do not tell. */
float elapsedBetween(const GpuApi& api, EventHandle begin, EventHandle end) noexcept {
  float milliseconds = -1;
  if (begin == nullptr || end == nullptr) return -1;
  if (api.elapsed(&milliseconds, begin, end) == code::success) return milliseconds;
  api.clearError();
  return -1;
}

/** Whether a driver knows host memory at this address: page-locked by whomever. */
bool isPageLocked(const GpuApi& api, uint64_t address) noexcept {
  uint32_t type = 0;
  return api.pointerAttribute(&type, pointer::memoryType, address) == code::success && type != pointer::deviceMemory;
}

}  // namespace

EventHandle ReplaySlot::Recorded::event() const noexcept {
  // Two copies later that event stands behind another one.
  const bool isThere = slot != nullptr && slot->recordings.load(std::memory_order_acquire) - recordings < 2;
  return isThere ? slot->readyOf(recordings) : nullptr;
}

Result<std::shared_ptr<Replay>> Replay::create(const std::shared_ptr<Device>& device, size_t slotCount,
                                               const ReplayWay& way, Jobs& jobs) {
  const GpuApi& api = device->api();
  DeviceScope scope(api, device->ordinal());
  if (Status status = scope.status(); !status.ok()) return status;
  auto replay = std::make_shared<Replay>(device, way, jobs);
  const auto open = [&](Stream& stream) -> Status {
    auto made = makeStream(api);
    if (made.ok()) stream = std::move(made.value());
    return made.ok() ? Status{} : made.status();
  };
  if (Status status = open(replay->own); !status.ok()) return status;
  for (size_t i = 0; i < std::min(way.streams, slotCount); i++) {
    ReplayLane& lane = replay->lanes.emplace_back();
    lane.unmarked.reserve(way.copiesPerEvent);
    if (Status status = open(lane.stream); !status.ok()) return status;
  }
  for (size_t i = 0; i < slotCount; i++) {
    ReplaySlot& slot = replay->slots.emplace_back();
    slot.lane = &replay->lanes[i % replay->lanes.size()];
    for (Event* event : {&slot.begin, &slot.ready[0], &slot.ready[1]}) {
      auto made = makeEvent(api, way.isTimed);
      if (!made.ok()) return made.status();
      *event = std::move(made.value());
    }
  }
  device->adopt(replay);
  replay->pins.addUser(replay);
  return replay;
}

int Replay::query() const noexcept {
  if (!isOpen()) return replay::isClosed;
  CurrentDevice current(api(), device->ordinal());
  for (const ReplayLane& lane : lanes) {
    const int answer = api().queryStream(lane.stream.get());
    if (answer != code::success) return answer;
  }
  return code::success;
}

Result<std::vector<Event>> Replay::fence(bool isOfCopies) const {
  std::vector<Event> events;
  const auto record = [&](const Stream& stream) -> Status {
    auto event = makeEvent(api(), false);
    if (!event.ok()) return event.status();
    Status status = callRuntime(api(), api().recordEvent, event.value().get(), stream.get());
    if (status.ok()) events.push_back(std::move(event.value()));
    return status;
  };
  if (!isOfCopies) {
    if (Status status = record(own); !status.ok()) return status;
    return events;
  }
  for (const ReplayLane& lane : lanes)
    if (Status status = record(lane.stream); !status.ok()) return status;
  return events;
}

void Replay::settle() noexcept {
  std::lock_guard lock(mutex_);
  if (lanes.empty()) return;
  caught("settle", [this]() -> Status {
    DeviceScope scope(api(), device->ordinal());
    Waker waker;
    const CancelToken never;
    Backoff backoff(waker, never);
    const auto begun = std::chrono::steady_clock::now();
    const auto isPatient = [&] { return std::chrono::steady_clock::now() - begun < patience; };
    while (onThreads_.load(std::memory_order_acquire) > 0 && isPatient()) backoff.pause();
    if (std::ranges::none_of(
            lanes, [&](const ReplayLane& lane) { return api().queryStream(lane.stream.get()) == code::notReady; }))
      return {};
    // A fence: a stream that is never idle would keep us here.
    auto events = fence(true);
    if (!events.ok()) return events.status();
    for (const Event& event : events.value())
      while (api().queryEvent(event.get()) == code::notReady && isPatient()) backoff.pause();
    return {};
  });
}

void Replay::giveBack() noexcept {
  for (const auto& pool : {submissions, waits}) pool->pool.close();
  settle();
  std::lock_guard lock(mutex_);
  Waker waker;
  const CancelToken never;
  Backoff backoff(waker, never);
  const auto begun = std::chrono::steady_clock::now();
  while (own && api().queryStream(own.get()) == code::notReady && std::chrono::steady_clock::now() - begun < patience)
    backoff.pause();
  latest.store(nullptr);
  slots.clear();
  own.reset();
  lanes.clear();
}

/** Finds out how the source lies in registrations, unless that is known. */
void ReplayCopy::look() {
  const uint64_t version = replay->pins.version();
  if (version == seenVersion_) return;
  runs_ = replay->pins.runsOf(source_, bytes_);
  isKnownToDriver_ = runs_.isPinned || (bytes_ > 0 && isPageLocked(replay->api(), source_) &&
                                        isPageLocked(replay->api(), source_ + bytes_ - 1));
  seenVersion_ = version;
}

/** Finds out what the copy begins behind; records its beginning where the stream has nothing to do. */
int ReplayCopy::begin(ReplayLane& lane) noexcept {
  const GpuApi& api = replay->api();
  const int64_t moment = now(), busyUntil = lane.busyUntil.load(std::memory_order_relaxed);
  ReplaySlot* latest = replay->latest.load(std::memory_order_acquire);
  slot_.beforeOnLink = latest == nullptr || latest->lane == &lane ? ReplaySlot::Recorded{} : recorded(latest);
  slot_.before = recorded(lane.latest.load(std::memory_order_acquire));
  slot_.kept.store(-1, std::memory_order_relaxed);
  lane.busyUntil.store(std::max(moment, busyUntil) + static_cast<int64_t>(bytes_) / fastest, std::memory_order_relaxed);
  // The end of a copy still under way is the beginning of this one: every event between two copies keeps the link idle. The
  // device is asked only where the clock does not tell.
  const EventHandle before = slot_.before.event();
  if (before != nullptr && lane.ended.load(std::memory_order_acquire) < lane.queued.load(std::memory_order_acquire) &&
      (moment < busyUntil || api.queryEvent(before) == code::notReady)) {
    slot_.before.slot->follower[slot_.before.recordings % 2].store(&slot_, std::memory_order_release);
    return code::success;
  }
  slot_.before = {};
  return queueEvent(api, slot_.begin.get(), lane.stream.get());
}

/** Records the slot's event behind all copies of its stream, for its own and, on the JS thread, for those without one. */
int ReplayCopy::recordMark(bool isForAll) noexcept {
  ReplayLane& lane = *slot_.lane;
  const uint32_t count = slot_.recordings.load(std::memory_order_relaxed) + 1;
  const EventHandle event = slot_.readyOf(count);
  const uint64_t covered = lane.queued.load(std::memory_order_acquire);
  // This event stood behind the copy before the last: what began there has ended, unless a slot was used against its rules.
  ReplaySlot* const follower = slot_.follower[count % 2].exchange(nullptr, std::memory_order_acq_rel);
  if (isForAll && follower != nullptr && follower->before == ReplaySlot::Recorded{&slot_, count - 2})
    follower->kept.store(follower->seconds(replay->api()), std::memory_order_release);
  const int answer = queueEvent(replay->api(), event, lane.stream.get());
  if (answer != code::success) return answer;
  slot_.recordings.store(count, std::memory_order_release);
  const auto assign = [&](ReplaySlot& slot, double share) {
    slot.share = share;
    slot.marked.store(covered, std::memory_order_relaxed);
    slot.mark.store(event, std::memory_order_release);
  };
  assign(slot_, 1);
  if (isForAll) {
    double bytes = 0;
    for (const ReplaySlot* slot : lane.unmarked) bytes += static_cast<double>(slot->bytes);
    for (ReplaySlot* slot : lane.unmarked) assign(*slot, bytes > 0 ? static_cast<double>(slot->bytes) / bytes : 1);
    lane.unmarked.clear();
  }
  lane.latest.store(&slot_, std::memory_order_release);
  replay->latest.store(&slot_, std::memory_order_release);
  return answer;
}

int ReplayCopy::queue(bool isOnJsThread) noexcept {
  const GpuApi& api = replay->api();
  ReplayLane& lane = *slot_.lane;
  int answer = replay->way.isTimed ? begin(lane) : code::success;
  for (const HostRun& run : runs_.runs) {
    if (answer != code::success) return answer;
    answer = queueCopy(api, destination_ + (run.start - source_), run.start, run.bytes, lane.stream.get());
  }
  if (answer != code::success) return answer;
  // Counted only now: an event that another thread has recorded meanwhile does not stand behind this copy.
  const uint64_t place = lane.queued.fetch_add(1, std::memory_order_acq_rel) + 1;
  slot_.bytes = bytes_;
  slot_.mark.store(nullptr, std::memory_order_relaxed);
  slot_.place.store(place, std::memory_order_release);
  const size_t together = replay->way.copiesPerEvent;
  if (!isOnJsThread) return recordMark(false);
  if (together == 1) return recordMark(true);
  lane.unmarked.push_back(&slot_);
  const bool isDeep = place - lane.ended.load(std::memory_order_acquire) > together;
  return isDeep && lane.unmarked.size() < together ? answer : recordMark(true);
}

int ReplayCopy::start() {
  if (!replay->isOpen()) return replay::isClosed;
  CurrentDevice current(replay->api(), replay->device->ordinal());
  look();
  if (!isKnownToDriver_ && bytes_ > inlineBytes) return replay::needsThread;
  const int answer = queue(true);
  if (answer != code::success) replay->api().clearError();
  return answer;
}

int ReplayCopy::startPageable() {
  if (!replay->isOpen()) return replay::isClosed;
  CurrentDevice current(replay->api(), replay->device->ordinal());
  for (;;) {
    look();
    const int answer = queue(false);
    if (answer == code::success) return answer;
    replay->api().clearError();
    // Somebody registered a part meanwhile: the cuts are others now.
    if (answer != code::invalidValue || replay->pins.version() == seenVersion_) return answer;
  }
}

int ReplayCopy::query() noexcept {
  if (!replay->isOpen()) return replay::isClosed;
  if (hasEnded()) return code::success;
  CurrentDevice current(replay->api(), replay->device->ordinal());
  if (slot_.mark.load(std::memory_order_acquire) == nullptr) {
    const int answer = recordMark(true);
    if (answer != code::success) return answer;
  }
  const ReplayMark mark = marked();
  const int answer = replay->api().queryEvent(mark.event);
  if (answer == code::success) slot_.lane->noteEnded(mark.marked);
  return answer;
}

Result<ReplayMark> ReplayCopy::mark() {
  if (hasEnded()) return ReplayMark{};
  if (slot_.mark.load(std::memory_order_acquire) == nullptr) {
    CurrentDevice current(replay->api(), replay->device->ordinal());
    const int answer = recordMark(true);
    if (answer != code::success) return runtimeFailure(replay->api(), replay->api().recordEvent.name, answer);
  }
  return marked();
}

double ReplaySlot::seconds(const GpuApi& api) const noexcept {
  const double known = kept.load(std::memory_order_acquire);
  if (known >= 0) return known;
  const EventHandle end = mark.load(std::memory_order_acquire);
  const float alone = elapsedBetween(api, before.slot == nullptr ? begin.get() : before.event(), end);
  // While the link carried another stream's copy, this one waited for it.
  const float behind = elapsedBetween(api, beforeOnLink.event(), end);
  const float milliseconds = behind >= 0 && behind < alone ? behind : alone;
  return milliseconds < 0 ? -1 : 1e-3 * static_cast<double>(milliseconds) * share;
}

double ReplayCopy::seconds() const noexcept {
  if (!replay->isOpen() || !replay->way.isTimed) return -1;
  CurrentDevice current(replay->api(), replay->device->ordinal());
  return slot_.seconds(replay->api());
}

Status ReplayCopy::wait(const ReplayMark& mark, Waker& waker, const CancelToken& token, bool isPatient) const {
  if (mark.event == nullptr) return {};
  DeviceScope scope(replay->api(), replay->device->ordinal());
  Status status = waitForEvent(replay->api(), mark.event, waker, token, isPatient);
  if (status.ok()) slot_.lane->noteEnded(mark.marked);
  return status;
}

Status ReplayCopy::holdStream(StreamHandle stream) {
  const GpuApi& api = replay->api();
  CurrentDevice current(api, replay->device->ordinal());
  auto behind = mark();
  if (!behind.ok()) return behind.status();
  if (behind.value().event == nullptr) return {};
  return api.queueWait ? callDriver(api, api.queueWait, stream, behind.value().event, 0u)
                       : callRuntime(api, api.waitEvent, stream, behind.value().event, 0u);
}

Status waitForEvent(const GpuApi& api, EventHandle event, Waker& waker, const CancelToken& token, bool isPatient) {
  Backoff backoff(waker, token);
  std::optional<std::chrono::steady_clock::time_point> cancelledAt;
  for (;;) {
    const int answer = api.queryEvent(event);
    if (answer == code::success) return {};
    if (answer != code::notReady) return runtimeFailure(api, api.queryEvent.name, answer);
    if (token.isCancelled()) {
      const auto now = std::chrono::steady_clock::now();
      if (!cancelledAt) cancelledAt = now;
      if (!isPatient || now - *cancelledAt > patience)
        return failure(Code::Cancelled, "wait", "The wait was cancelled.");
    }
    backoff.pause();
  }
}

Status replayFailure(const GpuApi& api, int answer) {
  if (answer == code::success) return {};
  if (answer == replay::isClosed) return failure(Code::InvalidHandle, "replay", "The replay backend was closed.");
  if (answer < 0) return failure(Code::InvalidArgument, "replay", "The copy must be started as a job.");
  return runtimeFailure(api, api.copy.name, answer);
}

Result<std::shared_ptr<Pin>> pinHostSlot(const std::shared_ptr<Device>& device, uint64_t address, uint64_t bytes) {
  auto pin = pinHostMemory(device, address, bytes);
  if (!pin.ok()) return pin;
  DeviceScope scope(device->api(), device->ordinal());
  for (const uint64_t end : {address, address + bytes - 1}) {
    if (isPageLocked(device->api(), end)) continue;
    pin.value()->close();
    return failure(Code::AlreadyExists, device->api().registerHost.name,
                   "Somebody else has registered a part of this memory, which cannot be registered twice.");
  }
  return pin;
}

}  // namespace tensorferry::gpu
