// SPDX-License-Identifier: Apache-2.0
/*
 * Communicators for JavaScript. JS thread only, but ranks wait for each other on the device's threads.
 */
#include <cstring>

#include <tensorferry_gpu/arguments.h>
#include "bindings.h"
#include "communicator.h"

namespace tensorferry::gpu {
namespace {

class ConnectJob final : public Job {
 public:
  ConnectJob(std::shared_ptr<Device> device, const UniqueId& id, uint32_t rank, uint32_t ranks) noexcept
      : device_(std::move(device)), id_(id), rank_(rank), ranks_(ranks) {}
  void run(size_t) noexcept override {
    Status status = caught("connect", [&] {
      auto made = connectCommunicator(device_, id_, rank_, ranks_, cancelToken);
      if (made.ok()) communicator_ = std::make_shared<Handle<Communicator>>(std::move(made.value()));
      return made.ok() ? Status{} : made.status();
    });
    if (!status.ok()) fail(std::move(status));
  }
  Napi::Value value(Napi::Env env) override { return wrap(env, communicator_); }

 private:
  std::shared_ptr<Device> device_;
  UniqueId id_;
  uint32_t rank_, ranks_;
  std::shared_ptr<Handle<Communicator>> communicator_;
};

Napi::Value startConnect(const Napi::CallbackInfo& info) {
  return guarded(info, "startConnect", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto device = unwrap<Device>(argument(info, 0));
    if (device == nullptr || !device->isOpen()) return badHandle(env, "startConnect", "device");
    UniqueId id{};
    const auto rank = readNumber(argument(info, 2), INT32_MAX), size = readNumber(argument(info, 3), INT32_MAX);
    if (!isBytes(argument(info, 1)) || info[1].As<Napi::Uint8Array>().ElementLength() != sizeof id || !rank || !size ||
        *rank >= *size || !argument(info, 4).IsFunction())
      return toJs(env, badArgument("startConnect", "(device, an id of 128 bytes, rank below size, size, callback)"));
    if (!device->api().hasCollectives)
      return toJs(env, failure(Code::Unsupported, "startConnect", "No collectives library (NCCL or RCCL) was opened."));
    std::memcpy(&id, info[1].As<Napi::Uint8Array>().Data(), sizeof id);
    auto job = std::make_shared<ConnectJob>(device, id, static_cast<uint32_t>(*rank), static_cast<uint32_t>(*size));
    return Jobs::of(env)->start(device->connections, std::move(job), info[4].As<Napi::Function>());
  });
}

Napi::Value closeCommunicator(const Napi::CallbackInfo& info) {
  return guarded(info, "closeCommunicator", [&]() -> Napi::Value {
    auto communicator = openResource<Communicator>(argument(info, 0));
    if (communicator == nullptr) return badHandle(info.Env(), "closeCommunicator", "communicator");
    communicator->close();
    return succeed(info.Env());
  });
}

}  // namespace

void bindCommunicator(Napi::Env env, Napi::Object exports, Shared* shared) {
  exportFunction<startConnect>(env, exports, "startConnect", shared);
  exportFunction<closeCommunicator>(env, exports, "closeCommunicator", shared);
}

}  // namespace tensorferry::gpu
