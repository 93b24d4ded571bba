// SPDX-License-Identifier: Apache-2.0
/*
 * Entry point of the addon. Owns nothing but the order of initialisation; all state is per JavaScript environment.
 */
#include <tensorferry/addon.h>
#include <tensorferry/doorbell.h>

#include "bindings.h"
#include "kernels.h"

namespace tensorferry {
namespace {

/** Raised whenever a function exported here changes its meaning; TypeScript refuses another number. */
constexpr int abiVersion = 7;

Napi::Object initialise(Napi::Env env, Napi::Object exports) {
  if (beginAddon(env, exports, "tensorferry", abiVersion) == nullptr) return exports;
  exports.Set("instructionSet", kernels().name);
  Functions functions(env, exports);
  bindMemory(functions);
  bindMoves(functions);
  bindDoorbells(functions);
  return exports;
}

}  // namespace
}  // namespace tensorferry

Napi::Object Init(Napi::Env env, Napi::Object exports) {
  return tensorferry::initialised(env, exports, tensorferry::initialise);
}

NODE_API_MODULE(torch_copy, Init)
