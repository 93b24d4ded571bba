// SPDX-License-Identifier: Apache-2.0
/*
 * Short transfers without a thread between: whoever waits for one looks at the sockets itself for a moment, because two
 * threads that wake each other take several times as long as the bytes.
 *
 * Invariants: while a lane is attended, its thread does not wait for its bytes, and confirmations stay back so that they can
 * leave with what the next transfer says. That ends when the caller's turn does, and at the latest after `mostAttended`. A
 * thread that looks in vain does so ever more rarely, so a peer that lets one wait costs little.
 */
#include "endpoint.h"

namespace tensorferry::tcp {
namespace {

/** About what the waking of two threads takes, so that looking costs at most as much again. */
constexpr std::chrono::microseconds patience{100};
constexpr std::chrono::milliseconds mostAttended{1};
/** Peers whose lanes one turn looks at. */
constexpr size_t mostPeers = 4;
/** Attempts in vain before some are left out, and the most that are. */
constexpr int mostMisses = 4, mostLeftOut = 64;

}  // namespace

/** The lanes that a short transfer takes unless the peer chooses others, which the threads then serve. */
std::vector<LanePointer> Endpoint::lanesOf(const Transfer& transfer) const {
  std::vector<std::shared_ptr<Peer>> peers;
  std::vector<LanePointer> lanes;
  for (const auto& run : transfer.runs) {
    const auto& peer = run->flow->peer;
    if (run->hasEnded || std::find(peers.begin(), peers.end(), peer) != peers.end()) continue;
    if (peers.size() == mostPeers) return {};
    peers.push_back(peer);
    if (!peer->incoming.empty()) lanes.push_back(peer->incoming.front());
    if (!peer->outgoing.empty()) lanes.push_back(peer->outgoing.front());
  }
  return lanes;
}

void Endpoint::beginAttending(const LanePointer& lane) {
  lane->attended = Clock::now();
  if (lane->isAttended || lane->state == LaneState::closed) return;
  lane->isAttended = true;
  threads_[lane->thread]->poller.change(lane->socket.get(), lane->number, lane->awaitsRoom, false);
  attended_.push_back(lane);
  // The clock's thread waits for as long as nothing is attended.
  if (attended_.size() == 1) threads_[0]->poller.wake();
}

void Endpoint::endAttending(const LanePointer& lane, Lock& lock) {
  std::erase(attended_, lane);
  if (!lane->isAttended || lane->state == LaneState::closed) return;
  lane->isAttended = false;
  threads_[lane->thread]->poller.change(lane->socket.get(), lane->number, lane->awaitsRoom);
  pump(lane, lock);
}

std::chrono::milliseconds Endpoint::untilUnattended(std::chrono::milliseconds most) const noexcept {
  return attended_.empty() ? most : std::min(most, mostAttended);
}

void Endpoint::endOldAttending(Lock& lock) {
  const Time now = Clock::now();
  for (const auto& lane : std::vector(attended_))
    if (now - lane->attended >= mostAttended) endAttending(lane, lock);
}

void Endpoint::endAttending() {
  Lock lock(mutex_);
  for (const auto& lane : std::vector(attended_)) endAttending(lane, lock);
}

bool Endpoint::attend(const std::shared_ptr<Transfer>& transfer) {
  Lock lock(mutex_);
  const auto isDone = [&] { return transfer->unsettled == 0; };
  if (isDone()) return true;
  if (!transfer->isShort || !isOpen_ || leftOut_-- > 0) return false;
  const auto lanes = lanesOf(*transfer);
  for (const auto& lane : lanes) beginAttending(lane);
  const Time end = Clock::now() + patience;
  do {
    for (const auto& lane : lanes) drain(lane, lock);
  } while (!isDone() && !lanes.empty() && Clock::now() < end);
  misses_ = isDone() ? 0 : misses_ + 1;
  leftOut_ = misses_ < mostMisses ? 0 : std::min(mostLeftOut, misses_);
  if (isDone()) return true;
  for (const auto& lane : lanes) endAttending(lane, lock);
  return isDone();
}

}  // namespace tensorferry::tcp
