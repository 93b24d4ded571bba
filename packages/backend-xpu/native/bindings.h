// SPDX-License-Identifier: Apache-2.0
/*
 * The groups of functions that the addon exports, and what they share in one JavaScript environment. JS thread only.
 */
#pragma once

#include <memory>

#include "device.h"

namespace tensorferry::xpu {

/** Of one environment; owned by it. */
struct Shared {
  Devices* devices = nullptr;
  /** For opening libraries. */
  std::shared_ptr<JobPool> calls;
};

template <Napi::Value (*function)(const Napi::CallbackInfo&)>
void exportFunction(Napi::Env env, Napi::Object exports, const char* name, Shared* shared) {
  exports.Set(name, Napi::Function::New<function>(env, name, shared));
}

inline Shared& sharedOf(const Napi::CallbackInfo& info) { return *static_cast<Shared*>(info.Data()); }

void bindDevice(Napi::Env env, Napi::Object exports, Shared* shared);
void bindMemory(Napi::Env env, Napi::Object exports, Shared* shared);
void bindCopies(Napi::Env env, Napi::Object exports, Shared* shared);

}  // namespace tensorferry::xpu
