// SPDX-License-Identifier: Apache-2.0
/*
 * The groups of functions that the addon exports, and what they share in one JavaScript environment. JS thread only.
 */
#pragma once

#include <memory>
#include <vector>

#include "device.h"
#include "memory.h"

namespace tensorferry::gpu {

/** Pinned memory that JavaScript sees; shared by the handle and the bytes, so that neither outlives the memory. */
struct HostHandle {
  static constexpr napi_type_tag typeTag = HostMemory::typeTag;
  explicit HostHandle(std::shared_ptr<HostMemory> memory) noexcept : object(std::move(memory)) {}
  HostHandle(const HostHandle&) = delete;
  HostHandle& operator=(const HostHandle&) = delete;
  ~HostHandle() { object->close(); }

  const std::shared_ptr<HostMemory> object;
  /** The bytes in JavaScript, held weakly. */
  Napi::Reference<Napi::ArrayBuffer> buffer;
};

/** Of one environment; owned by it. */
struct Shared {
  Devices* devices;
  std::vector<std::weak_ptr<HostHandle>> hostHandles;
};

template <Napi::Value (*function)(const Napi::CallbackInfo&)>
void exportFunction(Napi::Env env, Napi::Object exports, const char* name, Shared* shared) {
  exports.Set(name, Napi::Function::New<function>(env, name, shared));
}

inline Shared& sharedOf(const Napi::CallbackInfo& info) { return *static_cast<Shared*>(info.Data()); }

/** Takes the bytes of a device's host memory out of JavaScript's reach. */
void detachHostBuffers(Shared& shared, const Device& device);

void bindLibraries(Napi::Env env, Napi::Object exports, Shared* shared);
void bindDevice(Napi::Env env, Napi::Object exports, Shared* shared);
void bindMemory(Napi::Env env, Napi::Object exports, Shared* shared);
void bindSharing(Napi::Env env, Napi::Object exports, Shared* shared);
void bindImport(Napi::Env env, Napi::Object exports, Shared* shared);
void bindCommunicator(Napi::Env env, Napi::Object exports, Shared* shared);
void bindPrograms(Napi::Env env, Napi::Object exports, Shared* shared);
void bindReplay(Napi::Env env, Napi::Object exports, Shared* shared);
void bindReplayMeasure(Napi::Env env, Napi::Object exports, Shared* shared);

}  // namespace tensorferry::gpu
