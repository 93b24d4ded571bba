// SPDX-License-Identifier: Apache-2.0
/*
 * Pools, copies, reductions and block scaling for JavaScript. JS thread only; the work itself runs on pool threads.
 */
#include <vector>

#include <tensorferry/napi_jobs.h>

#include "bindings.h"
#include "moves.h"
#include "quantize.h"
#include "reduce.h"

namespace tensorferry {
namespace {

Napi::Value createPool(const Napi::CallbackInfo& info) {
  return guarded(info, "createPool", [&]() -> Napi::Value {
    const double threads = info.Length() == 1 && info[0].IsNumber() ? info[0].As<Napi::Number>().DoubleValue() : 0;
    if (!(threads >= 1 && threads <= 256)) return toJs(info.Env(), badArgument("createPool", "(threads: 1 to 256)"));
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

bool isTable(Napi::Value value) {
  return value.IsTypedArray() && value.As<Napi::TypedArray>().TypedArrayType() == napi_biguint64_array;
}

Napi::Value startMoves(const Napi::CallbackInfo& info) {
  return guarded(info, "startMoves", [&]() -> Napi::Value {
    auto pool = info.Length() == 4 ? unwrap<JobPool>(info[0]) : nullptr;
    if (pool == nullptr || !isTable(info[1]) || !info[2].IsBoolean() || !info[3].IsFunction())
      return toJs(info.Env(), badArgument("startMoves", "(pool, table, refuseOverlap, callback)"));
    auto table = info[1].As<Napi::BigUint64Array>();
    auto items = parseItems(table.Data(), table.ElementLength(), info[2].As<Napi::Boolean>().Value());
    if (!items.ok()) return toJs(info.Env(), items.status());
    auto job = makeMoveJob(std::move(items.value()));
    return Jobs::of(info.Env())->start(pool, std::move(job), info[3].As<Napi::Function>());
  });
}

Napi::Value startReduce(const Napi::CallbackInfo& info) {
  return guarded(info, "startReduce", [&]() -> Napi::Value {
    auto pool = info.Length() == 3 ? unwrap<JobPool>(info[0]) : nullptr;
    if (pool == nullptr || !isTable(info[1]) || !info[2].IsFunction())
      return toJs(info.Env(), badArgument("startReduce", "(pool, table, callback)"));
    auto table = info[1].As<Napi::BigUint64Array>();
    auto job = makeReduceJob(table.Data(), table.ElementLength());
    if (!job.ok()) return toJs(info.Env(), job.status());
    return Jobs::of(info.Env())->start(pool, std::move(job.value()), info[2].As<Napi::Function>());
  });
}

Napi::Value startQuantize(const Napi::CallbackInfo& info) {
  return guarded(info, "startQuantize", [&]() -> Napi::Value {
    auto pool = info.Length() == 3 ? unwrap<JobPool>(info[0]) : nullptr;
    if (pool == nullptr || !isTable(info[1]) || !info[2].IsFunction())
      return toJs(info.Env(), badArgument("startQuantize", "(pool, table, callback)"));
    auto table = info[1].As<Napi::BigUint64Array>();
    auto job = makeQuantizeJob(table.Data(), table.ElementLength());
    if (!job.ok()) return toJs(info.Env(), job.status());
    return Jobs::of(info.Env())->start(pool, std::move(job.value()), info[2].As<Napi::Function>());
  });
}

}  // namespace

void bindMoves(Napi::Env env, Napi::Object exports) {
  exports.Set("createPool", Napi::Function::New(env, createPool));
  exports.Set("closePool", Napi::Function::New(env, closePool));
  exports.Set("cancelJob", Napi::Function::New(env, cancelJob));
  exports.Set("movedBytes", Napi::Function::New(env, movedBytes));
  exports.Set("startMoves", Napi::Function::New(env, startMoves));
  exports.Set("startReduce", Napi::Function::New(env, startReduce));
  exports.Set("startQuantize", Napi::Function::New(env, startQuantize));
}

}  // namespace tensorferry
