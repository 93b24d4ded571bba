// SPDX-License-Identifier: Apache-2.0
/*
 * What moves: a flow is all that a program sends to a peer or gets from it, a run is one time that it does so, and a
 * transfer is the job of all runs that one rank starts together. Also the memory that they touch, and the peers.
 *
 * Used by the endpoint's thread alone, but for what is said to be constant. Invariant: memory of a run is only touched
 * while `touching` counts it, by UCX or by the peer; the job is done when all of its runs have ended and nobody touches them.
 */
#pragma once

#include <tensorferry/wire/transfers.h>

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "frame.h"
#include "ucp_abi.h"

namespace tensorferry::ucx {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;

class Endpoint;
struct Flow;
struct Peer;
struct Run;

/** Memory of the caller that UCX knows; null where it did not take it. */
struct Region {
  static constexpr napi_type_tag typeTag{0x6c1f8e02d95b4a37, 0xa4d07b93f1c25e68};
  static constexpr const char* kind = "region";
  uint64_t address = 0, length = 0;
  abi::Memory* memory = nullptr;
  bool holds(const void* at, uint64_t bytes) const noexcept {
    const auto first = reinterpret_cast<uint64_t>(at);
    return memory != nullptr && first >= address && first - address <= length && bytes <= length - (first - address);
  }
};

using Transfer = wire::TransferOf<Endpoint, Run>;
using ConnectJob = wire::ConnectJobOf<Endpoint, Peer>;

/** The ledger is a receiver's. */
struct Run : wire::RunOf<Transfer, Flow> {
  /** Of a sender: the next chunk to leave, and the bytes that were written at the peer. */
  size_t next = 0;
  uint64_t written = 0;
  /** Of a receiver: the peer may write to its memory. */
  bool isExposed = false;
  bool isLingering = false;
};

/** Where the peer takes chunks; what it said of one program. */
struct Layout {
  std::vector<abi::RemoteKey*> keys;
  struct Place {
    uint64_t address;
    uint32_t key;
  };
  /** By chunk; an address of 0 says that it must be sent. */
  std::vector<Place> places;
};

struct Flow : wire::FlowOf<Peer, Run, chunkBytes> {
  static constexpr napi_type_tag typeTag{0x3a84d1be705f4c92, 0x9be2607f5c13d8a4};

  // Constant.
  uint64_t digest = 0;
  std::vector<std::shared_ptr<Region>> regions;

  /** Of a receiver: whether the peer was told where it may write. */
  bool isLaidOut = false;
  /** Of a sender: what the receiver said. */
  bool isLayoutWanted = false;
  std::unique_ptr<Layout> layout;

  const Region* regionOf(const void* at, uint64_t bytes) const noexcept {
    for (const auto& region : regions)
      if (region->holds(at, bytes)) return region.get();
    return nullptr;
  }
};

enum class Link {
  none,
  open,
  /** A peer is not reached again before this has ended. */
  closing
};

struct Peer {
  static constexpr napi_type_tag typeTag{0x81b5c06e3f9a4d27, 0xb20e94d75a61cf38};
  static constexpr const char* kind = "peer";

  // Constant.
  uint32_t rank = 0;
  std::string address;
  /** What this rank's messages to the peer carry, and what the peer's must. */
  Ticket ours{}, theirs{};

  bool isClosed = false;
  Link link = Link::none;
  abi::Ep* ep = nullptr;
  /** Counts what it was reached by, to tell late answers apart. */
  uint64_t generation = 0;
  bool isWelcomed = false;
  /** Whether chunks are written by remote keys here; known once it was reached. */
  bool isPutting = false;
  std::string lanes;
  std::deque<std::pair<Frame, std::string>> output;
  std::vector<std::shared_ptr<Flow>> sends, receives;
  /** Runs whose chunks may leave, oldest first. */
  std::vector<std::shared_ptr<Run>> pushing;
  /** Runs to whose memory the peer may write. */
  std::vector<std::shared_ptr<Run>> exposed;
  std::vector<std::shared_ptr<ConnectJob>> connecting;
  /** Runs that have not ended, chunks that are leaving, and those of them that lie in the arena. */
  size_t running = 0, inFlight = 0, gathered = 0;
  /** Runs that have ended while UCX or the peer still touches their memory. */
  size_t lingering = 0;
  Time lastHeard{}, nextHello{}, lingersUntil{};
};

/** What failed with a peer, which the failure's item names. */
inline tensorferry::Status peerFailure(const Peer& peer, Code code, const std::string& what, int32_t nativeCode = 0) {
  auto status = failure(code, "connect", "Rank " + std::to_string(peer.rank) + " " + what + ".", nativeCode);
  status.item = peer.rank;
  return status;
}

}  // namespace tensorferry::ucx
