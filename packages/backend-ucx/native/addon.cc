// SPDX-License-Identifier: Apache-2.0
/*
 * Entry point of the addon. Owns nothing but its version; all state is per JavaScript environment.
 */
#include <tensorferry/addon.h>

#include "bindings.h"

/** Raised whenever a function exported here changes its meaning; TypeScript refuses another number. */
static constexpr int abiVersion = 2;

Napi::Object Init(Napi::Env env, Napi::Object exports) {
  using namespace tensorferry::ucx;
  return tensorferry::exported<bindEndpoint, bindFlows>(env, exports, "tensorferry-ucx", abiVersion);
}

NODE_API_MODULE(ucx, Init)
