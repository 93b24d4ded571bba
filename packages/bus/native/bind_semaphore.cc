// SPDX-License-Identifier: Apache-2.0
/*
 * Named semaphores for JavaScript. JS thread only; every wait gets a thread of its own, because it may last for ever.
 */
#include "bindings.h"
#include "semaphores.h"

namespace tensorferry {
namespace {

Answer semaphoreOpen(const Call& call, std::string name, bool create, Whole<SEM_VALUE_MAX> initial) {
  return answerOf(create ? Semaphore::create(name, static_cast<uint32_t>(initial)) : Semaphore::open(name),
                  [&](Semaphore& made) { return wrap(call.env, std::make_shared<Semaphore>(std::move(made))); });
}

Status semaphorePost(const Call&, std::shared_ptr<Semaphore> semaphore) {
  return semaphore->post() ? Status{} : systemFailure("sem_post", "Posting failed");
}

Answer semaphoreValue(const Call& call, std::shared_ptr<Semaphore> semaphore) {
  return Napi::Number::New(call.env, semaphore->value());
}

Status semaphoreUnlink(const Call&, std::string name) {
  return Semaphore::unlink(name) ? Status{} : systemFailure("sem_unlink", "Semaphore " + name);
}

Answer startSemaphoreWait(const Call& call, std::shared_ptr<Semaphore> semaphore, double milliseconds,
                          Napi::Function callback) {
  const auto wait = [semaphore, deadline = Deadline(milliseconds)](Job& job) -> Status {
    switch (semaphore->wait(deadline, job.cancelToken)) {
      case Semaphore::Waited::timedOut:
        return failure(Code::DeadlineExceeded, "sem_timedwait", "Nobody posted before the deadline.", ETIMEDOUT);
      case Semaphore::Waited::cancelled:
        return failure(Code::Cancelled, "sem_timedwait", "The wait was cancelled.");
      case Semaphore::Waited::taken:
        break;
    }
    return {};
  };
  return call.start(Jobs::of(call.env)->makePool(1), makeJob("sem_timedwait", wait), callback);
}

}  // namespace

void bindSemaphore(Functions& functions) {
  functions.add<semaphoreOpen>("semaphoreOpen", "(name, create, initial)")
      .add<semaphorePost>("semaphorePost", "(semaphore)")
      .add<semaphoreValue>("semaphoreValue", "(semaphore)")
      .add<semaphoreUnlink>("semaphoreUnlink", "(name)")
      .add<startSemaphoreWait>("startSemaphoreWait", "(semaphore, milliseconds, callback)");
}

}  // namespace tensorferry
