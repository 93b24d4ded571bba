// SPDX-License-Identifier: Apache-2.0
/*
 * The sending end: which lane takes which chunk, and what receivers answer. Functions are called with the mutex held and
 * let go of it while the system copies.
 *
 * Invariants: one thread at a time writes to a lane. A lane takes its next chunk only when the one before has left, so a
 * faster lane takes more of them. Frames go between chunks, never into one.
 */
#include <sys/socket.h>

#include "endpoint.h"

namespace tensorferry::tcp {
namespace {

/** Writes after which a lane lets others of its thread have a turn. */
constexpr int mostWrites = 8;
/** Chunks of a lane that may be on their way. */
constexpr size_t mostUnconfirmed = 32;

/** False where there are more lanes than pay. Every way to the peer keeps its share of those that do. */
bool isWanted(const Peer& peer, const Lane& lane) noexcept {
  if (peer.outgoing.size() <= peer.wanted) return true;
  size_t ways = 0, before = 0;
  bool isBefore = true;
  for (size_t i = 0; i < peer.outgoing.size(); i++) {
    const Lane& each = *peer.outgoing[i];
    if (&each == &lane) isBefore = false;
    if (isBefore && each.path == lane.path) before++;
    const auto isSame = [&](const auto& other) { return other->path == each.path; };
    const auto here = peer.outgoing.begin() + static_cast<ptrdiff_t>(i);
    if (std::none_of(peer.outgoing.begin(), here, isSame)) ways++;
  }
  return before < (peer.wanted + ways - 1) / ways;
}

}  // namespace

void Endpoint::pump(const LanePointer& lane, Lock& lock) {
  if (lane->isPumping) {
    lane->mustPumpAgain = true;
    return;
  }
  lane->isPumping = true;
  do {
    lane->mustPumpAgain = false;
    int writes = 0;
    while (lane->state != LaneState::closed && lane->state != LaneState::connecting) {
      const bool isWithinChunk = lane->isOutgoing && lane->work.isActive;
      if (!isWithinChunk && !lane->output.empty()) {
        if (!pumpOutput(lane, lock)) break;
      } else if (lane->isOutgoing && lane->state == LaneState::open) {
        if (writes++ == mostWrites) {
          wake(lane);
          break;
        }
        if (!pumpChunk(lane, lock)) break;
      } else {
        awaitRoom(*lane, false);
        break;
      }
    }
  } while (lane->mustPumpAgain);
  lane->isPumping = false;
  if (lane->state == LaneState::closed && lane->isOutgoing) lane->work = {};
}

/** False where nothing more can be written. */
bool Endpoint::pumpOutput(const LanePointer& lane, Lock& lock) {
  std::string bytes = std::exchange(lane->output, {});
  lock.unlock();
  const ssize_t written = ::send(lane->socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  const int error = errno;
  lock.lock();
  if (lane->state == LaneState::closed) return false;
  if (written < 0 && error != EAGAIN && error != EINTR) {
    breakLane(lane, std::string("send: ") + std::strerror(error));
    return false;
  }
  const auto count = static_cast<size_t>(std::max<ssize_t>(0, written));
  if (count == bytes.size()) return true;
  lane->output.insert(0, bytes, count);
  awaitRoom(*lane, true);
  return false;
}

/** False where there is nothing to send, or nothing more can be written. */
bool Endpoint::pumpChunk(const LanePointer& lane, Lock& lock) {
  ChunkWork& work = lane->work;
  if (!work.isActive && !takeChunk(*lane)) {
    awaitRoom(*lane, false);
    return false;
  }
  const auto run = work.run;
  touch(*run);
  lock.unlock();
  ssize_t written = -1;
  int error = ENOMEM;
  caught("sendmsg", [&]() -> Status {
    if (work.batch.isEmpty()) {
      work.batch.clear();
      if (work.unbatched == work.frame.length) work.batch.head(&work.frame, sizeof work.frame);
      work.unbatched -= work.batch.gather(work.cursor, work.unbatched);
    }
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(work.batch.pieces());
    message.msg_iovlen = static_cast<size_t>(work.batch.count());
    written = ::sendmsg(lane->socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    error = errno;
    if (written > 0) work.batch.moved(static_cast<uint64_t>(written));
    return {};
  });
  lock.lock();
  release(run);
  if (lane->state == LaneState::closed) return false;
  if (written < 0) {
    if (error == EAGAIN || error == EINTR) awaitRoom(*lane, true);
    else breakLane(lane, std::string("send: ") + std::strerror(error));
    return false;
  }
  const auto count = static_cast<uint64_t>(written);
  const uint64_t ofFrame = work.left > work.frame.length ? std::min(count, work.left - work.frame.length) : 0;
  work.left -= count;
  run->transfer->movedBytes.add(count - ofFrame);
  const auto& peer = lane->peer;
  lane->lastMoved = Clock::now();
  peer->bytesSent += count;
  if (work.left == 0) {
    work.isActive = false;
    work.run.reset();
  }
  return true;
}

bool Endpoint::takeChunk(Lane& lane) {
  Peer& peer = *lane.peer;
  if (peer.pushing.empty() || lane.unconfirmed.size() >= mostUnconfirmed) return false;
  if (!isWanted(peer, lane)) return false;
  for (const auto& run : peer.pushing) {
    const auto chunk = run->ledger.takeNext();
    if (!chunk) continue;
    const Flow& flow = *run->flow;
    ChunkWork& work = lane.work;
    work.run = run;
    work.chunk = *chunk;
    work.frame = {FrameKind::chunk, flow.program, run->number, *chunk, flow.lengthOf(*chunk)};
    work.unbatched = work.frame.length;
    work.left = work.frame.length + sizeof work.frame;
    work.cursor.seek(flow.stream, *chunk * chunkBytes);
    work.batch.clear();
    work.isActive = true;
    lane.unconfirmed.push_back({run, *chunk});
    return true;
  }
  return false;
}

void Endpoint::push(const std::shared_ptr<Run>& run, uint64_t number) {
  Flow& flow = *run->flow;
  Peer& peer = *flow.peer;
  run->number = number;
  flow.used = number;
  peer.pushing.push_back(run);
  peer.lastProgress = Clock::now();
}

/** Chunks that are under way go on to where they are not wanted, but count for nothing. */
void Endpoint::stopPushing(Run& run) {
  Peer& peer = *run.flow->peer;
  std::erase_if(peer.pushing, [&](const auto& each) { return each.get() == &run; });
  for (const auto& lane : peer.outgoing)
    std::erase_if(lane->unconfirmed, [&](const auto& sent) { return sent.run.get() == &run; });
  run.number = 0;
}

void Endpoint::wakeSenders(Peer& peer) {
  size_t open = 0;
  for (const auto& run : peer.pushing) open += run->ledger.open();
  for (const auto& lane : peer.outgoing) {
    if (open == 0) return;
    if (lane->work.isActive || lane->unconfirmed.size() >= mostUnconfirmed || !isWanted(peer, *lane)) continue;
    wake(lane);
    open--;
  }
}

void Endpoint::confirmed(const LanePointer& lane, Flow& flow, const Frame& frame, Lock& lock) {
  const auto run = flow.run;
  auto& sent = lane->unconfirmed;
  const auto found = std::find_if(sent.begin(), sent.end(),
                                  [&](const auto& each) { return each.run == run && each.chunk == frame.chunk; });
  if (run == nullptr || run->number != frame.run || found == sent.end()) return;
  sent.erase(found);
  flow.peer->hasConfirmed(Clock::now());
  run->ledger.finish(frame.chunk);
  if (run->ledger.isComplete()) endRun(run, {});
  pump(lane, lock);
}

void Endpoint::answered(const LanePointer& lane, const Frame& frame, Lock& lock) {
  const auto peer = lane->peer;
  const bool isAnswer =
      frame.kind == FrameKind::ready || frame.kind == FrameKind::have || frame.kind == FrameKind::withdrawn;
  if (!isAnswer || frame.length != 0) return brokeProtocol(lane, "with an answer of no known kind");
  const auto found = peer->sends.find(frame.program);
  // The program may have been closed while the answer was on its way.
  if (found == peer->sends.end()) return;
  const auto flow = found->second;
  if (frame.kind == FrameKind::have) return confirmed(lane, *flow, frame, lock);
  const auto run = flow->run;
  if (frame.kind == FrameKind::withdrawn) {
    if (frame.run == flow->ready) flow->used = std::max(flow->used, frame.run);
    if (run == nullptr || run->number != frame.run) return;
    stopPushing(*run);
    run->ledger = wire::ChunkLedger(flow->chunks());
    return;
  }
  if (frame.run <= flow->ready) return;
  flow->ready = frame.run;
  if (run == nullptr) return;
  // Its last confirmation may come later, on another lane, or be lost.
  if (run->number != 0 && run->number == frame.chunk) {
    for (size_t chunk = 0; chunk < run->ledger.size(); chunk++) run->ledger.finish(chunk);
    return endRun(run, {});
  }
  if (run->number != 0) {
    // The receiver began again.
    stopPushing(*run);
    run->ledger = wire::ChunkLedger(flow->chunks());
  }
  push(run, frame.run);
  // This lane is awake, and often the only one that is needed.
  if (flow->chunks() == 1) pump(lane, lock);
  if (run->hasEnded || run->ledger.open() == 0) return;
  dialIfNeeded(peer);
  wakeSenders(*peer);
}

}  // namespace tensorferry::tcp
