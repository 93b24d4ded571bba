// SPDX-License-Identifier: Apache-2.0
/*
 * Memory of devices, imported host memory and batches of moves for JavaScript. JS thread only; the work itself runs on the
 * device's threads.
 */
#include "batch.h"
#include "bindings.h"

namespace tensorferry::xpu {
namespace {

Answer startAllocate(const Call& call, Open<Device> device, Whole<largestExact, 1> length, Napi::Function callback) {
  const auto allocate = [device, length](Job& job) -> Result<uint64_t> {
    if (job.cancelToken.isCancelled()) return failure(Code::Cancelled, "allocate", "The allocation was cancelled.");
    return device->allocate(length);
  };
  return call.start(device->calls,
                    makeJob("allocate", allocate, [](Napi::Env env, uint64_t address) { return bigint(env, address); }),
                    callback);
}

Answer startFree(const Call& call, Open<Device> device, Whole<> address, Napi::Function callback) {
  const auto free = [device, address](Job& job) {
    return job.cancelToken.isCancelled() ? Status{} : device->free(address);  // the closing device frees it
  };
  return call.start(device->calls, makeJob("freeMemory", free), callback);
}

Answer startDrain(const Call& call, Open<Device> device, Napi::Function callback) {
  const auto drain = [device](Job& job) { return device->drain(job.cancelToken, std::chrono::nanoseconds::zero()); };
  return call.start(device->waits, makeJob("drain", drain), callback);
}

Answer startMoves(const Call& call, Open<Device> device, Napi::BigUint64Array words, Napi::Function callback) {
  auto moves = readBatch(words.Data(), words.ElementLength());
  if (!moves.ok()) return moves.status();
  const auto run = [device, list = std::move(moves.value())](Job& job) {
    return runBatch(*device, list, job.cancelToken, job.movedBytes);
  };
  return call.start(device->work, makeJob("moves", run), callback);
}

Status importHost(const Call&, Open<Device> device, Whole<> address, Whole<> length) {
  return device->driver().importHost(reinterpret_cast<void*>(address.value), length);
}

/** Takes the length as importing does. */
Status releaseHost(const Call&, Open<Device> device, Whole<> address, Whole<>) {
  return device->driver().releaseHost(reinterpret_cast<void*>(address.value));
}

}  // namespace

void bindMemory(Functions& functions) {
  functions.add<startAllocate>("startAllocate", "(device, byteLength of at least 1, callback)")
      .add<startFree>("startFree", "(device, address, callback)")
      .add<startDrain>("startDrain", "(device, callback)")
      .add<startMoves>("startMoves", "(device, table of moves, callback)")
      .add<importHost>("importHost", "(device, address, byteLength)")
      .add<releaseHost>("releaseHost", "(device, address, byteLength)")
      .add<addressOf>("addressOf", "(a Uint8Array that is not detached)");
}

}  // namespace tensorferry::xpu
