// SPDX-License-Identifier: Apache-2.0
/*
 * See import_event.h.
 */
#include "import_event.h"

namespace tensorferry::gpu {

Status awaitImportedEvent(Device& device, const IpcHandle& handle, std::chrono::milliseconds limit, Waker& waker,
                          const CancelToken& token) {
  const GpuApi& api = device.api();
  if (!api.importEvent)
    return failure(Code::Unsupported, "importEvent", "The runtime cannot open events of other processes.");
  DeviceScope scope(api, device.ordinal());
  if (Status status = scope.status(); !status.ok()) return status;
  auto event = make<Event, EventHandle>(api, api.importEvent, handle);
  if (!event.ok()) return event.status();
  const auto begin = std::chrono::steady_clock::now();
  for (std::chrono::microseconds pause{5};; pause = std::min(2 * pause, std::chrono::microseconds(1'000))) {
    const int answer = api.queryEvent(event.value().get());
    if (answer == code::success) return Status{};
    if (answer != code::notReady) {
      api.clearError();
      return runtimeFailure(api, api.queryEvent.name, answer);
    }
    if (token.isCancelled()) return failure(Code::Cancelled, api.queryEvent.name, "The wait was cancelled.");
    if (std::chrono::steady_clock::now() - begin >= limit)
      return failure(Code::DeadlineExceeded, api.queryEvent.name, "The work before the event did not end in time.");
    waker.waitFor(pause, token);
  }
}

}  // namespace tensorferry::gpu
