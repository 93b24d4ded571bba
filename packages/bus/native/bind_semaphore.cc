// SPDX-License-Identifier: Apache-2.0
/*
 * Named semaphores for JavaScript. JS thread only; every wait gets a thread of its own, because it may last for ever.
 */
#include "bindings.h"
#include "semaphores.h"

namespace tensorferry {
namespace {

class WaitJob final : public Job {
 public:
  WaitJob(std::shared_ptr<Semaphore> semaphore, double milliseconds)
      : semaphore_(std::move(semaphore)), deadline_(milliseconds) {}
  void run(size_t) noexcept override {
    switch (semaphore_->wait(deadline_, cancelToken)) {
      case Semaphore::Waited::taken:
        return;
      case Semaphore::Waited::timedOut:
        return fail(failure(Code::DeadlineExceeded, "sem_timedwait", "Nobody posted before the deadline.", ETIMEDOUT));
      case Semaphore::Waited::cancelled:
        return fail(failure(Code::Cancelled, "sem_timedwait", "The wait was cancelled."));
    }
  }

 private:
  std::shared_ptr<Semaphore> semaphore_;
  Deadline deadline_;
};

Napi::Value semaphoreOpen(const Napi::CallbackInfo& info) {
  return guarded(info, "semaphoreOpen", [&]() -> Napi::Value {
    const double initial = info.Length() == 3 && info[2].IsNumber() ? info[2].As<Napi::Number>().DoubleValue() : -1;
    if (!(initial >= 0 && initial <= SEM_VALUE_MAX) || !info[0].IsString() || !info[1].IsBoolean())
      return toJs(info.Env(), badArgument("semaphoreOpen", "(name, create, initial)"));
    const std::string name = info[0].As<Napi::String>().Utf8Value();
    auto semaphore = info[1].As<Napi::Boolean>().Value() ? Semaphore::create(name, static_cast<uint32_t>(initial))
                                                         : Semaphore::open(name);
    if (!semaphore.ok()) return toJs(info.Env(), semaphore.status());
    return succeed(info.Env(), wrap(info.Env(), std::make_shared<Semaphore>(std::move(semaphore.value()))));
  });
}

Napi::Value semaphorePost(const Napi::CallbackInfo& info) {
  return guarded(info, "semaphorePost", [&]() -> Napi::Value {
    auto semaphore = info.Length() == 1 ? unwrap<Semaphore>(info[0]) : nullptr;
    if (semaphore == nullptr) return toJs(info.Env(), badArgument("semaphorePost", "(semaphore)"));
    return toJs(info.Env(), semaphore->post() ? Status{} : systemFailure("sem_post", "Posting failed"));
  });
}

Napi::Value semaphoreValue(const Napi::CallbackInfo& info) {
  return guarded(info, "semaphoreValue", [&]() -> Napi::Value {
    auto semaphore = info.Length() == 1 ? unwrap<Semaphore>(info[0]) : nullptr;
    if (semaphore == nullptr) return toJs(info.Env(), badArgument("semaphoreValue", "(semaphore)"));
    return succeed(info.Env(), Napi::Number::New(info.Env(), semaphore->value()));
  });
}

Napi::Value semaphoreUnlink(const Napi::CallbackInfo& info) {
  return guarded(info, "semaphoreUnlink", [&]() -> Napi::Value {
    if (info.Length() != 1 || !info[0].IsString()) return toJs(info.Env(), badArgument("semaphoreUnlink", "(name)"));
    const std::string name = info[0].As<Napi::String>().Utf8Value();
    return toJs(info.Env(), Semaphore::unlink(name) ? Status{} : systemFailure("sem_unlink", "Semaphore " + name));
  });
}

Napi::Value startSemaphoreWait(const Napi::CallbackInfo& info) {
  return guarded(info, "startSemaphoreWait", [&]() -> Napi::Value {
    auto semaphore = info.Length() == 3 ? unwrap<Semaphore>(info[0]) : nullptr;
    if (semaphore == nullptr || !info[1].IsNumber() || !info[2].IsFunction())
      return toJs(info.Env(), badArgument("startSemaphoreWait", "(semaphore, milliseconds, callback)"));
    Jobs* jobs = Jobs::of(info.Env());
    return jobs->start(jobs->makePool(1),
                       std::make_shared<WaitJob>(std::move(semaphore), info[1].As<Napi::Number>().DoubleValue()),
                       info[2].As<Napi::Function>());
  });
}

}  // namespace

void bindSemaphore(Napi::Env env, Napi::Object exports) {
  exports.Set("semaphoreOpen", Napi::Function::New(env, semaphoreOpen));
  exports.Set("semaphorePost", Napi::Function::New(env, semaphorePost));
  exports.Set("semaphoreValue", Napi::Function::New(env, semaphoreValue));
  exports.Set("semaphoreUnlink", Napi::Function::New(env, semaphoreUnlink));
  exports.Set("startSemaphoreWait", Napi::Function::New(env, startSemaphoreWait));
}

}  // namespace tensorferry
