// SPDX-License-Identifier: Apache-2.0
/*
 * Entry point of the addon. Owns nothing but the order of initialisation; all state is per JavaScript environment.
 */
#include <tensorferry/dtype.h>
#include <tensorferry/napi_jobs.h>

#include "bindings.h"
#include "kernels.h"

namespace tensorferry {
namespace {

/** Raised whenever a function exported here changes its meaning; TypeScript refuses another number. */
constexpr int abiVersion = 4;

template <size_t Count>
Napi::Array names(Napi::Env env, const char* const (&list)[Count]) {
  Napi::Array array = Napi::Array::New(env, Count);
  for (size_t i = 0; i < Count; i++) array.Set(static_cast<uint32_t>(i), list[i]);
  return array;
}

Napi::Object initialise(Napi::Env env, Napi::Object exports) {
  if (Jobs::create(env, "tensorferry") == nullptr) return exports;
  exports.Set("abiVersion", abiVersion);
  exports.Set("dtypes", names(env, dtypeNames));
  exports.Set("codes", names(env, codeNames));
  exports.Set("instructionSet", kernels().name);
  bindMemory(env, exports);
  bindMoves(env, exports);
  return exports;
}

}  // namespace
}  // namespace tensorferry

Napi::Object Init(Napi::Env env, Napi::Object exports) { return tensorferry::initialise(env, exports); }

NODE_API_MODULE(torch_copy, Init)
