// SPDX-License-Identifier: Apache-2.0
/*
 * Entry point of the addon. Owns nothing but the order of initialisation; all state is per JavaScript environment.
 */
#include <tensorferry/addon.h>

#include "bindings.h"

namespace tensorferry::ucx {
namespace {

/** Raised whenever a function exported here changes its meaning; TypeScript refuses another number. */
constexpr int abiVersion = 1;

Napi::Object initialise(Napi::Env env, Napi::Object exports) {
  if (beginAddon(env, exports, "tensorferry-ucx", abiVersion) == nullptr) return exports;
  Functions functions(env, exports);
  bindEndpoint(functions);
  bindFlows(functions);
  bindJobControls<std::shared_ptr<Job>>(functions);
  return exports;
}

}  // namespace
}  // namespace tensorferry::ucx

Napi::Object Init(Napi::Env env, Napi::Object exports) {
  return tensorferry::initialised(env, exports, tensorferry::ucx::initialise);
}

NODE_API_MODULE(ucx, Init)
