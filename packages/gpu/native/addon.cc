// SPDX-License-Identifier: Apache-2.0
/*
 * Entry point of the addon. Owns nothing but the order of initialisation; all state is per JavaScript environment.
 */
#include <tensorferry/addon.h>

#include "bindings/bindings.h"

namespace tensorferry::gpu {
namespace {

/** Raised whenever a function exported here changes its meaning; TypeScript refuses another number. */
constexpr int abiVersion = 2;

Napi::Object initialise(Napi::Env env, Napi::Object exports) {
  // Cleanup hooks run newest first: devices close while their pools are still there, and what functions share goes last.
  auto* shared = new Shared{nullptr, {}};
  napi_add_env_cleanup_hook(env, [](void* data) { delete static_cast<Shared*>(data); }, shared);
  if (beginAddon(env, exports, "tensorferry-cuda", abiVersion) == nullptr) return exports;
  shared->devices = Devices::create(env);
  if (shared->devices == nullptr) return exports;
  Functions functions(env, exports, shared);
  bindLibraries(functions);
  bindDevice(functions);
  bindMemory(functions);
  bindSharing(functions);
  bindImport(functions);
  bindCommunicator(functions);
  bindPrograms(functions);
  bindReplay(functions);
  return exports;
}

}  // namespace
}  // namespace tensorferry::gpu

Napi::Object Init(Napi::Env env, Napi::Object exports) {
  return tensorferry::initialised(env, exports, tensorferry::gpu::initialise);
}

NODE_API_MODULE(cuda, Init)
