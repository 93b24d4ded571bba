// SPDX-License-Identifier: Apache-2.0
/*
 * One connection, and what it is in the middle of.
 *
 * What comes in is read by the one thread that has set `isDraining`; only it uses `input` and, at the receiving end,
 * `work.batch`. What goes out is written by the one thread that has set `isPumping`. Everything else is guarded by the endpoint's mutex.
 * Invariant: the socket is closed when nobody holds the lane any more; `state` says before that whether it may be used.
 */
#pragma once

#include <tensorferry/descriptor.h>
#include <tensorferry/wire/handshake.h>

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "address.h"
#include "io_batch.h"
#include "transfer.h"

namespace tensorferry::tcp {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;

enum class LaneState {
  connecting,
  /** Of a dialer: waits for the challenge, then for the judgement. */
  awaitsChallenge,
  awaitsJudgement,
  /** Of a listener: waits for the hello of a stranger. */
  awaitsHello,
  open,
  closed
};

/** A chunk that a lane sends or receives. */
struct ChunkWork {
  /** Absent where the bytes go nowhere. */
  std::shared_ptr<Run> run;
  size_t chunk = 0;
  Frame frame{};
  /** Bytes of the chunk that no batch has taken, and that have not been moved. */
  uint64_t unbatched = 0, left = 0;
  wire::RunCursor cursor;
  IoBatch batch;
  bool isActive = false;
  /** Of a receiver: what is answered when the chunk has been read. */
  FrameKind answer = FrameKind::have;
};

struct Lane {
  uint64_t number = 0;
  Descriptor socket;
  /** True where this end dialed, and so sends chunks. */
  bool isOutgoing = false;
  size_t thread = 0;
  size_t path = 0;
  LaneState state = LaneState::closed;
  /** Absent while a stranger has not proved who it is. */
  std::shared_ptr<Peer> peer;
  std::string label;

  std::string output;
  bool isPumping = false, mustPumpAgain = false, awaitsRoom = false;
  /** Attended: its thread does not wait for its bytes, because another looks for them; since when it last did. */
  bool isDraining = false, isAttended = false;
  Time attended{};

  alignas(8) std::array<uint8_t, sizeof(wire::Hello)> input;
  size_t have = 0, need = 0;
  wire::Challenge challenge{};
  wire::Hello hello{};

  ChunkWork work;
  struct Sent {
    std::shared_ptr<Run> run;
    size_t chunk;
  };
  /** Chunks that the receiver has not confirmed, oldest first. */
  std::deque<Sent> unconfirmed;

  /** When it began what it is doing, and when bytes last moved. */
  Time since{}, lastMoved{};
  uint64_t bytesConfirmed = 0;
};

using LanePointer = std::shared_ptr<Lane>;

/** A way to a peer: from an address of this host, or any, to one of the peer's. */
struct Path {
  std::optional<Address> from;
  Address to;
  /** Why it could not be used last time; empty where it could. */
  std::string fault;
  bool isRefused = false, isTried = false;
  Time tried{};
};

/** How the number of lanes to a peer is chosen: more are kept where they bring more. */
struct LaneTrial {
  /** When the present window began, and how much had been sent then. */
  Time since{};
  uint64_t bytes = 0;
  /** Bytes per second in the last window. */
  double rate = 0;
  /** What is compared with, and windows until then; 0 while nothing is tried. */
  double baseRate = 0;
  size_t baseLanes = 0;
  int windows = 0;
  Time next{};
};

using Flows = std::unordered_map<uint32_t, std::shared_ptr<Flow>>;

struct Peer {
  static constexpr napi_type_tag typeTag{0x21d79a30bb5c4f6e, 0x97be31c7f05d4a12};
  static constexpr const char* kind = "peer";

  uint32_t rank = 0;
  wire::EndpointId id{};
  wire::Bytes32 key{};
  bool isKnown = false, isClosed = false;
  std::vector<Path> paths;
  /** Lanes that are open, by who dialed; and attempts under way. */
  std::vector<LanePointer> outgoing, incoming, dialing;
  size_t nextPath = 0, nextAnnouncer = 0;
  /** Runs that have not ended. */
  size_t running = 0;
  /** Lanes that are kept open while there is much to send. */
  size_t wanted = 1;
  /** By program. */
  Flows sends, receives;
  /** Runs whose chunks may be sent, oldest first. */
  std::vector<std::shared_ptr<Run>> pushing;
  std::vector<std::shared_ptr<ConnectJob>> connecting;

  Time lastProgress{}, nextDial{}, nextAnnouncement{};
  /** Bytes that its system has taken since it last confirmed a chunk, and whether a lane was opened since. */
  uint64_t unconfirmed = 0;
  bool hasReopened = false;
  int refusedRounds = 0;
  std::chrono::milliseconds backoff{0};

  uint64_t bytesSent = 0;
  LaneTrial trial;

  /** The process itself has got on, and not only its system. */
  void hasConfirmed(Time now) noexcept {
    lastProgress = now;
    unconfirmed = 0;
    hasReopened = false;
  }
};

}  // namespace tensorferry::tcp
