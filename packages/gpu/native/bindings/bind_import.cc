// SPDX-License-Identifier: Apache-2.0
/*
 * What other processes share with their memory, for JavaScript: the event before its use, and how far a mapping reaches.
 * JS thread only, but waits are done on the device's threads.
 */
#include <cstring>

#include <tensorferry_gpu/arguments.h>
#include "bindings.h"
#include "import_event.h"
#include "worker_job.h"

namespace tensorferry::gpu {
namespace {

class ImportedEventJob final : public WorkerJob {
 public:
  ImportedEventJob(std::shared_ptr<Device> device, const IpcHandle& handle, uint64_t milliseconds) noexcept
      : device_(std::move(device)), handle_(handle), limit_(milliseconds) {}
  void run(size_t) noexcept override {
    Status status =
        caught("awaitEvent", [&] { return awaitImportedEvent(*device_, handle_, limit_, waker_, cancelToken); });
    if (!status.ok()) fail(std::move(status));
  }

 private:
  std::shared_ptr<Device> device_;
  IpcHandle handle_;
  std::chrono::milliseconds limit_;
};

class ReleasesJob final : public Job {
 public:
  explicit ReleasesJob(std::shared_ptr<Device> device) noexcept : device_(std::move(device)) {}
  void run(size_t) noexcept override {
    Status status = caught("awaitReleases", [&] {
      device_->waitForReleases(cancelToken);
      return Status{};
    });
    if (!status.ok()) fail(std::move(status));
  }

 private:
  std::shared_ptr<Device> device_;
};

Napi::Value startAwaitReleases(const Napi::CallbackInfo& info) {
  return guarded(info, "startAwaitReleases", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto device = unwrap<Device>(argument(info, 0));
    if (device == nullptr || !device->isOpen()) return badHandle(env, "startAwaitReleases", "device");
    if (!argument(info, 1).IsFunction()) return toJs(env, badArgument("startAwaitReleases", "(device, callback)"));
    return Jobs::of(env)->start(device->calls, std::make_shared<ReleasesJob>(device), info[1].As<Napi::Function>());
  });
}

Napi::Value startAwaitEvent(const Napi::CallbackInfo& info) {
  return guarded(info, "startAwaitEvent", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto device = unwrap<Device>(argument(info, 0));
    if (device == nullptr || !device->isOpen()) return badHandle(env, "startAwaitEvent", "device");
    IpcHandle handle{};
    const auto milliseconds = readNumber(argument(info, 2), UINT32_MAX);
    if (!isBytes(argument(info, 1)) || info[1].As<Napi::Uint8Array>().ElementLength() != sizeof handle ||
        !milliseconds || !argument(info, 3).IsFunction())
      return toJs(env, badArgument("startAwaitEvent", "(device, a handle of 64 bytes, milliseconds, callback)"));
    std::memcpy(&handle, info[1].As<Napi::Uint8Array>().Data(), sizeof handle);
    return Jobs::of(env)->start(device->connections, std::make_shared<ImportedEventJob>(device, handle, *milliseconds),
                                info[3].As<Napi::Function>());
  });
}

/** Bytes from a mapping's first one to the end of the allocation. */
Napi::Value mappedBytes(const Napi::CallbackInfo& info) {
  return guarded(info, "mappedBytes", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto mapping = openResource<Mapping>(argument(info, 0));
    if (mapping == nullptr) return badHandle(env, "mappedBytes", "mapping");
    const GpuApi& api = mapping->device->api();
    DeviceScope scope(api, mapping->device->ordinal());
    if (Status status = scope.status(); !status.ok()) return toJs(env, status);
    uint64_t base = 0;
    size_t bytes = 0;
    Status status = callDriver(api, api.addressRange, &base, &bytes, mapping->address);
    if (!status.ok()) return toJs(env, status);
    return succeed(env, Napi::Number::New(env, static_cast<double>(bytes - (mapping->address - base))));
  });
}

}  // namespace

void bindImport(Napi::Env env, Napi::Object exports, Shared* shared) {
  exportFunction<startAwaitReleases>(env, exports, "startAwaitReleases", shared);
  exportFunction<startAwaitEvent>(env, exports, "startAwaitEvent", shared);
  exportFunction<mappedBytes>(env, exports, "mappedBytes", shared);
}

}  // namespace tensorferry::gpu
