// SPDX-License-Identifier: Apache-2.0
/*
 * The converter between native answers and JavaScript. JS thread only.
 *
 * Invariant: a native function never throws; it returns `{ code, op, detail, nativeCode, item, value? }`. `value` is
 * there exactly when `code` is "Ok".
 */
#pragma once

#include "napi_setup.h"
#include "status.h"

namespace tensorferry {

inline Napi::Object toJs(Napi::Env env, const Status& status) {
  Napi::Object object = Napi::Object::New(env);
  object.Set("code", codeName(status.code));
  object.Set("op", status.op);
  object.Set("detail", status.detail);
  object.Set("nativeCode", status.nativeCode);
  object.Set("item", static_cast<double>(status.item));
  return object;
}

inline Napi::Object toJs(Napi::Env env, const Status& status, Napi::Value value) {
  Napi::Object object = toJs(env, status);
  if (status.ok()) object.Set("value", value);
  return object;
}

inline Napi::Object succeed(Napi::Env env, Napi::Value value) { return toJs(env, Status{}, value); }
inline Napi::Object succeed(Napi::Env env) { return toJs(env, Status{}, env.Undefined()); }

inline Status badArgument(const char* function, const char* expected) {
  return failure(Code::InvalidArgument, function, std::string("The arguments must be ") + expected + ".");
}

/** The handle that a function got is none of its kind, or a closed one. */
inline Status notOpen(const char* function, const char* kind) {
  return failure(Code::InvalidHandle, function, std::string("This is no open ") + kind + ".");
}

/** Runs the body of a binding; whatever it throws becomes a status. */
template <typename Body>
Napi::Value guarded(const Napi::CallbackInfo& info, const char* function, const Body& body) noexcept {
  Napi::Value answer;
  const Status status = caught(function, [&] {
    answer = body();
    return Status{};
  });
  return status.ok() ? answer : toJs(info.Env(), status);
}

}  // namespace tensorferry
