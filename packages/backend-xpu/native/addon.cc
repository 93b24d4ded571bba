// SPDX-License-Identifier: Apache-2.0
/*
 * Entry point of the addon. Owns nothing but the order of initialisation; all state is per JavaScript environment.
 */
#include <tensorferry/addon.h>

#include "bindings.h"

namespace tensorferry::xpu {
namespace {

/** Raised whenever a function exported here changes its meaning; TypeScript refuses another number. */
constexpr int abiVersion = 1;

Napi::Object initialise(Napi::Env env, Napi::Object exports) {
  // Cleanup hooks run newest first: devices close while their pools are still there, and what functions share goes last.
  auto* shared = new Shared();
  napi_add_env_cleanup_hook(env, [](void* data) { delete static_cast<Shared*>(data); }, shared);
  Jobs* jobs = beginAddon(env, exports, "tensorferry-xpu", abiVersion);
  if (jobs == nullptr) return exports;
  shared->calls = jobs->makePool(1);
  shared->devices = Devices::create(env);
  if (shared->devices == nullptr) return exports;
  Functions functions(env, exports, shared);
  bindDevice(functions);
  bindMemory(functions);
  bindCopies(functions);
  return exports;
}

}  // namespace
}  // namespace tensorferry::xpu

Napi::Object Init(Napi::Env env, Napi::Object exports) {
  return tensorferry::initialised(env, exports, tensorferry::xpu::initialise);
}

NODE_API_MODULE(xpu, Init)
