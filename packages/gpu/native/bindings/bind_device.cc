// SPDX-License-Identifier: Apache-2.0
/*
 * Opening and closing devices, and control of jobs, for JavaScript. JS thread only.
 */
#include "bindings.h"

namespace tensorferry {

template <>
struct Reader<gpu::DeviceOptions> {
  static std::optional<gpu::DeviceOptions> read(Napi::Value value) {
    if (!value.IsObject()) return std::nullopt;
    const auto object = value.As<Napi::Object>();
    auto folder = Reader<std::optional<std::string>>::read(object.Get("kernelCache"));
    const auto blocks = Reader<std::optional<Whole<65'535, 1>>>::read(object.Get("blocks"));
    if (!folder || !blocks) return std::nullopt;
    gpu::DeviceOptions options;
    if (*folder) options.kernelCache = std::move(**folder);
    if (*blocks) options.blocks = static_cast<uint32_t>(**blocks);
    return options;
  }
};

namespace gpu {
namespace {

Answer startOpenDevice(const Call& call, Open<Libraries> libraries, Ordinal ordinal, DeviceOptions options,
                       Napi::Function callback) {
  auto device = std::make_shared<Device>(libraries, static_cast<int>(ordinal), std::move(options), *Jobs::of(call.env));
  call.shared<Shared>().devices->add(device);
  const auto open = [device](Job& job) { return device->open(job.cancelToken); };
  return call.start(device->calls, makeJob("openDevice", open, [device](Napi::Env env) { return wrap(env, device); }),
                    callback);
}

Status closeDevice(const Call& call, Open<Device> device) {
  detachHostBuffers(call.shared<Shared>(), *device);
  device->close();
  call.shared<Shared>().devices->remove(device);
  return {};
}

Status enablePeer(const Call& call, Open<Device> device, Ordinal peer) {
  const GpuApi& api = device->api();
  DeviceScope scope(api, device->ordinal());
  if (Status status = scope.status(); !status.ok()) return status;
  const int answer = api.enablePeer(static_cast<int>(peer), 0);
  if (answer != code::success) api.clearError();
  if (answer == code::success || answer == code::peerAlreadyEnabled) return {};
  return runtimeFailure(api, api.enablePeer.name, answer);
}

}  // namespace

void bindDevice(Functions& functions) {
  functions.add<startOpenDevice>("startOpenDevice", "(libraries, ordinal, { kernelCache, blocks }, callback)")
      .add<closeDevice>("closeDevice", "(device)")
      .add<enablePeer>("enablePeer", "(device, peer)");
  bindJobControls<Open<Job>>(functions);
}

}  // namespace gpu
}  // namespace tensorferry
