// SPDX-License-Identifier: Apache-2.0
/*
 * Opening and closing devices, and control of jobs, for JavaScript. JS thread only.
 */
#include <tensorferry_gpu/arguments.h>
#include "bindings.h"

namespace tensorferry::gpu {
namespace {

class OpenJob final : public Job {
 public:
  explicit OpenJob(std::shared_ptr<Device> device) noexcept : device_(std::move(device)) {}
  void run(size_t) noexcept override {
    Status status = caught("openDevice", [&] { return device_->open(cancelToken); });
    if (!status.ok()) fail(std::move(status));
  }
  Napi::Value value(Napi::Env env) override { return wrap(env, device_); }

 private:
  std::shared_ptr<Device> device_;
};

/** Options as an object; absent where they are something else. */
std::optional<DeviceOptions> readOptions(Napi::Value value) {
  DeviceOptions options;
  if (!value.IsObject()) return std::nullopt;
  const Napi::Value folder = value.As<Napi::Object>().Get("kernelCache"),
                    blocks = value.As<Napi::Object>().Get("blocks");
  if (folder.IsString()) {
    options.kernelCache = folder.As<Napi::String>().Utf8Value();
  } else if (!folder.IsUndefined()) {
    return std::nullopt;
  }
  if (!blocks.IsUndefined()) {
    const auto count = readNumber(blocks, 65'535);
    if (!count || *count == 0) return std::nullopt;
    options.blocks = static_cast<uint32_t>(*count);
  }
  return options;
}

Napi::Value startOpenDevice(const Napi::CallbackInfo& info) {
  return guarded(info, "startOpenDevice", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto libraries = unwrap<Libraries>(argument(info, 0));
    if (libraries == nullptr) return badHandle(env, "startOpenDevice", "set of libraries");
    const auto ordinal = readNumber(argument(info, 1), INT32_MAX);
    auto options = readOptions(argument(info, 2));
    if (!ordinal || !options || !argument(info, 3).IsFunction())
      return toJs(env, badArgument("startOpenDevice", "(libraries, ordinal, { kernelCache, blocks }, callback)"));
    Jobs& jobs = *Jobs::of(env);
    auto device = std::make_shared<Device>(libraries, static_cast<int>(*ordinal), std::move(*options), jobs);
    sharedOf(info).devices->add(device);
    return jobs.start(device->calls, std::make_shared<OpenJob>(device), info[3].As<Napi::Function>());
  });
}

Napi::Value closeDevice(const Napi::CallbackInfo& info) {
  return guarded(info, "closeDevice", [&]() -> Napi::Value {
    auto device = unwrap<Device>(argument(info, 0));
    if (device == nullptr || !device->isOpen()) return badHandle(info.Env(), "closeDevice", "device");
    detachHostBuffers(sharedOf(info), *device);
    device->close();
    sharedOf(info).devices->remove(device.get());
    return succeed(info.Env());
  });
}

Napi::Value enablePeer(const Napi::CallbackInfo& info) {
  return guarded(info, "enablePeer", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto device = unwrap<Device>(argument(info, 0));
    if (device == nullptr || !device->isOpen()) return badHandle(env, "enablePeer", "device");
    const auto peer = readNumber(argument(info, 1), INT32_MAX);
    if (!peer) return toJs(env, badArgument("enablePeer", "(device, peer)"));
    const GpuApi& api = device->api();
    DeviceScope scope(api, device->ordinal());
    if (Status status = scope.status(); !status.ok()) return toJs(env, status);
    const int answer = api.enablePeer(static_cast<int>(*peer), 0);
    if (answer != code::success) api.clearError();
    if (answer == code::success || answer == code::peerAlreadyEnabled) return succeed(env);
    return toJs(env, runtimeFailure(api, api.enablePeer.name, answer));
  });
}

}  // namespace

void bindDevice(Napi::Env env, Napi::Object exports, Shared* shared) {
  exportFunction<startOpenDevice>(env, exports, "startOpenDevice", shared);
  exportFunction<closeDevice>(env, exports, "closeDevice", shared);
  exportFunction<enablePeer>(env, exports, "enablePeer", shared);
  bindJobControls<notOpen>(env, exports);
}

}  // namespace tensorferry::gpu
