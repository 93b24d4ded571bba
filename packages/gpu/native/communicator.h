// SPDX-License-Identifier: Apache-2.0
/*
 * The collectives library among a group of ranks, as seen by one of them.
 *
 * Connected on a thread that may wait; used by the device's worker; closed from anywhere.
 * Invariant: an aborted communicator is never touched again, and is aborted or destroyed exactly once. Who uses it holds
 * its `use` lock, so that it cannot go away meanwhile; closing makes a user abort.
 */
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <thread>

#include <tensorferry_gpu/resource.h>
#include "device.h"

namespace tensorferry::gpu {

class Communicator final : public Resource {
 public:
  static constexpr napi_type_tag typeTag{0x1fa2c6b07e914d07, 0xae51840f6d3b4ca6};
  static constexpr const char* kind = "communicator";
  Communicator(std::shared_ptr<Device> owner, CommunicatorHandle handle, uint32_t ownRank, uint32_t rankCount) noexcept
      : Resource(std::move(owner)), ownRank(ownRank), ranks(rankCount), handle_(handle) {}

  int rank() const noexcept override { return 1; }

  /** Ok while it can be used, else PeerGone with what to do. */
  Status usable() const;

  /** Keeps it from being destroyed. */
  std::unique_lock<std::mutex> use() { return std::unique_lock(use_); }

  // For who holds the lock.
  CommunicatorHandle handle() const noexcept { return handle_; }
  /** Ends all that runs on it, here and for good. */
  void abort() noexcept;
  /** What went wrong behind the caller's back, if anything did. Work that is still being queued is no error. */
  Status asyncError() const;
  /** Waits until accepted work is queued, which libraries may do on a thread of their own. */
  template <typename Stop>
  Status settle(const char* function, int answer, Stop stop) const;

  const uint32_t ownRank, ranks;

 protected:
  void scheduleFinish() noexcept override;
  void giveBack() noexcept override;

 private:
  void destroy(const CancelToken& token) noexcept;

  std::mutex use_;
  std::atomic<bool> aborted_{false};
  CommunicatorHandle handle_;
};

/** Joins a group of ranks; ends when all are there, with an error, or when the token is cancelled. */
Result<std::shared_ptr<Communicator>> connectCommunicator(const std::shared_ptr<Device>& device, const UniqueId& id,
                                                          uint32_t rank, uint32_t ranks, const CancelToken& token);

template <typename Stop>
Status Communicator::settle(const char* function, int answer, Stop stop) const {
  const GpuApi& api = device->api();
  for (unsigned turn = 0; answer == collectives::inProgress; turn++) {
    if (stop()) return failure(Code::Cancelled, function, "Stopped while the library was at work.");
    if (turn > 64) std::this_thread::sleep_for(std::chrono::microseconds(20));
    const int asked = api.asyncError(handle_, &answer);
    if (asked != collectives::success) answer = asked;
  }
  return answer == collectives::success ? Status{} : collectivesFailure(api, function, answer, handle_);
}

}  // namespace tensorferry::gpu
