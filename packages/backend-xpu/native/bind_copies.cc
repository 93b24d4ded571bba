// SPDX-License-Identifier: Apache-2.0
/*
 * Prepared copies into replay slots, and holds, for JavaScript. JS thread only; waiting happens on threads of the device.
 *
 * Starting and asking a copy are on the path of every batch: they answer a plain value where all is well, and an object
 * only where something failed.
 */
#include "arguments.h"
#include "bindings.h"

namespace tensorferry::xpu {
namespace {

class WaitJob final : public Job {
 public:
  WaitJob(std::shared_ptr<Device> device, CompletionRef completion) noexcept
      : device_(std::move(device)), completion_(std::move(completion)) {}
  void run(size_t) noexcept override {
    Status status = caught("wait", [&]() -> Status {
      return completion_ == nullptr ? Status{} : waitFor(*completion_, cancelToken, std::chrono::nanoseconds::zero());
    });
    completion_ = nullptr;  // before the device goes
    if (!status.ok()) fail(std::move(status));
  }

 private:
  std::shared_ptr<Device> device_;
  CompletionRef completion_;
};

std::shared_ptr<Copy> openCopy(Napi::Value value) {
  auto copy = unwrap<Copy>(value);
  return copy != nullptr && copy->device->isOpen() ? copy : nullptr;
}

std::optional<QueueKind> readQueue(Napi::Value value) {
  const auto number = readNumber(value, queueCount - 1);
  return number ? std::optional(static_cast<QueueKind>(*number)) : std::nullopt;
}

Napi::Value prepareCopy(const Napi::CallbackInfo& info) {
  return guarded(info, "prepareCopy", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto device = openDevice(argument(info, 0));
    if (device == nullptr) return badHandle(env, "prepareCopy", "device");
    const auto destination = readNumber(argument(info, 1)), source = readNumber(argument(info, 2)),
               length = readNumber(argument(info, 3));
    if (!destination || !source || !length || !argument(info, 4).IsBoolean())
      return toJs(env, badArgument("prepareCopy", "(device, destination, source, byteLength, timed)"));
    if (*length > 0 && !device->owns(*destination))
      return toJs(env, badArgument("prepareCopy", "(device, destination in its memory, source, byteLength, timed)"));
    auto copy = std::make_shared<Copy>(device, *destination, *source, *length, info[4].As<Napi::Boolean>());
    device->adopt(copy);
    return succeed(env, wrap(env, copy));
  });
}

Napi::Value startCopy(const Napi::CallbackInfo& info) {
  return guarded(info, "startCopy", [&]() -> Napi::Value {
    auto copy = openCopy(argument(info, 0));
    if (copy == nullptr) return badHandle(info.Env(), "startCopy", "copy");
    const Status status = copy->start();
    return status.ok() ? info.Env().Undefined() : toJs(info.Env(), status);
  });
}

Napi::Value isCopyDone(const Napi::CallbackInfo& info) {
  return guarded(info, "isCopyDone", [&]() -> Napi::Value {
    auto copy = openCopy(argument(info, 0));
    if (copy == nullptr) return badHandle(info.Env(), "isCopyDone", "copy");
    const auto completion = copy->completion();
    if (completion == nullptr) return Napi::Boolean::New(info.Env(), true);
    auto done = completion->isDone();
    return done.ok() ? Napi::Boolean::New(info.Env(), done.value()) : Napi::Value(toJs(info.Env(), done.status()));
  });
}

Napi::Value copySeconds(const Napi::CallbackInfo& info) {
  return guarded(info, "copySeconds", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto copy = openCopy(argument(info, 0));
    if (copy == nullptr) return badHandle(env, "copySeconds", "copy");
    const auto completion = copy->completion();
    const auto seconds = completion == nullptr ? std::nullopt : completion->seconds();
    return succeed(env, seconds ? Napi::Value(Napi::Number::New(env, *seconds)) : env.Undefined());
  });
}

