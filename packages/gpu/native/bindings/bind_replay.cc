// SPDX-License-Identifier: Apache-2.0
/*
 * Replay copies for JavaScript. JS thread only; what may wait runs on threads of the replay object.
 *
 * A prepared copy is three functions that carry it, so that a call reads no argument, makes no object and answers a number.
 */
#include <atomic>
#include <vector>

#include <tensorferry_gpu/arguments.h>
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
      return copy_->wait(copy_->marked(), waker_, cancelToken, true);
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

class WaitJob final : public WorkerJob {
 public:
  WaitJob(std::shared_ptr<ReplayCopy> copy, const ReplayMark& mark) noexcept : copy_(std::move(copy)), mark_(mark) {}
  void run(size_t) noexcept override {
    Status status = caught("wait", [&] { return copy_->wait(mark_, waker_, cancelToken, false); });
    if (!status.ok()) fail(std::move(status));
  }

 private:
  std::shared_ptr<ReplayCopy> copy_;
  ReplayMark mark_;
};

/** Waits until streams have come to where they stood when the fence was made. */
class FenceJob final : public WorkerJob {
 public:
  FenceJob(std::shared_ptr<Replay> replay, std::vector<Event> events, bool isOfCopies) noexcept
      : replay_(std::move(replay)), events_(std::move(events)), isOfCopies_(isOfCopies) {}
  void run(size_t) noexcept override {
    Status status = caught("fence", [&]() -> Status {
      DeviceScope scope(replay_->api(), replay_->device->ordinal());
      // Memory goes back to its owner behind a fence of the copies.
      Status ended;
      for (const Event& event : events_) {
        if (!ended.ok()) break;
        ended = waitForEvent(replay_->api(), event.get(), waker_, cancelToken, isOfCopies_);
      }
      events_.clear();
      return ended;
    });
    if (!status.ok()) fail(std::move(status));
  }

  const std::shared_ptr<JobPool>& pool() const noexcept { return isOfCopies_ ? replay_->submissions : replay_->waits; }

 private:
  std::shared_ptr<Replay> replay_;
  std::vector<Event> events_;
  bool isOfCopies_;
};

class RegisterJob final : public Job {
 public:
  RegisterJob(std::shared_ptr<Device> device, uint64_t address, uint64_t bytes) noexcept
      : device_(std::move(device)), address_(address), bytes_(bytes) {}
  void run(size_t) noexcept override {
    Status status = caught("registerHostSlot", [&] {
      if (cancelToken.isCancelled()) return failure(Code::Cancelled, "registerHostSlot", "It was cancelled.");
      auto made = pinHostSlot(device_, address_, bytes_);
      if (made.ok()) pin_ = std::make_shared<Handle<Pin>>(std::move(made.value()));
      return made.ok() ? Status{} : made.status();
    });
    if (!status.ok()) fail(std::move(status));
  }
  Napi::Value value(Napi::Env env) override { return wrap(env, pin_); }

 private:
  std::shared_ptr<Device> device_;
  uint64_t address_, bytes_;
  std::shared_ptr<Handle<Pin>> pin_;
};

/** Ends when what was closed before is given back. */
class ReleaseJob final : public Job {
 public:
  explicit ReleaseJob(std::shared_ptr<Device> device) noexcept : device_(std::move(device)) {}
  void run(size_t) noexcept override { device_->waitForReleases(cancelToken); }

 private:
  std::shared_ptr<Device> device_;
};

Napi::Value startRegisterHostSlot(const Napi::CallbackInfo& info) {
  return guarded(info, "startRegisterHostSlot", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto device = unwrap<Device>(argument(info, 0));
    if (device == nullptr || !device->isOpen()) return badHandle(env, "startRegisterHostSlot", "device");
    const auto address = readBigint(argument(info, 1)), bytes = readNumber(argument(info, 2), byteLimit);
    if (!address || !bytes || *bytes == 0 || !argument(info, 3).IsFunction())
      return toJs(env, badArgument("startRegisterHostSlot", "(device, address, byteLength of at least 1, callback)"));
    return Jobs::of(env)->start(device->calls, std::make_shared<RegisterJob>(device, *address, *bytes),
                                info[3].As<Napi::Function>());
  });
}

Napi::Value startUnpinHost(const Napi::CallbackInfo& info) {
  return guarded(info, "startUnpinHost", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto pin = openResource<Pin>(argument(info, 0));
    if (pin == nullptr) return badHandle(env, "startUnpinHost", "pin");
    if (!argument(info, 1).IsFunction()) return toJs(env, badArgument("startUnpinHost", "(pin, callback)"));
    pin->close();
    return Jobs::of(env)->start(pin->device->calls, std::make_shared<ReleaseJob>(pin->device),
                                info[1].As<Napi::Function>());
  });
}

