// SPDX-License-Identifier: Apache-2.0
/*
 * Objects of the vendor with one owner each, and the current device of a thread.
 *
 * Invariant: each object is given back exactly once. Give streams, events and modules back with their device current.
 */
#pragma once

#include <utility>

#include <tensorferry/status.h>

#include "gpu_api.h"
#include "gpu_status.h"

namespace tensorferry::gpu {

/**
 * Makes a device current on this thread. The former one comes back at the end, but only where it is in use already:
 * making a device current for the first time takes memory on it.
 */
class DeviceScope {
 public:
  DeviceScope(const GpuApi& api, int ordinal) noexcept : api_(api) {
    int former = -1;
    if (api.getDevice(&former) == code::success && former != ordinal && isInUse(former)) former_ = former;
    answer_ = api.setDevice(ordinal);
    // Older runtimes bind the device to the thread at the first call that needs it; driver functions need it bound.
    static thread_local int bound = -1;
    if (answer_ == code::success && bound != ordinal) {
      api.release(nullptr);
      bound = ordinal;
    }
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  ~DeviceScope() {
    if (former_ >= 0) api_.setDevice(former_);
  }

  Status status() const {
    return answer_ == code::success ? Status{} : runtimeFailure(api_, api_.setDevice.name, answer_);
  }

 private:
  bool isInUse(int ordinal) const noexcept {
    unsigned flags = 0;
    int active = 0, device = 0;
    return api_.contextState && api_.getDriverDevice(&device, ordinal) == code::success &&
           api_.contextState(device, &flags, &active) == code::success && active != 0;
  }

  const GpuApi& api_;
  int former_ = -1, answer_ = code::success;
};

/** An object of the vendor that `Destroy` gives back. */
template <typename Handle, auto Destroy>
class Owned {
 public:
  Owned() = default;
  Owned(const GpuApi& api, Handle handle) noexcept : api_(&api), handle_(handle) {}
  Owned(Owned&& other) noexcept : api_(other.api_), handle_(std::exchange(other.handle_, Handle{})) {}
  Owned& operator=(Owned&& other) noexcept {
    if (this != &other) {
      reset();
      api_ = other.api_;
      handle_ = std::exchange(other.handle_, Handle{});
    }
    return *this;
  }
  ~Owned() { reset(); }

  Handle get() const noexcept { return handle_; }
  explicit operator bool() const noexcept { return handle_ != Handle{}; }
  /** Never gives it back. */
  void leave() noexcept { handle_ = Handle{}; }
  void reset() noexcept {
    if (handle_ != Handle{}) (api_->*Destroy)(std::exchange(handle_, Handle{}));
  }

 private:
  const GpuApi* api_ = nullptr;
  Handle handle_{};
};

using Stream = Owned<StreamHandle, &GpuApi::destroyStream>;
using Event = Owned<EventHandle, &GpuApi::destroyEvent>;
using Module = Owned<ModuleHandle, &GpuApi::unloadModule>;
using DeviceBlock = Owned<void*, &GpuApi::release>;
using HostBlock = Owned<void*, &GpuApi::releaseHost>;
using ImportedBlock = Owned<void*, &GpuApi::closeImport>;

/** Makes an object by a runtime function whose first parameter takes its address. */
template <typename Object, typename Handle, typename Function, typename... Values>
Result<Object> make(const GpuApi& api, const Function& function, Values... values) {
  Handle handle{};
  Status status = callRuntime(api, function, &handle, values...);
  if (!status.ok()) {
    api.clearError();  // a refused request is answered here and must not be reported again by somebody else's call
    return status;
  }
  return Object(api, handle);
}

inline Result<Stream> makeStream(const GpuApi& api) {
  return make<Stream, StreamHandle>(api, api.createStream, nonBlockingStream);
}
inline Result<Event> makeEvent(const GpuApi& api, bool isTimed) {
  return make<Event, EventHandle>(api, api.createEvent, isTimed ? 0u : untimedEvent);
}
inline Result<DeviceBlock> makeDeviceBlock(const GpuApi& api, size_t bytes) {
  return make<DeviceBlock, void*>(api, api.allocate, bytes);
}
inline Result<HostBlock> makeHostBlock(const GpuApi& api, size_t bytes) {
  return make<HostBlock, void*>(api, api.allocateHost, bytes, portableHostMemory | mappedHostMemory);
}

}  // namespace tensorferry::gpu
