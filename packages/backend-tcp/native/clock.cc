// SPDX-License-Identifier: Apache-2.0
/*
 * What happens because time passes: strangers leave, attempts to connect are made again, lanes that stall are given up,
 * waits without progress end, and the number of lanes follows what they bring. Called by the first thread with the mutex
 * held.
 *
 * Invariant: time in which this process did not run counts for nobody.
 */
#include <linux/tcp.h>

#include <cmath>

#include "endpoint.h"

namespace tensorferry::tcp {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds shortTick{50}, longTick{1000};
/** How long a stranger may take to prove itself, and an attempt to connect. */
constexpr milliseconds handshakeTime{10'000};
/** A receiver says again what it waits for. */
constexpr milliseconds announcementTime{1000};
/** What a lane's receiver may have without a confirmation, if its process gets on: each chunk is confirmed at once. */
constexpr uint64_t systemBytes = 2 * chunkBytes;
/** How long the rate of a number of lanes is taken, how often until it is believed, and the rest after a trial in vain. */
constexpr milliseconds trialTime{250}, restTime{10'000};
constexpr int settlingWindows = 2;
/** More lanes are kept where they bring this much more. */
constexpr double worthwhile = 1.1;

/** Bytes that the peer's system has confirmed. */
uint64_t confirmedBytes(int socket) noexcept {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return 0;
  return length >= offsetof(tcp_info, tcpi_bytes_acked) + sizeof info.tcpi_bytes_acked ? info.tcpi_bytes_acked : 0;
}

}  // namespace

milliseconds Endpoint::stallTime() const noexcept {
  return std::clamp(settings_.deadline / 5, milliseconds(300), milliseconds(3000));
}

milliseconds Endpoint::untilTick() {
  isClockIdle_ = Clock::now() - lastNeeded_ > longTick;
  return isClockIdle_ ? longTick : shortTick;
}

void Endpoint::tick(Lock& lock) {
  const Time now = Clock::now();
  const auto passed = now - lastTick_;
  if (passed < shortTick / 2) return;
  lastTick_ = now;
  if (passed > 2 * longTick) {
    for (const auto& [number, lane] : lanes_) {
      lane->since += passed;
      lane->lastMoved += passed;
    }
    for (const auto& [id, peer] : peers_) peer->lastProgress += passed;
    return;
  }
  resumeListeners();
  const auto lanes = lanes_;
  for (const auto& [number, lane] : lanes) tickLane(lane, now);
  const auto peers = peers_;
  for (const auto& [id, peer] : peers) tickPeer(peer, now, lock);
  const bool isBusy = !strangers_.empty() || std::any_of(peers_.begin(), peers_.end(), [](const auto& each) {
    return isNeeded(*each.second) || !each.second->dialing.empty();
  }) || std::any_of(listeners_.begin(), listeners_.end(), [](const auto& each) { return each.isPaused; });
  if (isBusy) lastNeeded_ = now;
}

void Endpoint::tickLane(const LanePointer& lane, Time now) {
  if (lane->state == LaneState::closed) return;
  if (lane->state == LaneState::connecting) {
    // A lost request is made again, sooner than the system would.
    if (now - lane->since > std::min(stallTime(), milliseconds(1000))) breakLane(lane, "no answer");
    return;
  }
  if (lane->state != LaneState::open) {
    const auto most = lane->isOutgoing ? stallTime() : std::min(handshakeTime, settings_.deadline);
    if (now - lane->since > most) breakLane(lane, "no end of the handshake");
    return;
  }
  const bool isSending = lane->isOutgoing && !lane->unconfirmed.empty();
  const bool isReceiving = !lane->isOutgoing && lane->work.isActive;
  if (isSending) {
    const uint64_t confirmed = confirmedBytes(lane->socket.get());
    if (confirmed != lane->bytesConfirmed) {
      Peer& peer = *lane->peer;
      peer.unconfirmed += confirmed - lane->bytesConfirmed;
      lane->bytesConfirmed = confirmed;
      lane->lastMoved = now;
      if (peer.unconfirmed < peer.outgoing.size() * systemBytes) peer.lastProgress = now;
    }
  }
  if (!isSending && !isReceiving) lane->lastMoved = now;
  else if (now - lane->lastMoved > stallTime()) breakLane(lane, "it stalled");
}

void Endpoint::tickPeer(const std::shared_ptr<Peer>& peer, Time now, Lock& lock) {
  if (!isNeeded(*peer)) return;
  dialIfNeeded(peer);
  chooseLanes(*peer, now);
  const bool hasLane = !peer->outgoing.empty() || !peer->incoming.empty();
  const bool isWaiting = !peer->pushing.empty() || !peer->connecting.empty() || !hasLane;
  if (!isWaiting) peer->lastProgress = now;
  if (now - peer->lastProgress > settings_.deadline) {
    const double seconds = static_cast<double>(settings_.deadline.count()) / 1000;
    char text[32];
    std::snprintf(text, sizeof text, "%g s", seconds);
    const std::string why = peer->outgoing.empty() ? faultsOf(*peer) : "it confirms nothing";
    return failPeer(peer, peerFailure(*peer, Code::DeadlineExceeded,
                                      std::string("has not answered for ") + text + ": " + why, ETIMEDOUT));
  }
  if (now < peer->nextAnnouncement || peer->incoming.empty()) return;
  peer->nextAnnouncement = now + announcementTime;
  // Not always the same lane: it may be the one that stalls.
  announceAll(peer, LanePointer(peer->incoming[peer->nextAnnouncer++ % peer->incoming.size()]), lock);
}

void Endpoint::chooseLanes(Peer& peer, Time now) {
  LaneTrial& trial = peer.trial;
  if (peer.pushing.empty()) {
    trial.since = {};
    return;
  }
  const auto begin = [&] {
    trial.since = now;
    trial.bytes = peer.bytesSent;
  };
  if (trial.since == Time{}) {
    trial.rate = 0;
    return begin();
  }
  if (now - trial.since < trialTime || peer.outgoing.size() < peer.wanted) return;
  const double seconds = std::chrono::duration<double>(now - trial.since).count();
  const double before = std::exchange(trial.rate, static_cast<double>(peer.bytesSent - trial.bytes) / seconds);
  begin();
  const auto tryMore = [&] {
    trial.baseRate = trial.rate;
    trial.baseLanes = peer.wanted;
    peer.wanted = std::min(settings_.lanes, peer.wanted * 2);
    trial.windows = peer.wanted > trial.baseLanes ? settlingWindows : 0;
  };
  if (trial.windows == 0) {
    // Only once the rate is steady do more lanes show what they bring.
    const bool isSteady = std::abs(trial.rate - before) < (worthwhile - 1) * before;
    if (isSteady && now >= trial.next) tryMore();
    return;
  }
  if (--trial.windows > 0) return;
  if (trial.rate > trial.baseRate * worthwhile) return tryMore();
  peer.wanted = trial.baseLanes;
  trial.next = now + restTime;
}

}  // namespace tensorferry::tcp