Napi::Value createReplay(const Napi::CallbackInfo& info) {
  return guarded(info, "createReplay", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto device = unwrap<Device>(argument(info, 0));
    if (device == nullptr || !device->isOpen()) return badHandle(env, "createReplay", "device");
    const auto slots = readNumber(argument(info, 1), slotLimit);
    const auto streams = readNumber(argument(info, 2), streamLimit),
               together = readNumber(argument(info, 3), slotLimit);
    if (!slots || *slots == 0 || !streams || *streams == 0 || !together || *together == 0 ||
        !argument(info, 4).IsBoolean())
      return toJs(
          env, badArgument("createReplay", "(device, 1 to 65536 slots, 1 to 16 streams, copies per event, isTimed)"));
    const ReplayWay way{*streams, *together, info[4].As<Napi::Boolean>().Value()};
    auto replay = Replay::create(device, static_cast<size_t>(*slots), way, *Jobs::of(env));
    if (!replay.ok()) return toJs(env, replay.status());
    Napi::Object object = Napi::Object::New(env);
    object.Set("stream", bigint(env, reinterpret_cast<uint64_t>(replay.value()->own.get())));
    object.Set("replay", wrapResource(env, replay.value()));
    return succeed(env, object);
  });
}

Napi::Value closeReplay(const Napi::CallbackInfo& info) {
  return guarded(info, "closeReplay", [&]() -> Napi::Value {
    auto replay = openResource<Replay>(argument(info, 0));
    if (replay == nullptr) return badHandle(info.Env(), "closeReplay", "replay object");
    replay->close();
    return succeed(info.Env());
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

Napi::Value prepareReplayCopy(const Napi::CallbackInfo& info) {
  return guarded(info, "prepareReplayCopy", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto replay = openResource<Replay>(argument(info, 0));
    if (replay == nullptr) return badHandle(env, "prepareReplayCopy", "replay object");
    const auto slot = readNumber(argument(info, 1), replay->slots.size() - 1);
    const auto destination = readBigint(argument(info, 2)), source = readBigint(argument(info, 3));
    const auto bytes = readNumber(argument(info, 4), byteLimit);
    if (!slot || !destination || !source || !bytes || *destination > UINT64_MAX - *bytes ||
        *source > UINT64_MAX - *bytes)
      return toJs(env, badArgument("prepareReplayCopy", "(replay, slot, destination, source, byteLength)"));
    auto copy = std::make_shared<ReplayCopy>(replay, static_cast<size_t>(*slot), *destination, *source,
                                             static_cast<size_t>(*bytes));
    Napi::Object object = Napi::Object::New(env);
    if (!addFunction(env, object, "start", startCopy, copy) || !addFunction(env, object, "query", queryCopy, copy) ||
        !addFunction(env, object, "seconds", secondsOfCopy, copy))
      return toJs(env, failure(Code::SystemFailure, "prepareReplayCopy", "JavaScript makes no function any more."));
    object.Set("copy", wrap(env, copy));
    return succeed(env, object);
  });
}

/** Runs `body` with the copy that the first argument is, where the second is a callback. */
template <typename Body>
Napi::Value withCopy(const Napi::CallbackInfo& info, const char* function, const Body& body) {
  return guarded(info, function, [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto copy = unwrap<ReplayCopy>(argument(info, 0));
    if (copy == nullptr || !copy->replay->isOpen()) return badHandle(env, function, "replay copy");
    if (!argument(info, 1).IsFunction()) return toJs(env, badArgument(function, "(copy, callback)"));
    return body(env, copy);
  });
}

Napi::Value startReplayCopy(const Napi::CallbackInfo& info) {
  return withCopy(info, "startReplayCopy", [&](Napi::Env env, const std::shared_ptr<ReplayCopy>& copy) {
    return Jobs::of(env)->start(copy->replay->submissions, std::make_shared<PageableJob>(copy),
                                info[1].As<Napi::Function>());
  });
}

Napi::Value startReplayWait(const Napi::CallbackInfo& info) {
  return withCopy(info, "startReplayWait", [&](Napi::Env env, const std::shared_ptr<ReplayCopy>& copy) -> Napi::Value {
    auto mark = copy->mark();
    if (!mark.ok()) return toJs(env, mark.status());
    return Jobs::of(env)->start(copy->replay->waits, std::make_shared<WaitJob>(copy, mark.value()),
                                info[1].As<Napi::Function>());
  });
}

Napi::Value holdStream(const Napi::CallbackInfo& info) {
  return guarded(info, "holdStream", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto copy = unwrap<ReplayCopy>(argument(info, 0));
    if (copy == nullptr || !copy->replay->isOpen()) return badHandle(env, "holdStream", "replay copy");
    StreamHandle stream = copy->replay->own.get();
    if (!argument(info, 1).IsUndefined()) {
      const auto handle = readBigint(info[1]);
      if (!handle) return toJs(env, badArgument("holdStream", "(copy, the handle of a stream or undefined)"));
      stream = reinterpret_cast<StreamHandle>(*handle);
    }
    const Status status = copy->holdStream(stream);
    return status.ok() ? succeed(env) : toJs(env, status);
  });
}

Napi::Value replayQuery(const Napi::CallbackInfo& info) {
  return guarded(info, "replayQuery", [&]() -> Napi::Value {
    auto replay = unwrap<Handle<Replay>>(argument(info, 0));
    if (replay == nullptr) return badHandle(info.Env(), "replayQuery", "replay object");
    return succeed(info.Env(), Napi::Number::New(info.Env(), replay->object->query()));
  });
}

Napi::Value describeReplayAnswer(const Napi::CallbackInfo& info) {
  return guarded(info, "describeReplayAnswer", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto replay = unwrap<Handle<Replay>>(argument(info, 0));
    if (replay == nullptr) return badHandle(env, "describeReplayAnswer", "replay object");
    if (!argument(info, 1).IsNumber()) return toJs(env, badArgument("describeReplayAnswer", "(replay, number)"));
    return toJs(env, replayFailure(replay->object->api(), info[1].As<Napi::Number>().Int32Value()), env.Undefined());
  });
}

