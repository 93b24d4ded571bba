// SPDX-License-Identifier: Apache-2.0
/*
 * What other processes share with their memory, for JavaScript: the event before its use, and how far a mapping reaches.
 * JS thread only, but waits are done on the device's threads.
 */
#include "bindings.h"
#include "import_event.h"
#include "worker_job.h"

namespace tensorferry::gpu {
namespace {

Answer startAwaitReleases(const Call& call, Open<Device> device, Napi::Function callback) {
  const auto wait = [device](Job& job) {
    device->waitForReleases(job.cancelToken);
    return Status{};
  };
  return call.start(device->calls, makeJob("awaitReleases", wait), callback);
}

Answer startAwaitEvent(const Call& call, Open<Device> device, BytesOf<IpcHandle> handle, Whole<UINT32_MAX> milliseconds,
                       Napi::Function callback) {
  const std::chrono::milliseconds limit(milliseconds);
  const auto wait = [device, handle, limit](WorkerJob& job) {
    return awaitImportedEvent(*device, handle.value, limit, job.waker, job.cancelToken);
  };
  return call.start(device->connections, makeJob<WorkerJob>("awaitEvent", wait), callback);
}

/** Bytes from a mapping's first one to the end of the allocation. */
Answer mappedBytes(const Call& call, Open<Mapping> mapping) {
  const GpuApi& api = mapping->device->api();
  DeviceScope scope(api, mapping->device->ordinal());
  if (Status status = scope.status(); !status.ok()) return status;
  uint64_t base = 0;
  size_t bytes = 0;
  Status status = callDriver(api, api.addressRange, &base, &bytes, mapping->address);
  if (!status.ok()) return status;
  return Napi::Number::New(call.env, static_cast<double>(bytes - (mapping->address - base)));
}

}  // namespace

void bindImport(Functions& functions) {
  functions.add<startAwaitReleases>("startAwaitReleases", "(device, callback)")
      .add<startAwaitEvent>("startAwaitEvent", "(device, a handle of 64 bytes, milliseconds, callback)")
      .add<mappedBytes>("mappedBytes", "(mapping)");
}

}  // namespace tensorferry::gpu
