// SPDX-License-Identifier: Apache-2.0
/*
 * Entry point of the addon. Owns nothing but the order of initialisation; all state is per JavaScript environment.
 */
#include <tensorferry/dtype.h>
#include <tensorferry/napi_jobs.h>

#include "bindings.h"

namespace tensorferry::xpu {
namespace {

/** Raised whenever a function exported here changes its meaning; TypeScript refuses another number. */
constexpr int abiVersion = 1;

template <size_t Count>
Napi::Array names(Napi::Env env, const char* const (&list)[Count]) {
  Napi::Array array = Napi::Array::New(env, Count);
  for (size_t i = 0; i < Count; i++) array.Set(static_cast<uint32_t>(i), list[i]);
  return array;
}

Napi::Object initialise(Napi::Env env, Napi::Object exports) {
  // Cleanup hooks run newest first: devices close while their pools are still there, and what functions share goes last.
  auto* shared = new Shared();
  napi_add_env_cleanup_hook(env, [](void* data) { delete static_cast<Shared*>(data); }, shared);
  Jobs* jobs = Jobs::create(env, "tensorferry-xpu");
  if (jobs == nullptr) return exports;
  shared->calls = jobs->makePool(1);
  shared->devices = Devices::create(env);
  if (shared->devices == nullptr) return exports;
  exports.Set("abiVersion", abiVersion);
  exports.Set("dtypes", names(env, dtypeNames));
  exports.Set("codes", names(env, codeNames));
  bindDevice(env, exports, shared);
  bindMemory(env, exports, shared);
  bindCopies(env, exports, shared);
  return exports;
}

}  // namespace
}  // namespace tensorferry::xpu

Napi::Object Init(Napi::Env env, Napi::Object exports) { return tensorferry::xpu::initialise(env, exports); }

NODE_API_MODULE(xpu, Init)
