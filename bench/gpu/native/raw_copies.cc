// SPDX-License-Identifier: Apache-2.0
/*
 * See raw_copies.h. Nobody looks at the signals: their cost to the link is what is measured.
 */
#include "raw_copies.h"

#include <chrono>
#include <vector>

#include <tensorferry_gpu/gpu_objects.h>

namespace tensorferry::gpu {
namespace {

/** One stream of the loop with its signals. */
struct RawLane {
  Stream stream;
  std::vector<Event> events;
  size_t copies = 0, signals = 0;
};

Result<RawLane> makeLane(const GpuApi& api, const RawSlots& raw) {
  RawLane lane;
  auto stream = makeStream(api);
  if (!stream.ok()) return stream.status();
  lane.stream = std::move(stream.value());
  const bool isTimed = raw.signal == RawSignal::TimedEvent;
  for (size_t i = 0; (isTimed || raw.signal == RawSignal::Event) && i < raw.slots; i++) {
    auto event = makeEvent(api, isTimed);
    if (!event.ok()) return event.status();
    lane.events.push_back(std::move(event.value()));
  }
  return lane;
}

Status signal(const GpuApi& api, const RawSlots& raw, RawLane& lane, uint64_t flag) {
  if (raw.signal == RawSignal::Nothing || ++lane.copies % raw.every != 0) return {};
  const size_t number = lane.signals++;
  if (raw.signal != RawSignal::Value)
    return callRuntime(api, api.recordEvent, lane.events[number % raw.slots].get(), lane.stream.get());
  const int answer = api.writeValue(lane.stream.get(), flag, static_cast<uint32_t>(number), 0u);
  return answer == code::success ? Status{} : driverFailure(api, api.writeValue.name, answer);
}

/** Waits, busily, until all streams are done. */
Status finish(const GpuApi& api, const std::vector<RawLane>& lanes, const CancelToken& token) {
  for (const RawLane& lane : lanes) {
    for (;;) {
      const int answer = api.queryStream(lane.stream.get());
      if (answer == code::success) break;
      if (answer != code::notReady) return runtimeFailure(api, api.queryStream.name, answer);
      if (token.isCancelled()) return failure(Code::Cancelled, "timeRawCopies", "The measurement was cancelled.");
    }
  }
  return {};
}

}  // namespace

Result<RawTimes> timeRawCopies(const GpuApi& api, int ordinal, const RawSlots& raw, size_t count,
                               const CancelToken& token) {
  DeviceScope scope(api, ordinal);
  if (Status status = scope.status(); !status.ok()) return status;
  if (raw.signal == RawSignal::Value && !api.writeValue)
    return failure(Code::Unsupported, "timeRawCopies", "The driver has no streams that write values.");
  std::vector<RawLane> lanes;
  for (size_t i = 0; i < raw.streams; i++) {
    auto lane = makeLane(api, raw);
    if (!lane.ok()) return lane.status();
    lanes.push_back(std::move(lane.value()));
  }
  auto flags = makeHostBlock(api, 64 * raw.streams);
  if (!flags.ok()) return flags.status();
  const auto copy = [&](const RawLane& lane, uint64_t at) {
    return callRuntime(api, api.copy, reinterpret_cast<void*>(raw.destination + at),
                       reinterpret_cast<const void*>(raw.source + at), raw.bytes, inferredDirection, lane.stream.get());
  };
  // A stream's first copy takes longer.
  for (const RawLane& lane : lanes)
    if (Status status = copy(lane, 0); !status.ok()) return status;
  if (Status status = finish(api, lanes, token); !status.ok()) return status;
  const auto begun = std::chrono::steady_clock::now();
  const auto passed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count(); };
  Status status;
  for (size_t i = 0; i < count && status.ok(); i++) {
    const size_t number = i % raw.streams;
    RawLane& lane = lanes[number];
    status = copy(lane, (i % raw.slots) * raw.bytes);
    if (status.ok()) status = signal(api, raw, lane, reinterpret_cast<uint64_t>(flags.value().get()) + 64 * number);
  }
  const double submitting = passed();
  // Also behind a failure: what was queued still uses all of this.
  const Status ended = finish(api, lanes, token);
  if (!status.ok() || !ended.ok()) return status.ok() ? ended : status;
  return RawTimes{submitting, passed()};
}

}  // namespace tensorferry::gpu
