// SPDX-License-Identifier: Apache-2.0
/*
 * What moves on a wire, as its drivers keep it alike: a flow is all that a program sends to a peer or gets from it, a run is
 * one time that it does so, and a transfer is the job of all runs that one rank starts together. `Endpoint` is the driver's.
 *
 * Fields are guarded as the endpoint says. Invariant: memory of a run is only touched while `touching` counts it; the job is
 * done when all of its runs have ended and nobody touches them.
 */
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "../napi_jobs.h"
#include "byte_stream.h"
#include "chunk_ledger.h"

namespace tensorferry::wire {

/** A job that its endpoint ends where it is cancelled. */
template <typename Endpoint, typename Self>
class EndpointJob : public EventJob, public std::enable_shared_from_this<Self> {
 public:
  explicit EndpointJob(const std::shared_ptr<Endpoint>& endpoint) : endpoint_(endpoint) {}
  void cancel() noexcept override {
    Job::cancel();
    if (const auto endpoint = endpoint_.lock()) endpoint->cancel(this->shared_from_this());
  }

 private:
  std::weak_ptr<Endpoint> endpoint_;
};

template <typename Endpoint, typename Run>
class TransferOf final : public EndpointJob<Endpoint, TransferOf<Endpoint, Run>> {
 public:
  using EndpointJob<Endpoint, TransferOf>::EndpointJob;
  /** Runs that have not ended, or that somebody still touches. */
  size_t unsettled = 0;
  /** Whether all runs have so few bytes that a thread of their own would take longer to wake. */
  bool isShort = false;
  std::vector<std::shared_ptr<Run>> runs;
};

/** Done when the peer can be reached. */
template <typename Endpoint, typename Peer>
class ConnectJobOf final : public EndpointJob<Endpoint, ConnectJobOf<Endpoint, Peer>> {
 public:
  ConnectJobOf(const std::shared_ptr<Endpoint>& endpoint, std::shared_ptr<Peer> of)
      : EndpointJob<Endpoint, ConnectJobOf>(endpoint), peer(std::move(of)) {}
  const std::shared_ptr<Peer> peer;
};

template <typename Transfer, typename Flow>
struct RunOf {
  std::shared_ptr<Transfer> transfer;
  std::shared_ptr<Flow> flow;
  /** The receiver's number of this run; 0 at a sender that waits for a receiver. */
  uint64_t number = 0;
  ChunkLedger ledger;
  int touching = 0;
  bool hasEnded = false, isSettled = false;
};

template <typename Peer, typename Run, uint64_t chunkBytes>
struct FlowOf {
  static constexpr const char* kind = "flow";

  // Constant.
  uint32_t program = 0;
  bool isSending = false;
  ByteStream stream;
  std::shared_ptr<Peer> peer;

  bool isClosed = false;
  /** Those who read or write its memory, in whatever run. */
  int touching = 0;
  /** The run that has begun and not ended. */
  std::shared_ptr<Run> run;
  /** Of a receiver: the last run that began, and the last that was received whole. */
  uint64_t begun = 0, completed = 0;
  /** Of a sender: the last run that the receiver was ready for, and the last that it withdrew or this rank took up. */
  uint64_t ready = 0, used = 0;

  size_t chunks() const noexcept { return (stream.byteLength() + chunkBytes - 1) / chunkBytes; }
  uint64_t lengthOf(size_t chunk) const noexcept {
    return std::min(chunkBytes, stream.byteLength() - chunk * chunkBytes);
  }
};

}  // namespace tensorferry::wire
