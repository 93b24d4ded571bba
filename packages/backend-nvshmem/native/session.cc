// SPDX-License-Identifier: Apache-2.0
/*
 * See session.h.
 */
#include "session.h"

#include "run_detached.h"

namespace tensorferry::nvshmem {
namespace {

/** Makes the device current for good: on a thread of its own. */
Status bind(const gpu::GpuApi& api, int ordinal) {
  Status status = gpu::callRuntime(api, api.setDevice, ordinal);
  return status.ok() ? gpu::callRuntime(api, api.release, static_cast<void*>(nullptr)) : status;
}

}  // namespace

Status Session::join(const UniqueId& id, const CancelToken& token) {
  auto self = shared_from_this();
  return runDetached("join", token, [self, id]() mutable -> Status {
    const NvshmemApi& api = self->api();
    Status status = bind(self->gpu(), self->ordinal);
    if (!status.ok()) return status;
    InitAttributes attributes{};
    attributes.version = versionOf<InitAttributes>();
    attributes.arguments.version = versionOf<InitArguments>();
    attributes.arguments.uniqueId.version = versionOf<UniqueIdArguments>();
    int answer = api.setUniqueId(self->rank, self->size, &id, &attributes);
    if (answer != 0)
      return failure(Code::SystemFailure, api.setUniqueId.name, "The library refused the identity.", answer);
    answer = api.initialise(initByUniqueId, &attributes);
    if (answer != 0) return failure(Code::SystemFailure, api.initialise.name, "The library could not start.", answer);
    const int pe = api.ownPe(), count = api.peCount();
    if (pe != self->rank || count != self->size)
      return failure(Code::AlreadyExists, api.initialise.name,
                     "This process is PE " + std::to_string(pe) + " of " + std::to_string(count) +
                         " already, and NVSHMEM knows one job per process; asked for was PE " +
                         std::to_string(self->rank) + " of " + std::to_string(self->size) + ".");
    for (gpu::Stream* stream : {&self->telling, &self->releasing}) {
      auto made = gpu::makeStream(self->gpu());
      if (!made.ok()) return made.status();
      *stream = std::move(made.value());
    }
    self->open_.store(true, std::memory_order_release);
    return {};
  });
}

Result<void*> Session::allocate(size_t bytes, const CancelToken& token) {
  auto self = shared_from_this();
  auto address = std::make_shared<void*>(nullptr);
  Status status = runDetached("allocate", token, [self, bytes, address]() -> Status {
    Status bound = bind(self->gpu(), self->ordinal);
    if (!bound.ok()) return bound;
    *address = self->api().allocate(bytes);
    if (*address != nullptr) return {};
    return failure(Code::OutOfMemory, self->api().allocate.name,
                   "The symmetric heap has no " + std::to_string(bytes) +
                       " bytes left. Ask for fewer or smaller slots, or raise NVSHMEM_SYMMETRIC_SIZE.");
  });
  if (!status.ok()) return status;
  return *address;
}

Status Session::leave(const CancelToken& token) {
  if (!open_.exchange(false)) return failure(Code::InvalidHandle, "leave", "The session is closed.");
  auto self = shared_from_this();
  return runDetached("leave", token, [self]() -> Status {
    Status status = bind(self->gpu(), self->ordinal);
    if (!status.ok()) return status;
    self->telling.reset();
    self->releasing.reset();
    self->api().finalise();
    return {};
  });
}

void Session::abandon() noexcept {
  open_.store(false, std::memory_order_release);
  abandoned_.store(true, std::memory_order_release);
}

void Session::close() noexcept {
  if (isAbandoned()) {
    // Work that waits for PEs that are gone may be on them for ever.
    new gpu::Stream(std::move(telling));
    new gpu::Stream(std::move(releasing));
    return;
  }
  if (!telling && !releasing) return;
  gpu::DeviceScope scope(gpu(), ordinal);
  telling.reset();
  releasing.reset();
}

}  // namespace tensorferry::nvshmem