Napi::Value startWait(const Napi::CallbackInfo& info) {
  return guarded(info, "startWait", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto copy = openCopy(argument(info, 0));
    if (copy == nullptr) return badHandle(env, "startWait", "copy");
    if (!argument(info, 1).IsFunction()) return toJs(env, badArgument("startWait", "(copy, callback)"));
    auto job = std::make_shared<WaitJob>(copy->device, copy->completion());
    return Jobs::of(env)->start(copy->device->waits, std::move(job), info[1].As<Napi::Function>());
  });
}

/** For memory that goes away now: the one call that makes the JS thread wait. */
Napi::Value finishCopy(const Napi::CallbackInfo& info) {
  return guarded(info, "finishCopy", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto copy = openCopy(argument(info, 0));
    const auto milliseconds = readNumber(argument(info, 1), 60'000);
    if (copy == nullptr) return badHandle(env, "finishCopy", "copy");
    if (!milliseconds) return toJs(env, badArgument("finishCopy", "(copy, milliseconds up to a minute)"));
    const auto completion = copy->completion();
    if (completion == nullptr) return succeed(env, Napi::Boolean::New(env, true));
    auto done = completion->wait(std::chrono::milliseconds(*milliseconds));
    return done.ok() ? succeed(env, Napi::Boolean::New(env, done.value())) : toJs(env, done.status());
  });
}

Napi::Value queueWaits(const Napi::CallbackInfo& info) {
  return guarded(info, "queueWaits", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto copy = openCopy(argument(info, 1));
    const auto kind = readQueue(argument(info, 0));
    if (copy == nullptr) return badHandle(env, "queueWaits", "copy");
    if (!kind) return toJs(env, badArgument("queueWaits", "(number of a queue, copy)"));
    const auto completion = copy->completion();
    if (completion == nullptr) return succeed(env);
    return toJs(env, copy->device->withQueue(*kind, [&](Queue& queue) { return queue.waitFor(completion); }));
  });
}

Napi::Value holdQueue(const Napi::CallbackInfo& info) {
  return guarded(info, "holdQueue", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto device = openDevice(argument(info, 0));
    const auto kind = readQueue(argument(info, 1));
    if (device == nullptr) return badHandle(env, "holdQueue", "device");
    if (!kind) return toJs(env, badArgument("holdQueue", "(device, number of a queue)"));
    auto hold = device->withQueue(*kind, [](Queue& queue) { return queue.hold(); });
    if (!hold.ok()) return toJs(env, hold.status());
    auto held = std::make_shared<HeldQueue>(hold.value());
    device->adopt(held);
    return succeed(env, wrap(env, held));
  });
}

Napi::Value endHold(const Napi::CallbackInfo& info) {
  return guarded(info, "endHold", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto hold = unwrap<HeldQueue>(argument(info, 0));
    if (hold == nullptr) return badHandle(env, "endHold", "hold");
    if (!argument(info, 1).IsBoolean())
      return toJs(env, badArgument("endHold", "(hold, whether what waits shall fail)"));
    return toJs(env, hold->end(info[1].As<Napi::Boolean>()));
  });
}

}  // namespace

void bindCopies(Napi::Env env, Napi::Object exports, Shared* shared) {
  exportFunction<prepareCopy>(env, exports, "prepareCopy", shared);
  exportFunction<startCopy>(env, exports, "startCopy", shared);
  exportFunction<isCopyDone>(env, exports, "isCopyDone", shared);
  exportFunction<copySeconds>(env, exports, "copySeconds", shared);
  exportFunction<startWait>(env, exports, "startWait", shared);
  exportFunction<finishCopy>(env, exports, "finishCopy", shared);
  exportFunction<queueWaits>(env, exports, "queueWaits", shared);
  exportFunction<holdQueue>(env, exports, "holdQueue", shared);
  exportFunction<endHold>(env, exports, "endHold", shared);
}

}  // namespace tensorferry::xpu
