/*
 * See replay.h. Pinned memory is handed to the driver on the JS thread, where that takes microseconds; pageable memory is
 * copied by the driver before it returns, so all but short copies of it have a thread.
 */
#include "replay.h"

#include <chrono>
#include <vector>

#include "memory.h"

namespace tensorferry::gpu {
namespace {

/** Pageable memory up to this length is read in less time than a thread needs to wake up. */
constexpr size_t inlineBytes = size_t{64} << 10;

/** How long the end waits for a device that does not answer any more. */
constexpr auto patience = std::chrono::seconds(10);

/** Whether a driver knows host memory at this address: page-locked by whomever. */
bool isPageLocked(const GpuApi& api, uint64_t address) noexcept {
  uint32_t type = 0;
  return api.pointerAttribute(&type, pointer::memoryType, address) == code::success && type != pointer::deviceMemory;
}

}  // namespace

Result<std::shared_ptr<Replay>> Replay::create(const std::shared_ptr<Device>& device, size_t slotCount, Jobs& jobs) {
  const GpuApi& api = device->api();
  DeviceScope scope(api, device->ordinal());
  if (Status status = scope.status(); !status.ok()) return status;
  auto replay = std::make_shared<Replay>(device, jobs);
  for (Stream* stream : {&replay->copies, &replay->own}) {
    auto made = makeStream(api);
    if (!made.ok()) return made.status();
    *stream = std::move(made.value());
  }
  for (size_t i = 0; i < slotCount; i++) {
    Slot& slot = replay->slots.emplace_back();
    for (Event* event : {&slot.begin, &slot.ready[0], &slot.ready[1]}) {
      auto made = makeEvent(api, true);
      if (!made.ok()) return made.status();
      *event = std::move(made.value());
    }
  }
  device->adopt(replay);
  PinBook::of(api).addUser(replay);
  return replay;
}

int Replay::query() const noexcept {
  if (!isOpen()) return replay::isClosed;
  CurrentDevice current(api(), device->ordinal());
  return api().queryStream(copies.get());
}

void Replay::settle() noexcept {
  std::lock_guard lock(mutex_);
  if (!copies) return;
  caught("settle", [this]() -> Status {
    DeviceScope scope(api(), device->ordinal());
    Waker waker;
    const CancelToken never;
    Backoff backoff(waker, never);
    const auto begun = std::chrono::steady_clock::now();
    const auto isPatient = [&] { return std::chrono::steady_clock::now() - begun < patience; };
    while (onThreads_.load(std::memory_order_acquire) > 0 && isPatient()) backoff.pause();
    if (api().queryStream(copies.get()) != code::notReady) return {};
    // A fence: a stream that is never idle would keep us here.
    auto event = makeEvent(api(), false);
    if (!event.ok()) return event.status();
    Status status = callRuntime(api(), api().recordEvent, event.value().get(), copies.get());
    while (status.ok() && api().queryEvent(event.value().get()) == code::notReady && isPatient()) backoff.pause();
    return status;
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
  copies.reset();
}

/** Finds out how the source lies in registrations, unless that is known. */
void ReplayCopy::look() {
  PinBook& book = PinBook::of(replay->api());
  const uint64_t version = book.version();
  if (version == seenVersion_) return;
  runs_ = book.runsOf(source_, bytes_);
  isKnownToDriver_ = runs_.isPinned || (bytes_ > 0 && isPageLocked(replay->api(), source_) &&
                                        isPageLocked(replay->api(), source_ + bytes_ - 1));
  seenVersion_ = version;
}

int ReplayCopy::queue() noexcept {
  const GpuApi& api = replay->api();
  const StreamHandle stream = replay->copies.get();
  // The end of a copy still under way is the beginning of this one: every event between two copies keeps the link idle.
  const Replay::Slot* before = replay->latest.load(std::memory_order_acquire);
  const uint32_t recordings = before == nullptr ? 0 : before->recordings.load(std::memory_order_acquire);
  if (before != nullptr && api.queryEvent(before->readyOf(recordings)) != code::notReady) before = nullptr;
  slot_.before = before;
  slot_.beforeRecordings = recordings;
  int answer = before == nullptr ? api.recordEvent(slot_.begin.get(), stream) : code::success;
  for (const HostRun& run : runs_.runs) {
    if (answer != code::success) return answer;
    answer = api.copy(reinterpret_cast<void*>(destination_ + (run.start - source_)),
                      reinterpret_cast<const void*>(run.start), run.bytes, inferredDirection, stream);
  }
  if (answer != code::success) return answer;
  const uint32_t count = slot_.recordings.load(std::memory_order_relaxed) + 1;
  answer = api.recordEvent(slot_.readyOf(count), stream);
  if (answer != code::success) return answer;
  slot_.recordings.store(count, std::memory_order_release);
  replay->latest.store(&slot_, std::memory_order_release);
  return answer;
}

int ReplayCopy::start() {
  if (!replay->isOpen()) return replay::isClosed;
  CurrentDevice current(replay->api(), replay->device->ordinal());
  look();
  if (!isKnownToDriver_ && bytes_ > inlineBytes) return replay::needsThread;
  const int answer = queue();
  if (answer != code::success) replay->api().clearError();
  return answer;
}

int ReplayCopy::startPageable() {
  if (!replay->isOpen()) return replay::isClosed;
  CurrentDevice current(replay->api(), replay->device->ordinal());
  PinBook& book = PinBook::of(replay->api());
  for (;;) {
    look();
    const int answer = queue();
    if (answer == code::success) return answer;
    replay->api().clearError();
    // Somebody registered a part meanwhile: the cuts are others now.
    if (answer != code::invalidValue || book.version() == seenVersion_) return answer;
  }
}

int ReplayCopy::query() const noexcept {
  if (!replay->isOpen()) return replay::isClosed;
  CurrentDevice current(replay->api(), replay->device->ordinal());
  return replay->api().queryEvent(slot_.latest());
}

double ReplayCopy::seconds() const noexcept {
  if (!replay->isOpen()) return -1;
  CurrentDevice current(replay->api(), replay->device->ordinal());
  EventHandle begin = slot_.begin.get();
  if (const Replay::Slot* before = slot_.before) {
    // Two copies later that event stands behind another one.
    if (before->recordings.load(std::memory_order_acquire) - slot_.beforeRecordings >= 2) return -1;
    begin = before->readyOf(slot_.beforeRecordings);
  }
  float milliseconds = -1;
  const int answer = replay->api().elapsed(&milliseconds, begin, slot_.latest());
  if (answer != code::success) replay->api().clearError();
  return answer == code::success ? 1e-3 * static_cast<double>(milliseconds) : -1;
}

Status ReplayCopy::wait(Waker& waker, const CancelToken& token, bool isPatient) const {
  DeviceScope scope(replay->api(), replay->device->ordinal());
  return waitForEvent(replay->api(), slot_.latest(), waker, token, isPatient);
}

Status ReplayCopy::holdStream(StreamHandle stream) const {
  const GpuApi& api = replay->api();
  CurrentDevice current(api, replay->device->ordinal());
  return callRuntime(api, api.waitEvent, stream, slot_.latest(), 0u);
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

Result<double> timeRawCopies(Replay& replay, const RawSlots& raw, size_t count, const CancelToken& token) {
  const GpuApi& api = replay.api();
  DeviceScope scope(api, replay.device->ordinal());
  if (Status status = scope.status(); !status.ok()) return status;
  std::vector<Event> events(raw.hasEvents ? raw.slots : 0);
  for (Event& event : events) {
    auto made = makeEvent(api, true);
    if (!made.ok()) return made.status();
    event = std::move(made.value());
  }
  const auto begun = std::chrono::steady_clock::now();
  for (size_t i = 0; i < count; i++) {
    const uint64_t at = (i % raw.slots) * raw.bytes;
    Status status = callRuntime(api, api.copy, reinterpret_cast<void*>(raw.destination + at),
                                reinterpret_cast<const void*>(raw.source + at), raw.bytes, inferredDirection,
                                replay.copies.get());
    if (status.ok() && raw.hasEvents)
      status = callRuntime(api, api.recordEvent, events[i % raw.slots].get(), replay.copies.get());
    if (!status.ok()) return status;
  }
  for (;;) {
    const int answer = api.queryStream(replay.copies.get());
    if (answer == code::success) break;
    if (answer != code::notReady) return runtimeFailure(api, api.queryStream.name, answer);
    if (token.isCancelled()) return failure(Code::Cancelled, "timeRawCopies", "The measurement was cancelled.");
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

}  // namespace tensorferry::gpu
