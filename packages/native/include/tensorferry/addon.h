// SPDX-License-Identifier: Apache-2.0
/*
 * What every addon says of itself, and the functions over pools and jobs that all export alike. JS thread only.
 *
 * Invariant: an addon that loads has stated its version and the names that both languages number, so that TypeScript
 * refuses one that was built for other sources.
 */
#pragma once

#include <cstddef>
#include <string>

#include "dtype.h"
#include "napi_jobs.h"

namespace tensorferry {

/** Names as a list of JavaScript. */
template <size_t Count>
Napi::Array toJs(Napi::Env env, const char* const (&names)[Count]) {
  Napi::Array list = Napi::Array::New(env, Count);
  for (size_t i = 0; i < Count; i++) list.Set(static_cast<uint32_t>(i), names[i]);
  return list;
}

/**
 * Makes the environment's jobs and states what the addon is. `version` is raised whenever an exported function changes
 * its meaning. Gives null where the environment is going away; then the addon exports nothing.
 */
inline Jobs* beginAddon(Napi::Env env, Napi::Object exports, const char* name, int version) {
  Jobs* jobs = Jobs::create(env, name);
  if (jobs == nullptr) return nullptr;
  exports.Set("abiVersion", version);
  exports.Set("dtypes", toJs(env, dtypeNames));
  exports.Set("codes", toJs(env, codeNames));
  return jobs;
}

/** What an addon answers to a handle that is not what a function takes. */
using Refusal = Status (*)(const char* function, const char* kind);

/** The handle is taken for a closed one. */
inline Status notOpen(const char* function, const char* kind) {
  return failure(Code::InvalidHandle, function, std::string("This is no open ") + kind + ".");
}

/** The handle is taken for a wrong argument. */
inline Status notOfKind(const char* function, const char* kind) {
  return badArgument(function, (std::string("(") + kind + ")").c_str());
}

inline Napi::Object badHandle(Napi::Env env, const char* function, const char* kind) {
  return toJs(env, notOpen(function, kind));
}

/** The only argument of a call, as a resource of a kind; null where it is none. */
template <typename Kind>
std::shared_ptr<Kind> onlyArgument(const Napi::CallbackInfo& info) {
  return info.Length() == 1 ? unwrap<Kind>(info[0]) : nullptr;
}

/** Exports `cancelJob` and `movedBytes`. */
template <Refusal refusal>
void bindJobControls(Napi::Env env, Napi::Object exports) {
  const auto add = [&](const char* name, Napi::Value (*function)(const Napi::CallbackInfo&)) {
    exports.Set(name, Napi::Function::New(env, function, name));
  };
  add("cancelJob", [](const Napi::CallbackInfo& info) -> Napi::Value {
    return guarded(info, "cancelJob", [&]() -> Napi::Value {
      auto job = onlyArgument<Job>(info);
      if (job == nullptr) return toJs(info.Env(), refusal("cancelJob", "job"));
      job->cancel();
      return succeed(info.Env());
    });
  });
  add("movedBytes", [](const Napi::CallbackInfo& info) -> Napi::Value {
    return guarded(info, "movedBytes", [&]() -> Napi::Value {
      auto job = onlyArgument<Job>(info);
      if (job == nullptr) return toJs(info.Env(), refusal("movedBytes", "job"));
      return succeed(info.Env(), Napi::Number::New(info.Env(), static_cast<double>(job->movedBytes.read())));
    });
  });
}

/** Exports `createPool` and `closePool`, for addons whose pools JavaScript makes. */
inline void bindPools(Napi::Env env, Napi::Object exports) {
  const auto add = [&](const char* name, Napi::Value (*function)(const Napi::CallbackInfo&)) {
    exports.Set(name, Napi::Function::New(env, function, name));
  };
  add("createPool", [](const Napi::CallbackInfo& info) -> Napi::Value {
    return guarded(info, "createPool", [&]() -> Napi::Value {
      const double threads = info.Length() == 1 && info[0].IsNumber() ? info[0].As<Napi::Number>().DoubleValue() : 0;
      if (!(threads >= 1 && threads <= 256)) return toJs(info.Env(), badArgument("createPool", "(threads: 1 to 256)"));
      return succeed(info.Env(), wrap(info.Env(), Jobs::of(info.Env())->makePool(static_cast<unsigned>(threads))));
    });
  });
  add("closePool", [](const Napi::CallbackInfo& info) -> Napi::Value {
    return guarded(info, "closePool", [&]() -> Napi::Value {
      auto pool = onlyArgument<JobPool>(info);
      if (pool == nullptr) return toJs(info.Env(), notOfKind("closePool", "pool"));
      pool->pool.close();
      return succeed(info.Env());
    });
  });
}

}  // namespace tensorferry
