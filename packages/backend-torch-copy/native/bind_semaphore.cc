/*
 * Named semaphores for JavaScript. JS thread only; every wait gets a thread of its own, because it may last for ever.
 */
#include <tensorferry/napi_jobs.h>

#include "bindings.h"
#include "named_semaphore.h"

namespace tensorferry {
namespace {

Napi::Value semaphoreOpen(const Napi::CallbackInfo& info) {
  return guarded(info, "semaphoreOpen", [&]() -> Napi::Value {
    const double initial = info.Length() == 3 && info[2].IsNumber() ? info[2].As<Napi::Number>().DoubleValue() : -1;
    if (!(initial >= 0 && initial <= SEM_VALUE_MAX) || !info[0].IsString() || !info[1].IsBoolean())
      return toJs(info.Env(), badArgument("semaphoreOpen", "(name, create, initial)"));
    auto semaphore = openSemaphore(info[0].As<Napi::String>().Utf8Value(), info[1].As<Napi::Boolean>().Value(),
                                   static_cast<uint32_t>(initial));
    if (!semaphore.ok()) return toJs(info.Env(), semaphore.status());
    return succeed(info.Env(), wrap(info.Env(), semaphore.value()));
  });
}

Napi::Value semaphorePost(const Napi::CallbackInfo& info) {
  return guarded(info, "semaphorePost", [&]() -> Napi::Value {
    auto semaphore = info.Length() == 1 ? unwrap<Semaphore>(info[0]) : nullptr;
    if (semaphore == nullptr) return toJs(info.Env(), badArgument("semaphorePost", "(semaphore)"));
    return toJs(info.Env(), sem_post(semaphore->handle) == 0 ? Status{} : systemFailure("sem_post", "Posting failed"));
  });
}

Napi::Value semaphoreValue(const Napi::CallbackInfo& info) {
  return guarded(info, "semaphoreValue", [&]() -> Napi::Value {
    auto semaphore = info.Length() == 1 ? unwrap<Semaphore>(info[0]) : nullptr;
    if (semaphore == nullptr) return toJs(info.Env(), badArgument("semaphoreValue", "(semaphore)"));
    int value = 0;
    if (sem_getvalue(semaphore->handle, &value) != 0) return toJs(info.Env(), systemFailure("sem_getvalue", "Reading failed"));
    return succeed(info.Env(), Napi::Number::New(info.Env(), value));
  });
}

Napi::Value semaphoreUnlink(const Napi::CallbackInfo& info) {
  return guarded(info, "semaphoreUnlink", [&]() -> Napi::Value {
    if (info.Length() != 1 || !info[0].IsString()) return toJs(info.Env(), badArgument("semaphoreUnlink", "(name)"));
    const std::string name = info[0].As<Napi::String>().Utf8Value();
    return toJs(info.Env(), sem_unlink(name.c_str()) == 0 ? Status{} : systemFailure("sem_unlink", "Semaphore " + name));
  });
}

Napi::Value startSemaphoreWait(const Napi::CallbackInfo& info) {
  return guarded(info, "startSemaphoreWait", [&]() -> Napi::Value {
    auto semaphore = info.Length() == 3 ? unwrap<Semaphore>(info[0]) : nullptr;
    if (semaphore == nullptr || !info[1].IsNumber() || !info[2].IsFunction())
      return toJs(info.Env(), badArgument("startSemaphoreWait", "(semaphore, milliseconds, callback)"));
    Jobs* jobs = Jobs::of(info.Env());
    return jobs->start(jobs->makePool(1), makeWaitJob(std::move(semaphore), info[1].As<Napi::Number>().DoubleValue()),
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
