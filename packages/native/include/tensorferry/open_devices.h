// SPDX-License-Identifier: Apache-2.0
/*
 * The devices of one JavaScript environment. JS thread.
 *
 * Invariant: a device is closed before its last owner goes, so that its own threads are never the ones that end it. When the
 * environment ends, all are closed before the pools of `Jobs` go.
 */
#pragma once

#include <memory>
#include <vector>

#include "napi_setup.h"

namespace tensorferry {

/** `Device` has `close`, and `isDead` where it was opened in vain. */
template <typename Device>
class OpenDevices {
 public:
  /** Lives until the environment ends. Null where that is going away already. Make `Jobs` first. */
  static OpenDevices* create(napi_env env) {
    auto* devices = new OpenDevices();
    const auto end = [](void* data) {
      std::unique_ptr<OpenDevices> owned(static_cast<OpenDevices*>(data));
      for (const auto& device : owned->devices_) device->close();
    };
    if (napi_add_env_cleanup_hook(env, end, devices) == napi_ok) return devices;
    delete devices;
    return nullptr;
  }

  void add(std::shared_ptr<Device> device) {
    for (const auto& other : devices_)
      if (other->isDead()) other->close();
    std::erase_if(devices_, [](const auto& other) { return other->isDead(); });
    devices_.push_back(std::move(device));
  }

  void remove(const std::shared_ptr<Device>& device) noexcept { std::erase(devices_, device); }

 private:
  std::vector<std::shared_ptr<Device>> devices_;
};

}  // namespace tensorferry
