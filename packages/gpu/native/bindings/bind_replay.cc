// SPDX-License-Identifier: Apache-2.0
/*
 * Replay copies for JavaScript. JS thread only; what may wait runs on threads of the replay object.
 *
 * A prepared copy is three functions that carry it, so that a call reads no argument, makes no object and answers a number.
 */
#include <atomic>
#include <vector>

#include "bindings.h"
#include "replay/replay.h"
#include "worker_job.h"

namespace tensorferry::gpu {
namespace {

/** A copy of pageable memory, to its end: the memory it is written to is in use until then. */
class PageableJob final : public WorkerJob {
 public:
  explicit PageableJob(std::shared_ptr<ReplayCopy> copy) noexcept : copy_(std::move(copy)) {
    copy_->replay->beginOnThread();
  }
  ~PageableJob() override { end(); }
  void run(size_t) noexcept override {
    Status status = caught("replay", [&]() -> Status {
      if (cancelToken.isCancelled()) return failure(Code::Cancelled, "replay", "The copy was cancelled.");
      const int answer = copy_->startPageable();
      if (answer != code::success) return replayFailure(copy_->replay->api(), answer);
      return copy_->wait(copy_->marked(), waker, cancelToken, true);
    });
    end();
    if (!status.ok()) fail(std::move(status));
  }

 private:
  void end() noexcept {
    if (!ended_.exchange(true)) copy_->replay->endOnThread();
  }

