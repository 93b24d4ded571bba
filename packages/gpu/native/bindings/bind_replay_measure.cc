// SPDX-License-Identifier: Apache-2.0
/*
 * What measurements and tests of replay copies need: a consumer that is busy, one that reads, and the vendor's functions in a
 * loop of their own. JS thread only; the loop runs on a thread of the replay object.
 */
#include "bindings.h"
#include "replay/replay_raw.h"

namespace tensorferry::gpu {
namespace {

/** A minute, as for programs. */
constexpr uint64_t spinLimit = 60'000'000'000;

Status spinReplay(const Call&, Open<Replay> replay, bool isOfCopies, Whole<spinLimit> nanoseconds) {
  DeviceScope scope(replay->api(), replay->device->ordinal());
  const auto spin = [&](const Stream& stream) { return replay->device->kernels.spin(nanoseconds, stream.get()); };
  if (!isOfCopies) return spin(replay->own);
  for (const ReplayLane& lane : replay->lanes)
    if (Status status = spin(lane.stream); !status.ok()) return status;
  return {};
}

Status copyOnReplayStream(const Call&, Open<Replay> replay, Big destination, Big source, Whole<byteLimit> bytes) {
  const GpuApi& api = replay->api();
  DeviceScope scope(api, replay->device->ordinal());
  return callRuntime(api, api.copy, destination.as<void>(), source.as<const void>(), static_cast<size_t>(bytes),
                     inferredDirection, replay->own.get());
}

Answer startRawCopies(const Call& call, Open<Replay> replay, Big destination, Big source, Whole<byteLimit> bytes,
                      Whole<slotLimit, 1> slots, Whole<lastRawSignal> signal, Whole<streamLimit, 1> streams,
                      Whole<slotLimit, 1> every, Whole<UINT32_MAX> count, Napi::Function callback) {
  const RawSlots raw{destination, source, bytes, slots, static_cast<RawSignal>(signal.value), streams, every};
  const auto time = [replay, raw, count](Job& job) { return timeRawCopies(*replay, raw, count, job.cancelToken); };
  const auto give = [](Napi::Env env, const RawTimes& times) -> Napi::Value {
    Napi::Object object = Napi::Object::New(env);
    object.Set("submitSeconds", times.submitting);
    object.Set("seconds", times.all);
    return object;
  };
  return call.start(replay->submissions, makeJob("timeRawCopies", time, give), callback);
}

}  // namespace

void bindReplayMeasure(Functions& functions) {
  functions.add<copyOnReplayStream>("copyOnReplayStream", "(replay, destination, source, byteLength)")
      .add<spinReplay>("spinReplay", "(replay, whether on the copies' stream, nanoseconds, at most a minute)")
      .add<startRawCopies>(
          "startRawCopies",
          "(replay, destination, source, byteLength, slots, signal, streams, copies per signal, count, "
          "callback)");
}

}  // namespace tensorferry::gpu