Napi::Value startReplayFence(const Napi::CallbackInfo& info) {
  return guarded(info, "startReplayFence", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto replay = openResource<Replay>(argument(info, 0));
    if (replay == nullptr) return badHandle(env, "startReplayFence", "replay object");
    if (!argument(info, 1).IsBoolean() || !argument(info, 2).IsFunction())
      return toJs(env, badArgument("startReplayFence", "(replay, whether of the copies, callback)"));
    const bool isOfCopies = info[1].As<Napi::Boolean>().Value();
    CurrentDevice current(replay->api(), replay->device->ordinal());
    auto events = replay->fence(isOfCopies);
    if (!events.ok()) return toJs(env, events.status());
    auto job = std::make_shared<FenceJob>(replay, std::move(events.value()), isOfCopies);
    return Jobs::of(env)->start(job->pool(), job, info[2].As<Napi::Function>());
  });
}

Napi::Value revokePin(const Napi::CallbackInfo& info) {
  return guarded(info, "revokePin", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto replay = openResource<Replay>(argument(info, 0));
    if (replay == nullptr) return badHandle(env, "revokePin", "replay object");
    auto pin = openResource<Pin>(argument(info, 1));
    if (pin == nullptr) return badHandle(env, "revokePin", "pin");
    DeviceScope scope(replay->api(), replay->device->ordinal());
    pin->finish();  // settles all that uses pins
    return succeed(env);
  });
}

Napi::Value settleReplay(const Napi::CallbackInfo& info) {
  return guarded(info, "settleReplay", [&]() -> Napi::Value {
    auto replay = openResource<Replay>(argument(info, 0));
    if (replay == nullptr) return badHandle(info.Env(), "settleReplay", "replay object");
    replay->settle();
    return succeed(info.Env());
  });
}

}  // namespace

void bindReplay(Napi::Env env, Napi::Object exports, Shared* shared) {
  exportFunction<startRegisterHostSlot>(env, exports, "startRegisterHostSlot", shared);
  exportFunction<startUnpinHost>(env, exports, "startUnpinHost", shared);
  exportFunction<createReplay>(env, exports, "createReplay", shared);
  exportFunction<closeReplay>(env, exports, "closeReplay", shared);
  exportFunction<prepareReplayCopy>(env, exports, "prepareReplayCopy", shared);
  exportFunction<startReplayCopy>(env, exports, "startReplayCopy", shared);
  exportFunction<startReplayWait>(env, exports, "startReplayWait", shared);
  exportFunction<holdStream>(env, exports, "holdStream", shared);
  exportFunction<replayQuery>(env, exports, "replayQuery", shared);
  exportFunction<describeReplayAnswer>(env, exports, "describeReplayAnswer", shared);
  exportFunction<startReplayFence>(env, exports, "startReplayFence", shared);
  exportFunction<revokePin>(env, exports, "revokePin", shared);
  exportFunction<settleReplay>(env, exports, "settleReplay", shared);
}

}  // namespace tensorferry::gpu
