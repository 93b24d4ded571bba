// SPDX-License-Identifier: Apache-2.0
/*
 * Entry point of the addon. Owns nothing but the order of initialisation; all state is per JavaScript environment, except
 * that a file of a process is open once, whoever opened it (see lmdb_file.h).
 */
#include <tensorferry/addon.h>

#include "bindings.h"

namespace tensorferry {
namespace {

/** Raised whenever a function exported here changes its meaning; TypeScript refuses another number. */
constexpr int abiVersion = 6;

Napi::Object initialise(Napi::Env env, Napi::Object exports) {
  if (beginAddon(env, exports, "tensorferry bus", abiVersion) == nullptr) return exports;
  Functions functions(env, exports);
  bindPools(functions);
  bindJobControls<std::shared_ptr<Job>>(functions);
  bindCompletions(functions);
  bindFiles(functions);
  bindPeer(functions);
  bindQueue(functions);
  bindSemaphore(functions);
  bindTorch(functions);
  return exports;
}

}  // namespace
}  // namespace tensorferry

Napi::Object Init(Napi::Env env, Napi::Object exports) {
  return tensorferry::initialised(env, exports, tensorferry::initialise);
}

NODE_API_MODULE(bus, Init)
