// SPDX-License-Identifier: Apache-2.0
/*
 * The receiving end, and what both ends say to each other.
 *
 * Invariants: a message without the ticket of its sender is dropped unread. What a peer says is checked before anything uses
 * it: a chunk goes only where this end expects it, and its length is this end's. A chunk that nobody waits for is refused.
 */
#include <tensorferry/memory/stream.h>
#include <tensorferry/wire/sha256.h>

#include "endpoint.h"

namespace tensorferry::ucx {
namespace {

bool equalTickets(const Ticket& a, const Ticket& b) noexcept {
  uint8_t difference = 0;
  for (size_t i = 0; i < a.size(); i++) difference |= a[i] ^ b[i];
  return difference == 0;
}

/** A flow of more bytes leaves nothing useful in the caches, and is stored past them. */
constexpr uint64_t streamingBytes = uint64_t{16} << 20;

/** Bytes of a key that one layout may have for each region, and words beside them. */
constexpr size_t mostLayoutBytes = size_t{1} << 20;

void append(std::string& text, uint64_t word) { text.append(reinterpret_cast<const char*>(&word), sizeof word); }

std::shared_ptr<Flow> flowOf(const std::vector<std::shared_ptr<Flow>>& flows, const Frame& frame) {
  for (const auto& flow : flows)
    if (flow->program == frame.program) return flow->digest == frame.digest ? flow : nullptr;
  return nullptr;
}

}  // namespace

std::shared_ptr<Peer> Endpoint::senderOf(const Frame& frame) const {
  const auto found = peers_.find(frame.rank);
  if (found == peers_.end() || !equalTickets(found->second->theirs, frame.ticket)) return nullptr;
  return found->second;
}

/** Called by UCX while it progresses. */
abi::Status Endpoint::arrived(void* argument, const void* header, size_t headerLength, void* data, size_t length,
                              const abi::MessageParam* param) {
  auto& self = *static_cast<Endpoint*>(argument);
  if (headerLength != sizeof(Frame)) return abi::ok;
  Frame frame;
  std::memcpy(&frame, header, sizeof frame);
  const auto peer = self.senderOf(frame);
  if (peer == nullptr) return abi::ok;
  peer->lastHeard = Clock::now();
  if ((param->attributes & abi::messageRendezvous) != 0) {
    self.offers_.push_back({frame, data, length});
    return abi::inProgress;
  }
  if (frame.kind != FrameKind::chunk) {
    self.arrivals_.push_back({frame, {static_cast<const char*>(data), length}, nullptr, 0});
    return abi::ok;
  }
  if (const auto run = self.takeChunk(peer, frame, length); run != nullptr) {
    self.place(run, frame, data);
    self.arrivals_.push_back({frame, {}, run, length});
  }
  return abi::ok;
}

/** The run that waits for the chunk, which is then touched; null where none does. */
std::shared_ptr<Run> Endpoint::takeChunk(const std::shared_ptr<Peer>& peer, const Frame& frame, size_t length) {
  const auto flow = flowOf(peer->receives, frame);
  if (flow == nullptr || flow->run == nullptr || flow->run->number != frame.run) return nullptr;
  if (frame.chunk >= flow->chunks() || length != flow->lengthOf(frame.chunk)) return nullptr;
  if (!flow->run->ledger.take(frame.chunk)) return nullptr;
  touch(*flow->run);
  return flow->run;
}

void Endpoint::place(const std::shared_ptr<Run>& run, const Frame& frame, const void* data) {
  const Flow& flow = *run->flow;
  wire::RunCursor cursor;
  cursor.seek(flow.stream, frame.chunk * chunkBytes);
  const bool isPast = flow.stream.byteLength() > streamingBytes;
  const auto* from = static_cast<const uint8_t*>(data);
  for (uint64_t left = flow.lengthOf(frame.chunk); left > 0;) {
    const uint64_t taken = std::min(cursor.left(), left);
    if (isPast) streamBytes(cursor.data(), from, taken);
    else std::memcpy(cursor.data(), from, taken);
    cursor.skip(taken);
    from += taken;
    left -= taken;
  }
  if (isPast) finishStreaming();
}

/** Has the bytes of a message brought. False where it must wait for room. */
bool Endpoint::accept(const Offer& offer) {
  const Frame& frame = offer.frame;
  const auto peer = senderOf(frame);
  const auto refuse = [&] {
    api_.releaseMessage(worker_, offer.descriptor);
    return true;
  };
  if (peer == nullptr || peer->link != Link::open) return refuse();
  auto operation = std::make_unique<Operation>();
  operation->kind = Operation::Kind::receive;
  operation->peer = peer;
  operation->frame = frame;
  operation->length = offer.length;
  operation->number = frame.run;
  operation->chunk = frame.chunk;
  void* to = nullptr;
  const Region* region = nullptr;
  if (frame.kind == FrameKind::chunk) {
    uint8_t* const slot = arena_.coming.take();
    if (slot == nullptr) return false;
    const auto run = takeChunk(peer, frame, offer.length);
    if (run == nullptr) {
      arena_.coming.give(slot);
      return refuse();
    }
    wire::RunCursor cursor;
    cursor.seek(run->flow->stream, frame.chunk * chunkBytes);
    if (cursor.left() >= offer.length) region = run->flow->regionOf(cursor.data(), offer.length);
    if (region != nullptr) arena_.coming.give(slot);
    else operation->slot = slot;
    to = region != nullptr ? cursor.data() : slot;
    operation->run = run;
  } else {
    const auto flow = flowOf(peer->sends, frame);
    const bool isLayout = frame.kind == FrameKind::layout && flow != nullptr && flow->isLayoutWanted;
    if (!isLayout || offer.length > mostLayoutBytes + flow->chunks() * 2 * sizeof(uint64_t)) return refuse();
    operation->body.resize(offer.length);
    to = operation->body.data();
  }
  const auto run = operation->run;
  issue(std::move(operation), [&](abi::RequestParam& param) {
    if (run != nullptr) {
      param.mask |= abi::requestMemory;
      param.memory = region == nullptr ? arenaMemory_ : region->memory;
    }
    return api_.receiveMessage(worker_, offer.descriptor, to, offer.length, &param);
  });
  // It was touched by taking the chunk, too.
  if (run != nullptr) release(run);
  return true;
}

void Endpoint::received(void* request, abi::Status status, size_t, void* userData) { ended(request, status, userData); }

void Endpoint::gotChunk(const std::shared_ptr<Run>& run, uint64_t number, size_t chunk, uint64_t length) {
  if (!run->hasEnded && run->number == number) {
    run->ledger.finish(chunk);
    run->transfer->movedBytes.add(length);
    completeIfWhole(run);
  }
  release(run);
}

void Endpoint::completeIfWhole(const std::shared_ptr<Run>& run) {
  if (run->hasEnded || !run->ledger.isComplete()) return;
  Flow& flow = *run->flow;
  flow.completed = run->number;
  say(flow.peer, FrameKind::have, &flow, run->number);
  conceal(run);
  endRun(run, {});
}

void Endpoint::announce(const std::shared_ptr<Run>& run) {
  Flow& flow = *run->flow;
  run->number = ++flow.begun;
  run->ledger = wire::ChunkLedger(flow.chunks());
  if (flow.isLaidOut && !run->isExposed) {
    run->isExposed = true;
    flow.peer->exposed.push_back(run);
    touch(*run);
  }
  say(flow.peer, FrameKind::ready, &flow, run->number, flow.completed);
}

/** The sender has given the run up: it is offered again once nothing of the old one can come. */
void Endpoint::begunAgain(const std::shared_ptr<Run>& run) {
  conceal(run);
  // Bytes that are on their way to this memory are waited for.
  if (run->touching > 0) {
    run->number = 0;
    return;
  }
  announce(run);
}

/** Where chunks may be written: those that are dense, in memory that UCX knows. */
std::string Endpoint::layoutOf(const Flow& flow) const {
  std::string keys, places;
  std::vector<const Region*> used;
  for (size_t chunk = 0; chunk < flow.chunks(); chunk++) {
    wire::RunCursor cursor;
    cursor.seek(flow.stream, chunk * chunkBytes);
    const uint64_t length = flow.lengthOf(chunk);
    // Where UCX would only emulate writes, it must not be made to: every chunk is to be sent.
    const bool isDense = flow.peer->isPutting && cursor.left() >= length;
    const Region* const region = isDense ? flow.regionOf(cursor.data(), length) : nullptr;
    auto at = std::find(used.begin(), used.end(), region);
    if (region != nullptr && at == used.end()) {
      void* key = nullptr;
      size_t bytes = 0;
      if (api_.packKey(context_, region->memory, &key, &bytes) == abi::ok) {
        append(keys, bytes);
        keys.append(static_cast<const char*>(key), bytes);
        api_.releaseKeyBuffer(key);
        at = used.insert(used.end(), region);
      }
    }
    const bool isPlace = region != nullptr && at != used.end();
    append(places, isPlace ? reinterpret_cast<uint64_t>(cursor.data()) : 0);
    append(places, isPlace ? static_cast<uint64_t>(at - used.begin()) : 0);
  }
  std::string body;
  append(body, used.size());
  return body + keys + places;
}

/** The peer writes to memory of the run no more. */
void Endpoint::conceal(const std::shared_ptr<Run>& run) {
  if (!run->isExposed) return;
  run->isExposed = false;
  std::erase(run->flow->peer->exposed, run);
  release(run);
}

void Endpoint::handle(const Frame& frame, const std::string& body) {
  const auto peer = senderOf(frame);
  if (peer == nullptr || peer->isClosed) return;
  switch (frame.kind) {
    case FrameKind::hello:
      return say(peer, FrameKind::welcome);
    case FrameKind::welcome:
      return welcomed(peer);
    case FrameKind::ready:
    case FrameKind::have:
    case FrameKind::withdrawn:
    case FrameKind::layout:
      return answered(peer, frame, body);
    case FrameKind::layoutWanted:
    case FrameKind::done:
    case FrameKind::stopped:
      return asked(peer, frame);
    default:
      return;
  }
}

/** What a receiver says of what this rank sends. */
void Endpoint::answered(const std::shared_ptr<Peer>& peer, const Frame& frame, const std::string& body) {
  // The program may have been closed while the answer was on its way.
  const auto flow = flowOf(peer->sends, frame);
  if (flow == nullptr) {
    if (frame.kind != FrameKind::withdrawn) return;
    Flow closed;
    closed.program = frame.program;
    closed.digest = frame.digest;
    return say(peer, FrameKind::stopped, &closed, frame.run);
  }
  if (frame.kind == FrameKind::layout) {
    if (const auto status = takeLayout(flow, body); !status.ok()) failPeer(peer, status);
    return;
  }
  const auto run = flow->run;
  const bool isOfRun = run != nullptr && run->number != 0;
  if (frame.kind == FrameKind::have) {
    if (isOfRun && run->number == frame.run) endRun(run, {});
    return;
  }
  if (frame.kind == FrameKind::withdrawn) {
    if (frame.run == flow->ready) flow->used = std::max(flow->used, frame.run);
    if (isOfRun && run->number == frame.run) stopPushing(run);
    else stopped(peer, *flow, frame.run);
    return;
  }
  if (frame.run <= flow->ready) return;
  flow->ready = frame.run;
  if (run == nullptr) return;
  // Its last confirmation may have been lost with a link.
  if (run->number != 0 && run->number == frame.chunk) return endRun(run, {});
  if (run->number != 0) stopPushing(run);
  push(run, frame.run);
}

/** What a sender says of what this rank receives. */
void Endpoint::asked(const std::shared_ptr<Peer>& peer, const Frame& frame) {
  if (frame.kind == FrameKind::stopped) {
    for (const auto& run : std::vector(peer->exposed))
      if (run->flow->program == frame.program && run->number == frame.run && run->hasEnded) conceal(run);
  }
  const auto flow = flowOf(peer->receives, frame);
  if (flow == nullptr) return;
  const auto run = flow->run;
  if (frame.kind == FrameKind::layoutWanted) {
    flow->isLaidOut = true;
    if (run != nullptr && !run->isExposed) {
      run->isExposed = true;
      peer->exposed.push_back(run);
      touch(*run);
    }
    return say(peer, FrameKind::layout, flow.get(), 0, 0, layoutOf(*flow));
  }
  if (run == nullptr || run->number != frame.run) return;
  if (frame.kind == FrameKind::stopped) return begunAgain(run);
  uint64_t written = 0;
  for (size_t chunk = 0; chunk < flow->chunks(); chunk++) {
    wire::RunCursor cursor;
    cursor.seek(flow->stream, chunk * chunkBytes);
    const uint64_t length = flow->lengthOf(chunk);
    if (!peer->isPutting || cursor.left() < length || flow->regionOf(cursor.data(), length) == nullptr) continue;
    run->ledger.finish(chunk);
    written += length;
  }
  if (written != frame.chunk)
    return failPeer(peer, peerFailure(*peer, Code::SystemFailure, "says that it wrote other chunks than it was told"));
  run->transfer->movedBytes.add(written);
  conceal(run);
  completeIfWhole(run);
}

}  // namespace tensorferry::ucx
