// SPDX-License-Identifier: Apache-2.0
/*
 * Pools, copies, reductions and block scaling for JavaScript. JS thread only; the work itself runs on pool threads.
 */
#include <vector>

#include <tensorferry/addon.h>

#include "bindings.h"
#include "moves.h"
#include "quantize.h"
#include "reduce.h"

namespace tensorferry {
namespace {

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
  bindPools(env, exports);
  bindJobControls<notOfKind>(env, exports);
  exports.Set("startMoves", Napi::Function::New(env, startMoves));
  exports.Set("startReduce", Napi::Function::New(env, startReduce));
  exports.Set("startQuantize", Napi::Function::New(env, startQuantize));
}

}  // namespace tensorferry
