// SPDX-License-Identifier: Apache-2.0
/*
 * Drivers, devices and jobs for JavaScript. JS thread only; drivers and devices are opened on threads of their own.
 */
#include "bindings.h"

namespace tensorferry {

/** The names of what is forbidden. */
template <>
struct Reader<xpu::Capabilities> {
  static std::optional<xpu::Capabilities> read(Napi::Value value) {
    const auto names = Reader<std::vector<std::string>>::read(value);
    if (!names) return std::nullopt;
    xpu::Capabilities forbidden;
    for (const std::string& name : *names) {
      if (name == "pinnedHost") forbidden.pinnedHost = true;
      else if (name == "timingEvents") forbidden.timingEvents = true;
      else if (name == "hostPointerImport") forbidden.hostPointerImport = true;
      else return std::nullopt;
    }
    return forbidden;
  }
};

namespace xpu {
namespace {

/** A platform in JavaScript hands. */
struct PlatformHandle {
  static constexpr napi_type_tag typeTag{0x3a8c61f0e2d94b75, 0x8d10b7c25e6f9a34};
  static constexpr const char* kind = "platform";
  std::shared_ptr<Platform> platform;
};

Napi::Object describe(Napi::Env env, const Capabilities& capabilities) {
  Napi::Object object = Napi::Object::New(env);
  object.Set("pinnedHost", capabilities.pinnedHost);
  object.Set("timingEvents", capabilities.timingEvents);
  object.Set("hostPointerImport", capabilities.hostPointerImport);
  object.Set("inOrderQueues", capabilities.inOrderQueues);
  return object;
}

Napi::Object describe(Napi::Env env, const DeviceFacts& facts) {
  Napi::Object device = Napi::Object::New(env);
  device.Set("name", facts.name);
  device.Set("kind", facts.kind);
  device.Set("driverVersion", facts.driverVersion);
  device.Set("totalBytes", static_cast<double>(facts.totalBytes));
  device.Set("maxAllocationBytes", static_cast<double>(facts.maxAllocationBytes));
  return device;
}

Napi::Value describe(Napi::Env env, const Found& found) {
  Napi::Object object = Napi::Object::New(env);
  object.Set("tried", toJs(env, found.tried));
  if (!found.path.empty()) object.Set("path", found.path);
  if (!found.problem.empty()) object.Set("problem", found.problem);
  object.Set("nativeCode", found.nativeCode);
  Napi::Array devices = Napi::Array::New(env);
  if (found.platform != nullptr) {
    object.Set("platform", wrap(env, std::make_shared<PlatformHandle>(PlatformHandle{found.platform})));
    for (const DeviceFacts& facts : found.platform->devices()) devices.Set(devices.Length(), describe(env, facts));
  }
  object.Set("devices", devices);
  return object;
}

Answer startOpenDriver(const Call& call, std::string kind, std::vector<std::string> names, Napi::Function callback) {
  if (kind != "level-zero" && kind != "opencl") return call.refusal();
  const auto open = [isLevelZero = kind == "level-zero", names](Job&) -> Result<Found> {
    return isLevelZero ? openLevelZero(names) : openOpenCl(names);
  };
  const auto give = [](Napi::Env env, const Found& found) { return describe(env, found); };
  return call.start(call.shared<Shared>().calls, makeJob("openDriver", open, give), callback);
}

Answer startOpenDevice(const Call& call, Open<PlatformHandle> handle, Whole<> ordinal, Capabilities forbidden,
                       Napi::Function callback) {
  auto device = std::make_shared<Device>(handle->platform, ordinal, forbidden, *Jobs::of(call.env));
  call.shared<Shared>().devices->add(device);
  const auto open = [device](Job&) { return device->open(); };
  const auto give = [device](Napi::Env env) -> Napi::Value {
    Napi::Object object = Napi::Object::New(env);
    object.Set("device", wrap(env, device));
    object.Set("capabilities", describe(env, device->capabilities()));
    return object;
  };
  return call.start(device->calls, makeJob("openDevice", open, give), callback);
}

Status closeDevice(const Call& call, Open<Device> device) {
  device->close();
  call.shared<Shared>().devices->remove(device);
  return {};
}

}  // namespace

void bindDevice(Functions& functions) {
  functions.add<startOpenDriver>("startOpenDriver", "(\"level-zero\" or \"opencl\", names, callback)")
      .add<startOpenDevice>("startOpenDevice", "(platform, ordinal, names of what is forbidden, callback)")
      .add<closeDevice>("closeDevice", "(device)");
  bindJobControls<Open<Job>>(functions);
}

}  // namespace xpu
}  // namespace tensorferry