  std::shared_ptr<ReplayCopy> copy_;
  std::atomic<bool> ended_{false};
};

Answer startRegisterHostSlot(const Call& call, Open<Device> device, Big address, Whole<byteLimit, 1> bytes,
                             Napi::Function callback) {
  const auto pin = [=](Job& job) -> Result<std::shared_ptr<Handle<Pin>>> {
    if (job.cancelToken.isCancelled()) return cancelledEarly("registerHostSlot", "It");
    return handleOf(pinHostSlot(device, address, bytes));
  };
  const auto give = [](Napi::Env env, auto& made) { return wrap(env, std::move(made)); };
  return call.start(device->calls, makeJob("registerHostSlot", pin, give), callback);
}

/** The job ends when what was closed before is given back. */
Answer startUnpinHost(const Call& call, Open<Pin> pin, Napi::Function callback) {
  pin->close();
  const auto wait = [device = pin->device](Job& job) {
    device->waitForReleases(job.cancelToken);
    return Status{};
  };
  return call.start(pin->device->calls, makeJob("unpinHost", wait), callback);
}

using StreamCount = Whole<streamLimit, 1>;
using SlotCount = Whole<slotLimit, 1>;

Answer createReplay(const Call& call, Open<Device> device, SlotCount slots, StreamCount streams, SlotCount together,
                    bool isTimed) {
  const ReplayWay way{streams, together, isTimed};
  return answerOf(Replay::create(device, slots, way, *Jobs::of(call.env)), [&](const auto& replay) {
    Napi::Object object = Napi::Object::New(call.env);
    object.Set("stream", bigint(call.env, replay->own.get()));
    object.Set("replay", wrapResource(call.env, replay));
    return object;
  });
}

using CopyRef = std::shared_ptr<ReplayCopy>;

ReplayCopy& copyOf(napi_env env, napi_callback_info info) {
  void* data = nullptr;
  napi_get_cb_info(env, info, nullptr, nullptr, nullptr, &data);
  return **static_cast<CopyRef*>(data);
}

napi_value startCopy(napi_env env, napi_callback_info info) {
  int answer = code::outOfMemory;
  caught("replay", [&] {
    answer = copyOf(env, info).start();
    return Status{};
  });
  napi_value number = nullptr;
  napi_create_int32(env, answer, &number);
  return number;
}

napi_value queryCopy(napi_env env, napi_callback_info info) {
  napi_value number = nullptr;
  napi_create_int32(env, copyOf(env, info).query(), &number);
  return number;
}

napi_value secondsOfCopy(napi_env env, napi_callback_info info) {
  napi_value number = nullptr;
  napi_create_double(env, copyOf(env, info).seconds(), &number);
  return number;
}

/** Adds a function that carries the copy, which lives as long as any of them. */
bool addFunction(Napi::Env env, Napi::Object object, const char* name, napi_callback function, const CopyRef& copy) {
  auto* held = new CopyRef(copy);
  napi_value made = nullptr;
  const auto release = [](napi_env, void* data, void*) { delete static_cast<CopyRef*>(data); };
  if (napi_create_function(env, name, NAPI_AUTO_LENGTH, function, held, &made) != napi_ok ||
      napi_add_finalizer(env, made, held, release, nullptr, nullptr) != napi_ok) {
    delete held;
    return false;
  }
  object.Set(name, Napi::Value(env, made));
  return true;
}

Answer prepareReplayCopy(const Call& call, Open<Replay> replay, Whole<slotLimit> slot, Big destination, Big source,
                         Whole<byteLimit> bytes) {
  const uint64_t last = UINT64_MAX - bytes;
  if (slot >= replay->slots.size() || destination > last || source > last) return call.refusal();
  auto copy = std::make_shared<ReplayCopy>(replay, slot, destination, source, bytes);
  Napi::Object object = Napi::Object::New(call.env);
  if (!addFunction(call.env, object, "start", startCopy, copy) ||
      !addFunction(call.env, object, "query", queryCopy, copy) ||
      !addFunction(call.env, object, "seconds", secondsOfCopy, copy))
    return failure(Code::SystemFailure, call.function, "JavaScript makes no function any more.");
  object.Set("copy", wrap(call.env, copy));
  return object;
}

Answer startReplayCopy(const Call& call, Open<ReplayCopy> copy, Napi::Function callback) {
  return call.start(copy->replay->submissions, std::make_shared<PageableJob>(copy), callback);
}

Answer startReplayWait(const Call& call, Open<ReplayCopy> copy, Napi::Function callback) {
  auto mark = copy->mark();
  if (!mark.ok()) return mark.status();
  const auto wait = [copy, mark = mark.value()](WorkerJob& job) {
    return copy->wait(mark, job.waker, job.cancelToken, false);
  };
  return call.start(copy->replay->waits, makeJob<WorkerJob>("wait", wait), callback);
}

/** Without a stream, the replay object's own. */
Status holdStream(const Call&, Open<ReplayCopy> copy, std::optional<Big> stream) {
  return copy->holdStream(stream ? reinterpret_cast<StreamHandle>(stream->value) : copy->replay->own.get());
}

Answer replayQuery(const Call& call, Held<Replay> replay) { return Napi::Number::New(call.env, replay->query()); }

Status describeReplayAnswer(const Call&, Held<Replay> replay, double number) {
  return replayFailure(replay->api(), static_cast<int>(number));
}

/** The job waits until streams have come to where they stood when it was started. */
Answer startReplayFence(const Call& call, Open<Replay> replay, bool isOfCopies, Napi::Function callback) {
  CurrentDevice current(replay->api(), replay->device->ordinal());
  auto events = replay->fence(isOfCopies);
  if (!events.ok()) return events.status();
  auto fence = [replay, isOfCopies, events = std::move(events.value())](WorkerJob& job) mutable {
    DeviceScope scope(replay->api(), replay->device->ordinal());
    // Memory goes back to its owner behind a fence of the copies.
    Status ended;
    for (const Event& event : events) {
      if (!ended.ok()) break;
      ended = waitForEvent(replay->api(), event.get(), job.waker, job.cancelToken, isOfCopies);
    }
    events.clear();
    return ended;
  };
  const auto& pool = isOfCopies ? replay->submissions : replay->waits;
  return call.start(pool, makeJob<WorkerJob>("fence", std::move(fence)), callback);
}

Status revokePin(const Call&, Open<Replay> replay, Open<Pin> pin) {
  DeviceScope scope(replay->api(), replay->device->ordinal());
  pin->finish();  // settles all that uses pins
  return {};
}

/** A minute, as for programs. */
constexpr uint64_t spinLimit = 60'000'000'000;

/** Keeps consumers or copies back, so that tests see who waits for whom. */
Status spinReplay(const Call&, Open<Replay> replay, bool isOfCopies, Whole<spinLimit> nanoseconds) {
  DeviceScope scope(replay->api(), replay->device->ordinal());
  const auto spin = [&](const Stream& stream) { return replay->device->kernels.spin(nanoseconds, stream.get()); };
  if (!isOfCopies) return spin(replay->own);
  for (const ReplayLane& lane : replay->lanes)
    if (Status status = spin(lane.stream); !status.ok()) return status;
  return {};
}

/** A consumer that reads. */
Status copyOnReplayStream(const Call&, Open<Replay> replay, Big destination, Big source, Whole<byteLimit> bytes) {
  const GpuApi& api = replay->api();
  DeviceScope scope(api, replay->device->ordinal());
  return callRuntime(api, api.copy, destination.as<void>(), source.as<const void>(), static_cast<size_t>(bytes),
                     inferredDirection, replay->own.get());
}

Status settleReplay(const Call&, Open<Replay> replay) {
  replay->settle();
  return {};
}

}  // namespace

void bindReplay(Functions& functions) {
  functions.add<startRegisterHostSlot>("startRegisterHostSlot", "(device, address, byteLength of at least 1, callback)")
      .add<startUnpinHost>("startUnpinHost", "(pin, callback)")
      .add<createReplay>("createReplay", "(device, 1 to 65536 slots, 1 to 16 streams, copies per event, isTimed)")
      .add<close<Open<Replay>>>("closeReplay", "(replay)")
      .add<prepareReplayCopy>("prepareReplayCopy", "(replay, slot, destination, source, byteLength)")
      .add<startReplayCopy>("startReplayCopy", "(copy, callback)")
      .add<startReplayWait>("startReplayWait", "(copy, callback)")
      .add<holdStream>("holdStream", "(copy, the handle of a stream or undefined)")
      .add<replayQuery>("replayQuery", "(replay)")
      .add<describeReplayAnswer>("describeReplayAnswer", "(replay, number)")
      .add<startReplayFence>("startReplayFence", "(replay, whether of the copies, callback)")
      .add<revokePin>("revokePin", "(replay, pin)")
      .add<spinReplay>("spinReplay", "(replay, whether on the copies' stream, nanoseconds, at most a minute)")
      .add<copyOnReplayStream>("copyOnReplayStream", "(replay, destination, source, byteLength)")
      .add<settleReplay>("settleReplay", "(replay)");
}

}  // namespace tensorferry::gpu
