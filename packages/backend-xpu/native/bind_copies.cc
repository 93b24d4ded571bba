// SPDX-License-Identifier: Apache-2.0
/*
 * Prepared copies into replay slots, and holds, for JavaScript. JS thread only; waiting happens on threads of the device.
 *
 * Starting and asking a copy are on the path of every batch: they answer a plain value where all is well, and an object
 * only where something failed.
 */
#include "bindings.h"

namespace tensorferry::xpu {
namespace {

using QueueNumber = Whole<queueCount - 1>;

Answer prepareCopy(const Call& call, Open<Device> device, Whole<> destination, Whole<> source, Whole<> length,
                   bool timed) {
  if (length > 0 && !device->owns(destination))
    return call.refusal("(device, destination in its memory, source, byteLength, timed)");
  auto copy = std::make_shared<Copy>(device, destination, source, length, timed);
  device->adopt(copy);
  return wrap(call.env, copy);
}

Napi::Value startCopy(const Call& call, Open<Copy> copy) {
  const Status status = copy->start();
  return status.ok() ? call.env.Undefined() : toJs(call.env, status);
}

Napi::Value isCopyDone(const Call& call, Open<Copy> copy) {
  const auto completion = copy->completion();
  if (completion == nullptr) return Napi::Boolean::New(call.env, true);
  auto done = completion->isDone();
  return done.ok() ? Napi::Boolean::New(call.env, done.value()) : Napi::Value(toJs(call.env, done.status()));
}

Answer copySeconds(const Call& call, Open<Copy> copy) {
  const auto completion = copy->completion();
  const auto seconds = completion == nullptr ? std::nullopt : completion->seconds();
  return seconds ? Napi::Value(Napi::Number::New(call.env, *seconds)) : call.env.Undefined();
}

Answer startWait(const Call& call, Open<Copy> copy, Napi::Function callback) {
  auto wait = [device = copy->device, completion = copy->completion()](Job& job) mutable {
    const CompletionRef awaited = std::exchange(completion, nullptr);  // goes before the device
    return awaited == nullptr ? Status{} : waitFor(*awaited, job.cancelToken, std::chrono::nanoseconds::zero());
  };
  return call.start(copy->device->waits, makeJob("wait", std::move(wait)), callback);
}

/** For memory that goes away now: the one call that makes the JS thread wait. */
Answer finishCopy(const Call& call, Open<Copy> copy, Whole<60'000> milliseconds) {
  const auto completion = copy->completion();
  if (completion == nullptr) return Napi::Boolean::New(call.env, true);
  return answerOf(completion->wait(std::chrono::milliseconds(milliseconds)),
                  [&](bool isDone) { return Napi::Boolean::New(call.env, isDone); });
}

Status queueWaits(const Call&, QueueNumber number, Open<Copy> copy) {
  const auto completion = copy->completion();
  if (completion == nullptr) return {};
  const auto kind = static_cast<QueueKind>(number.value);
  return copy->device->withQueue(kind, [&](Queue& queue) { return queue.waitFor(completion); });
}

Answer holdQueue(const Call& call, Open<Device> device, QueueNumber number) {
  auto hold = device->withQueue(static_cast<QueueKind>(number.value), [](Queue& queue) { return queue.hold(); });
  return answerOf(std::move(hold), [&](const std::shared_ptr<Hold>& made) {
    auto held = std::make_shared<HeldQueue>(made);
    device->adopt(held);
    return wrap(call.env, held);
  });
}

Status endHold(const Call&, Open<HeldQueue> hold, bool isFailure) { return hold->end(isFailure); }

}  // namespace

void bindCopies(Functions& functions) {
  functions.add<prepareCopy>("prepareCopy", "(device, destination, source, byteLength, timed)")
      .add<startCopy>("startCopy", "(copy)")
      .add<isCopyDone>("isCopyDone", "(copy)")
      .add<copySeconds>("copySeconds", "(copy)")
      .add<startWait>("startWait", "(copy, callback)")
      .add<finishCopy>("finishCopy", "(copy, milliseconds up to a minute)")
      .add<queueWaits>("queueWaits", "(number of a queue, copy)")
      .add<holdQueue>("holdQueue", "(device, number of a queue)")
      .add<endHold>("endHold", "(hold, whether what waits shall fail)");
}

}  // namespace tensorferry::xpu
