// SPDX-License-Identifier: Apache-2.0
/*
 * What measurements and tests of replay copies need: a consumer that is busy, one that reads, and the vendor's functions in a
 * loop of their own. JS thread only; the loop runs on a thread of the replay object.
 */
#include <tensorferry_gpu/arguments.h>
#include "bindings.h"
#include "replay/replay_raw.h"
#include "worker_job.h"

namespace tensorferry::gpu {
namespace {

/** A minute, as for programs. */
constexpr uint64_t spinLimit = 60'000'000'000;

class RawJob final : public Job {
 public:
  RawJob(std::shared_ptr<Replay> replay, RawSlots raw, size_t count) noexcept
      : replay_(std::move(replay)), raw_(raw), count_(count) {}
  void run(size_t) noexcept override {
    Status status = caught("timeRawCopies", [&] {
      auto timed = timeRawCopies(*replay_, raw_, count_, cancelToken);
      if (timed.ok()) times_ = timed.value();
      return timed.ok() ? Status{} : timed.status();
    });
    if (!status.ok()) fail(std::move(status));
  }
  Napi::Value value(Napi::Env env) override {
    Napi::Object object = Napi::Object::New(env);
    object.Set("submitSeconds", times_.submitting);
    object.Set("seconds", times_.all);
    return object;
  }

 private:
  std::shared_ptr<Replay> replay_;
  RawSlots raw_;
  size_t count_;
  RawTimes times_;
};

Napi::Value spinReplay(const Napi::CallbackInfo& info) {
  return guarded(info, "spinReplay", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto replay = openResource<Replay>(argument(info, 0));
    if (replay == nullptr) return badHandle(env, "spinReplay", "replay object");
    const auto nanoseconds = readNumber(argument(info, 2), spinLimit);
    if (!argument(info, 1).IsBoolean() || !nanoseconds)
      return toJs(env,
                  badArgument("spinReplay", "(replay, whether on the copies' stream, nanoseconds, at most a minute)"));
    DeviceScope scope(replay->api(), replay->device->ordinal());
    const auto spin = [&](const Stream& stream) { return replay->device->kernels.spin(*nanoseconds, stream.get()); };
    Status status;
    if (!info[1].As<Napi::Boolean>().Value()) status = spin(replay->own);
    else
      for (const ReplayLane& lane : replay->lanes)
        if (status.ok()) status = spin(lane.stream);
    return status.ok() ? succeed(env) : toJs(env, status);
  });
}

Napi::Value copyOnReplayStream(const Napi::CallbackInfo& info) {
  return guarded(info, "copyOnReplayStream", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto replay = openResource<Replay>(argument(info, 0));
    if (replay == nullptr) return badHandle(env, "copyOnReplayStream", "replay object");
    const auto destination = readBigint(argument(info, 1)), source = readBigint(argument(info, 2));
    const auto bytes = readNumber(argument(info, 3), byteLimit);
    if (!destination || !source || !bytes)
      return toJs(env, badArgument("copyOnReplayStream", "(replay, destination, source, byteLength)"));
    const GpuApi& api = replay->api();
    DeviceScope scope(api, replay->device->ordinal());
    const Status status =
        callRuntime(api, api.copy, reinterpret_cast<void*>(*destination), reinterpret_cast<const void*>(*source),
                    static_cast<size_t>(*bytes), inferredDirection, replay->own.get());
    return status.ok() ? succeed(env) : toJs(env, status);
  });
}

Napi::Value startRawCopies(const Napi::CallbackInfo& info) {
  return guarded(info, "startRawCopies", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto replay = openResource<Replay>(argument(info, 0));
    if (replay == nullptr) return badHandle(env, "startRawCopies", "replay object");
    const auto destination = readBigint(argument(info, 1)), source = readBigint(argument(info, 2));
    const auto bytes = readNumber(argument(info, 3), byteLimit), slots = readNumber(argument(info, 4), slotLimit);
    const auto signal = readNumber(argument(info, 5), lastRawSignal),
               streams = readNumber(argument(info, 6), streamLimit);
    const auto every = readNumber(argument(info, 7), slotLimit), count = readNumber(argument(info, 8), UINT32_MAX);
    if (!destination || !source || !bytes || !slots || *slots == 0 || !signal || !streams || *streams == 0 || !every ||
        *every == 0 || !count || !argument(info, 9).IsFunction())
      return toJs(env, badArgument("startRawCopies",
                                   "(replay, destination, source, byteLength, slots, signal, streams, "
                                   "copies per signal, count, callback)"));
    const RawSlots raw{*destination, *source, *bytes, *slots, static_cast<RawSignal>(*signal), *streams, *every};
    auto job = std::make_shared<RawJob>(replay, raw, *count);
    return Jobs::of(env)->start(replay->submissions, std::move(job), info[9].As<Napi::Function>());
  });
}

}  // namespace

void bindReplayMeasure(Napi::Env env, Napi::Object exports, Shared* shared) {
  exportFunction<copyOnReplayStream>(env, exports, "copyOnReplayStream", shared);
  exportFunction<spinReplay>(env, exports, "spinReplay", shared);
  exportFunction<startRawCopies>(env, exports, "startRawCopies", shared);
}

}  // namespace tensorferry::gpu
