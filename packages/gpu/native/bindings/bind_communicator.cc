// SPDX-License-Identifier: Apache-2.0
/*
 * Communicators for JavaScript. JS thread only, but ranks wait for each other on the device's threads.
 */
#include "bindings.h"
#include "communicator.h"

namespace tensorferry::gpu {
namespace {

Answer startConnect(const Call& call, Open<Device> device, BytesOf<UniqueId> id, Ordinal rank, Ordinal ranks,
                    Napi::Function callback) {
  if (rank >= ranks) return call.refusal();
  if (!device->api().hasCollectives)
    return failure(Code::Unsupported, call.function, "No collectives library (NCCL or RCCL) was opened.");
  const auto connect = [=](Job& job) {
    return handleOf(connectCommunicator(device, id.value, static_cast<uint32_t>(rank), static_cast<uint32_t>(ranks),
                                        job.cancelToken));
  };
  return call.start(device->connections,
                    makeJob("connect", connect, [](Napi::Env env, auto& made) { return wrap(env, made); }), callback);
}

}  // namespace

void bindCommunicator(Functions& functions) {
  functions.add<startConnect>("startConnect", "(device, an id of 128 bytes, rank below size, size, callback)")
      .add<close<Open<Communicator>>>("closeCommunicator", "(communicator)");
}

}  // namespace tensorferry::gpu
