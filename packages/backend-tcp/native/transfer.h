// SPDX-License-Identifier: Apache-2.0
/*
 * What moves: a flow is all that a program sends to a peer or gets from it, a run is one time that it does so, and a
 * transfer is the job of all runs that one rank starts together.
 *
 * All fields are guarded by the endpoint's mutex, except that the stream never changes. Invariant: memory of a run is only
 * touched while `touching` counts it, and a run that has ended is not touched again; the job is done when all of its runs
 * have ended and nobody touches them.
 */
#pragma once

#include <tensorferry/napi_jobs.h>
#include <tensorferry/wire/byte_stream.h>
#include <tensorferry/wire/chunk_ledger.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "frame.h"

namespace tensorferry::tcp {

struct Peer;
struct Flow;
struct Run;
class Endpoint;

class Transfer final : public EventJob {
 public:
  explicit Transfer(const std::shared_ptr<Endpoint>& endpoint) : endpoint_(endpoint) {}
  void cancel() noexcept override;

  /** Runs that have not ended, or that somebody still touches. */
  size_t unsettled = 0;
  std::vector<std::shared_ptr<Run>> runs;

 private:
  std::weak_ptr<Endpoint> endpoint_;
};

struct Run {
  std::shared_ptr<Transfer> transfer;
  std::shared_ptr<Flow> flow;
  /** The receiver's number of this run; 0 at a sender that waits for a receiver. */
  uint64_t number = 0;
  wire::ChunkLedger ledger;
  /** Threads that read or write its memory. */
  int touching = 0;
  bool hasEnded = false, isSettled = false;
};

struct Flow {
  static constexpr napi_type_tag typeTag{0x5b1f0c6ad4824e37, 0xb6c9e5108ad27f43};
  static constexpr const char* kind = "flow";

  uint32_t program = 0;
  bool isSending = false;
  bool isClosed = false;
  std::shared_ptr<Peer> peer;
  wire::ByteStream stream;
  /** Threads that read or write its memory, in whatever run. */
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

}  // namespace tensorferry::tcp
