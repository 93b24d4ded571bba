// SPDX-License-Identifier: Apache-2.0
/*
 * Entry point of the addon. Owns nothing but the order of initialisation; all state is per JavaScript environment.
 */
#include <tensorferry/addon.h>

#include "bindings/bindings.h"

namespace tensorferry::gpu {
namespace {

/** Raised whenever a function exported here changes its meaning; TypeScript refuses another number. */
constexpr int abiVersion = 1;

Napi::Object initialise(Napi::Env env, Napi::Object exports) {
  // Cleanup hooks run newest first: devices close while their pools are still there, and what functions share goes last.
  auto* shared = new Shared{nullptr, {}};
  napi_add_env_cleanup_hook(env, [](void* data) { delete static_cast<Shared*>(data); }, shared);
  if (beginAddon(env, exports, "tensorferry-cuda", abiVersion) == nullptr) return exports;
  shared->devices = Devices::create(env);
  if (shared->devices == nullptr) return exports;
  bindLibraries(env, exports, shared);
  bindDevice(env, exports, shared);
  bindMemory(env, exports, shared);
  bindSharing(env, exports, shared);
  bindImport(env, exports, shared);
  bindCommunicator(env, exports, shared);
  bindPrograms(env, exports, shared);
  bindReplay(env, exports, shared);
  bindReplayMeasure(env, exports, shared);
  return exports;
}

}  // namespace
}  // namespace tensorferry::gpu

Napi::Object Init(Napi::Env env, Napi::Object exports) { return tensorferry::gpu::initialise(env, exports); }

NODE_API_MODULE(cuda, Init)
