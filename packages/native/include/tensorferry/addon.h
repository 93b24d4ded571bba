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
#include "functions.h"

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

template <typename Handle>
Status cancelJob(const Call&, Handle job) {
  job->cancel();
  return {};
}

template <typename Handle>
Answer movedBytes(const Call& call, Handle job) {
  return Napi::Number::New(call.env, static_cast<double>(job->movedBytes.read()));
}

/** Exports `cancelJob` and `movedBytes`. `Handle` says what another value than a job is taken for (arguments.h). */
template <typename Handle>
void bindJobControls(Functions& functions) {
  functions.add<cancelJob<Handle>>("cancelJob", "(job)").template add<movedBytes<Handle>>("movedBytes", "(job)");
}

/** What a module exports when it is loaded; what `initialise` throws fails the loading, not the process. */
template <typename Initialise>
Napi::Object initialised(Napi::Env env, Napi::Object exports, Initialise initialise) noexcept {
  const Status status = caught("load", [&] {
    exports = initialise(env, exports);
    return Status{};
  });
  if (!status.ok()) napi_throw_error(env, nullptr, status.detail.c_str());
  return exports;
}

/** What an addon exports whose functions share nothing: these bindings, in their order, and the controls of jobs. */
template <auto... bind>
Napi::Object exported(Napi::Env env, Napi::Object exports, const char* name, int version) noexcept {
  return initialised(env, exports, [=](Napi::Env of, Napi::Object made) {
    if (beginAddon(of, made, name, version) == nullptr) return made;
    Functions functions(of, made);
    (bind(functions), ...);
    bindJobControls<std::shared_ptr<Job>>(functions);
    return made;
  });
}

inline Answer createPool(const Call& call, Whole<256, 1> threads) {
  return wrap(call.env, Jobs::of(call.env)->makePool(static_cast<unsigned>(threads)));
}

/** Exports `createPool` and `closePool`, for addons whose pools JavaScript makes. */
inline void bindPools(Functions& functions) {
  functions.add<createPool>("createPool", "(threads: 1 to 256)")
      .add<close<std::shared_ptr<JobPool>>>("closePool", "(pool)");
}

}  // namespace tensorferry
