// SPDX-License-Identifier: Apache-2.0
/*
 * Pools and jobs for JavaScript. JS thread only.
 */
#include "bindings.h"

namespace tensorferry {
namespace {

Napi::Value createPool(const Napi::CallbackInfo& info) {
  return guarded(info, "createPool", [&]() -> Napi::Value {
    uint64_t threads = 0;
    if (info.Length() != 1 || !readNumber(info[0], 256, threads) || threads == 0)
      return toJs(info.Env(), badArgument("createPool", "(threads: 1 to 256)"));
    return succeed(info.Env(), wrap(info.Env(), Jobs::of(info.Env())->makePool(static_cast<unsigned>(threads))));
  });
}

Napi::Value closePool(const Napi::CallbackInfo& info) {
  return guarded(info, "closePool", [&]() -> Napi::Value {
    auto pool = info.Length() == 1 ? unwrap<JobPool>(info[0]) : nullptr;
    if (pool == nullptr) return toJs(info.Env(), badArgument("closePool", "(pool)"));
    pool->pool.close();
    return succeed(info.Env());
  });
}

Napi::Value cancelJob(const Napi::CallbackInfo& info) {
  return guarded(info, "cancelJob", [&]() -> Napi::Value {
    auto job = info.Length() == 1 ? unwrap<Job>(info[0]) : nullptr;
    if (job == nullptr) return toJs(info.Env(), badArgument("cancelJob", "(job)"));
    job->cancel();
    return succeed(info.Env());
  });
}

Napi::Value movedBytes(const Napi::CallbackInfo& info) {
  return guarded(info, "movedBytes", [&]() -> Napi::Value {
    auto job = info.Length() == 1 ? unwrap<Job>(info[0]) : nullptr;
    if (job == nullptr) return toJs(info.Env(), badArgument("movedBytes", "(job)"));
    return succeed(info.Env(), Napi::Number::New(info.Env(), static_cast<double>(job->movedBytes.read())));
  });
}

}  // namespace

void bindJobs(Napi::Env env, Napi::Object exports) {
  exports.Set("createPool", Napi::Function::New(env, createPool));
  exports.Set("closePool", Napi::Function::New(env, closePool));
  exports.Set("cancelJob", Napi::Function::New(env, cancelJob));
  exports.Set("movedBytes", Napi::Function::New(env, movedBytes));
}

}  // namespace tensorferry
