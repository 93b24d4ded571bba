// SPDX-License-Identifier: Apache-2.0
/*
 * The receiving end: bytes go from the socket to their places, and every chunk is answered. Functions are called with
 * the mutex held, and let go of it while the system copies.
 *
 * Invariants: one thread at a time reads from a lane. What a peer says is checked before anything uses it; a frame names no
 * address and no length but that of its chunk, which must be the one this end expects. A chunk that is here already, or that
 * nobody waits for, is read to nowhere.
 */
#include <sys/socket.h>

#include "endpoint.h"

namespace tensorferry::tcp {
namespace {

/** Reads of one lane before others of its thread have a turn. */
constexpr int mostReads = 32;

/** True while it lives, whatever is thrown. */
struct Claim {
  explicit Claim(bool& of) noexcept : claimed(of) { claimed = true; }
  ~Claim() { claimed = false; }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  bool& claimed;
};

}  // namespace

void Endpoint::drain(const LanePointer& lane, Lock& lock) {
  // What this call leaves is seen by whoever reads now, or when the lane is waited for again.
  if (lane->isDraining) return;
  const Claim claim(lane->isDraining);
  for (int reads = 0; reads < mostReads && lane->state != LaneState::closed; reads++) {
    const bool isWithinChunk = !lane->isOutgoing && lane->work.isActive;
    if (!(isWithinChunk ? drainChunk(lane, lock) : drainHeader(lane, lock))) return;
  }
}

/** False where there is nothing more to read. */
bool Endpoint::drainHeader(const LanePointer& lane, Lock& lock) {
  lock.unlock();
  const ssize_t got =
      ::recv(lane->socket.get(), lane->input.data() + lane->have, lane->need - lane->have, MSG_DONTWAIT);
  const int error = errno;
  lock.lock();
  if (lane->state == LaneState::closed) return false;
  if (got <= 0) {
    if (got < 0 && (error == EAGAIN || error == EINTR)) return false;
    breakLane(lane, got == 0 ? "the peer closed the connection" : std::string("recv: ") + std::strerror(error));
    return false;
  }
  lane->have += static_cast<size_t>(got);
  lane->lastMoved = Clock::now();
  if (lane->have < lane->need) return true;
  lane->have = 0;
  if (lane->state != LaneState::open) {
    handshake(lane, lock);
    return true;
  }
  Frame frame;
  std::memcpy(&frame, lane->input.data(), sizeof frame);
  if (lane->isOutgoing) answered(lane, frame, lock);
  else beginChunk(lane, frame);
  return true;
}

void Endpoint::brokeProtocol(const LanePointer& lane, const char* how) {
  const auto peer = lane->peer;
  breakLane(lane, "the peer broke the protocol");
  failPeer(peer, peerFailure(*peer, Code::SystemFailure, std::string("broke the protocol ") + how));
}

void Endpoint::beginChunk(const LanePointer& lane, const Frame& frame) {
  if (frame.kind != FrameKind::chunk || frame.length == 0 || frame.length > chunkBytes)
    return brokeProtocol(lane, "with what is no chunk");
  const auto found = lane->peer->receives.find(frame.program);
  ChunkWork& work = lane->work;
  work.run.reset();
  work.frame = frame;
  work.chunk = frame.chunk;
  work.unbatched = work.left = frame.length;
  work.batch.clear();
  work.answer = FrameKind::withdrawn;
  work.isActive = true;
  if (found == lane->peer->receives.end()) return;
  const Flow& flow = *found->second;
  if (frame.chunk >= flow.chunks() || frame.length != flow.lengthOf(frame.chunk)) {
    work.isActive = false;
    return brokeProtocol(lane, "with a chunk that does not exist");
  }
  const auto run = flow.run;
  if (run == nullptr || run->number != frame.run) {
    if (frame.run == flow.completed) work.answer = FrameKind::have;
    return;
  }
  work.answer = FrameKind::have;
  if (run->ledger.isDone(frame.chunk)) return;
  if (!run->ledger.take(frame.chunk)) {
    // The sender has given up the lane that was to bring it.
    const auto lanes = lane->peer->incoming;
    for (const auto& other : lanes)
      if (other != lane && other->work.isActive && other->work.run == run && other->work.chunk == frame.chunk)
        breakLane(other, "the peer sent its chunk on another connection");
    if (!run->ledger.take(frame.chunk)) return;
  }
  work.run = run;
  work.cursor.seek(flow.stream, frame.chunk * chunkBytes);
}

/** False where there is nothing more to read. */
bool Endpoint::drainChunk(const LanePointer& lane, Lock& lock) {
  ChunkWork& work = lane->work;
  if (work.run != nullptr && work.run->hasEnded) {
    work.run.reset();
    work.answer = FrameKind::withdrawn;
  }
  const auto run = work.run;
  if (run != nullptr) touch(*run);
  const uint64_t left = work.left;
  lock.unlock();
  ssize_t got = -1;
  int error = ENOMEM;
  if (run == nullptr) {
    thread_local std::array<uint8_t, 64 * 1024> nowhere;
    got = ::recv(lane->socket.get(), nowhere.data(), std::min<uint64_t>(left, nowhere.size()), MSG_DONTWAIT);
    error = errno;
  } else {
    caught("readv", [&]() -> Status {
      if (work.batch.isEmpty()) {
        work.batch.clear();
        work.unbatched -= work.batch.scatter(work.cursor, work.unbatched);
      }
      got = ::readv(lane->socket.get(), work.batch.pieces(), work.batch.count());
      error = errno;
      if (got > 0) work.batch.moved(static_cast<uint64_t>(got));
      if (got > 0 && work.batch.isEmpty()) work.batch.land();
      return {};
    });
  }
  lock.lock();
  if (run != nullptr) release(run);
  if (lane->state == LaneState::closed) {
    work.run.reset();
    return false;
  }
  if (got <= 0) {
    if (got < 0 && (error == EAGAIN || error == EINTR)) return false;
    breakLane(lane, got == 0 ? "the peer closed the connection" : std::string("recv: ") + std::strerror(error));
    return false;
  }
  work.left -= static_cast<uint64_t>(got);
  lane->lastMoved = Clock::now();
  lane->peer->hasConfirmed(lane->lastMoved);
  if (run != nullptr) run->transfer->movedBytes.add(static_cast<uint64_t>(got));
  if (work.left == 0) endChunk(lane, lock);
  return true;
}

void Endpoint::endChunk(const LanePointer& lane, Lock& lock) {
  ChunkWork& work = lane->work;
  work.isActive = false;
  const auto run = std::exchange(work.run, nullptr);
  if (run != nullptr && run->hasEnded) work.answer = FrameKind::withdrawn;
  const Frame answer{work.answer, work.frame.program, work.frame.run, work.frame.chunk, 0};
  lane->output.append(reinterpret_cast<const char*>(&answer), sizeof answer);
  if (run != nullptr && !run->hasEnded) {
    run->ledger.finish(work.chunk);
    if (run->ledger.isComplete()) {
      run->flow->completed = run->number;
      endRun(run, {});
    }
  }
  if (!lane->isAttended) pump(lane, lock);
}

void Endpoint::announce(const Flow& flow, const LanePointer& lane, Lock& lock) {
  const Frame frame{FrameKind::ready, flow.program, flow.run->number, flow.completed, 0};
  lane->output.append(reinterpret_cast<const char*>(&frame), sizeof frame);
  pump(lane, lock);
}

/** Says again what this rank waits for: what was said before may be lost. */
void Endpoint::announceAll(const std::shared_ptr<Peer>& peer, const LanePointer& lane, Lock& lock) {
  for (const auto& [program, flow] : Flows(peer->receives))
    if (flow->run != nullptr) announce(*flow, lane, lock);
}

}  // namespace tensorferry::tcp
