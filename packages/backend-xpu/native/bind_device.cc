// SPDX-License-Identifier: Apache-2.0
/*
 * Drivers, devices and jobs for JavaScript. JS thread only; drivers and devices are opened on threads of their own.
 */
#include "arguments.h"
#include "bindings.h"

namespace tensorferry::xpu {
namespace {

/** A platform in JavaScript hands. */
struct PlatformHandle {
  static constexpr napi_type_tag typeTag{0x3a8c61f0e2d94b75, 0x8d10b7c25e6f9a34};
  std::shared_ptr<Platform> platform;
};

Napi::Object toJs(Napi::Env env, const Capabilities& capabilities) {
  Napi::Object object = Napi::Object::New(env);
  object.Set("pinnedHost", capabilities.pinnedHost);
  object.Set("timingEvents", capabilities.timingEvents);
  object.Set("hostPointerImport", capabilities.hostPointerImport);
  object.Set("inOrderQueues", capabilities.inOrderQueues);
  return object;
}

class OpenDriverJob final : public Job {
 public:
  OpenDriverJob(bool isLevelZero, std::vector<std::string> names)
      : isLevelZero_(isLevelZero), names_(std::move(names)) {}
  void run(size_t) noexcept override {
    Status status = caught("openDriver", [&] {
      found_ = isLevelZero_ ? openLevelZero(names_) : openOpenCl(names_);
      return Status{};
    });
    if (!status.ok()) fail(std::move(status));
  }
  Napi::Value value(Napi::Env env) override {
    Napi::Object object = Napi::Object::New(env);
    Napi::Array tried = Napi::Array::New(env);
    for (const std::string& name : found_.tried) tried.Set(tried.Length(), name);
    object.Set("tried", tried);
    if (!found_.path.empty()) object.Set("path", found_.path);
    if (!found_.problem.empty()) object.Set("problem", found_.problem);
    object.Set("nativeCode", found_.nativeCode);
    Napi::Array devices = Napi::Array::New(env);
    if (found_.platform != nullptr) {
      object.Set("platform", wrap(env, std::make_shared<PlatformHandle>(PlatformHandle{found_.platform})));
      for (const DeviceFacts& facts : found_.platform->devices()) {
        Napi::Object device = Napi::Object::New(env);
        device.Set("name", facts.name);
        device.Set("kind", facts.kind);
        device.Set("driverVersion", facts.driverVersion);
        device.Set("totalBytes", static_cast<double>(facts.totalBytes));
        device.Set("maxAllocationBytes", static_cast<double>(facts.maxAllocationBytes));
        devices.Set(devices.Length(), device);
      }
    }
    object.Set("devices", devices);
    return object;
  }

 private:
  const bool isLevelZero_;
  const std::vector<std::string> names_;
  Found found_;
};

class OpenDeviceJob final : public Job {
 public:
  explicit OpenDeviceJob(std::shared_ptr<Device> device) noexcept : device_(std::move(device)) {}
  void run(size_t) noexcept override {
    Status status = device_->open();
    if (!status.ok()) fail(std::move(status));
  }
  Napi::Value value(Napi::Env env) override {
    Napi::Object object = Napi::Object::New(env);
    object.Set("device", wrap(env, device_));
    object.Set("capabilities", toJs(env, device_->capabilities()));
    return object;
  }

 private:
  std::shared_ptr<Device> device_;
};

std::optional<Capabilities> readForbidden(Napi::Value value) {
  const auto names = readTexts(value);
  if (!names) return std::nullopt;
  Capabilities forbidden;
  for (const std::string& name : *names) {
    if (name == "pinnedHost") forbidden.pinnedHost = true;
    else if (name == "timingEvents") forbidden.timingEvents = true;
    else if (name == "hostPointerImport") forbidden.hostPointerImport = true;
    else return std::nullopt;
  }
  return forbidden;
}

Napi::Value startOpenDriver(const Napi::CallbackInfo& info) {
  return guarded(info, "startOpenDriver", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    const auto names = readTexts(argument(info, 1));
    const std::string kind = argument(info, 0).IsString() ? info[0].As<Napi::String>().Utf8Value() : "";
    if ((kind != "level-zero" && kind != "opencl") || !names || !argument(info, 2).IsFunction())
      return tensorferry::toJs(env, badArgument("startOpenDriver", "(\"level-zero\" or \"opencl\", names, callback)"));
    auto job = std::make_shared<OpenDriverJob>(kind == "level-zero", *names);
    return Jobs::of(env)->start(sharedOf(info).calls, std::move(job), info[2].As<Napi::Function>());
  });
}

Napi::Value startOpenDevice(const Napi::CallbackInfo& info) {
  return guarded(info, "startOpenDevice", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto platform = unwrap<PlatformHandle>(argument(info, 0));
    if (platform == nullptr) return badHandle(env, "startOpenDevice", "platform");
    const auto ordinal = readNumber(argument(info, 1));
    const auto forbidden = readForbidden(argument(info, 2));
    if (!ordinal || !forbidden || !argument(info, 3).IsFunction())
      return tensorferry::toJs(
          env, badArgument("startOpenDevice", "(platform, ordinal, names of what is forbidden, callback)"));
    Jobs& jobs = *Jobs::of(env);
    auto device = std::make_shared<Device>(platform->platform, *ordinal, *forbidden, jobs);
    sharedOf(info).devices->add(device);
    return jobs.start(device->calls, std::make_shared<OpenDeviceJob>(device), info[3].As<Napi::Function>());
  });
}

Napi::Value closeDevice(const Napi::CallbackInfo& info) {
  return guarded(info, "closeDevice", [&]() -> Napi::Value {
    auto device = openDevice(argument(info, 0));
    if (device == nullptr) return badHandle(info.Env(), "closeDevice", "device");
    device->close();
    sharedOf(info).devices->remove(device.get());
    return succeed(info.Env());
  });
}

}  // namespace

void bindDevice(Napi::Env env, Napi::Object exports, Shared* shared) {
  exportFunction<startOpenDriver>(env, exports, "startOpenDriver", shared);
  exportFunction<startOpenDevice>(env, exports, "startOpenDevice", shared);
  exportFunction<closeDevice>(env, exports, "closeDevice", shared);
  bindJobControls<notOpen>(env, exports);
}

}  // namespace tensorferry::xpu
