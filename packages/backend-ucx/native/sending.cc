// SPDX-License-Identifier: Apache-2.0
/*
 * The sending end: chunks leave as messages, or are written where the receiver said. What is dense leaves from where it
 * lies; the rest is gathered in the arena.
 *
 * Invariant: a receiver hears that a run was written, or will not be, only after what was written before has arrived.
 */
#include "endpoint.h"

namespace tensorferry::ucx {
namespace {

/** Chunks to one peer that are leaving. More of them only wait in queues. */
constexpr size_t mostInFlight = 16;
/** Of these, chunks that were gathered: as many as a core's cache keeps until they have left. */
constexpr size_t mostGathered = 4;

void gather(wire::RunCursor& cursor, uint8_t* to, uint64_t length) {
  while (length > 0) {
    const uint64_t taken = std::min(cursor.left(), length);
    std::memcpy(to, cursor.data(), taken);
    cursor.skip(taken);
    to += taken;
    length -= taken;
  }
}

}  // namespace

void Endpoint::ended(void* request, abi::Status status, void* userData) {
  auto* const operation = static_cast<Operation*>(userData);
  Endpoint& self = *operation->endpoint;
  self.api_.freeRequest(request);
  self.ended_.push_back({operation, status});
}

void Endpoint::finish(Operation* finished, abi::Status status) {
  const auto held = operations_.find(finished);
  const std::unique_ptr<Operation> operation = std::move(held->second);
  operations_.erase(held);
  const auto peer = operation->peer;
  const auto run = operation->run;
  using Kind = Operation::Kind;
  if (operation->kind == Kind::close) return linkClosed(peer);
  if (operation->kind == Kind::farewell) return closeLink(peer);
  if (operation->kind == Kind::receive) {
    if (run == nullptr) {
      if (status == abi::ok) handle(operation->frame, operation->body);
      return;
    }
    if (status == abi::ok && operation->slot != nullptr) place(run, operation->frame, operation->slot);
    arena_.coming.give(operation->slot);
    if (status == abi::ok) return gotChunk(run, operation->number, operation->chunk, operation->length);
    run->ledger.giveBack(operation->chunk);
    return release(run);
  }
  const bool isChunk = operation->kind == Kind::chunk || operation->kind == Kind::put;
  if (isChunk) {
    arena_.leaving.give(operation->slot);
    peer->inFlight--;
    if (operation->slot != nullptr) peer->gathered--;
    if (status == abi::ok) {
      peer->lastHeard = Clock::now();
      run->transfer->movedBytes.add(operation->length);
    }
  }
  if (status == abi::ok && operation->kind == Kind::flush) {
    const Frame& frame = operation->frame;
    peer->output.push_back({frame, {}});
    flushOutput(peer);
  }
  if (run != nullptr) release(run);
  // Of a link that is closed on purpose nothing else is to be learned.
  if (status != abi::ok && peer->link == Link::open && operation->number == peer->generation) lost(peer, status);
  if (!isChunk) return;
  pump(peer);
  // Others may have waited for the slot.
  if (operation->slot != nullptr)
    for (const auto& other : std::vector(linked_)) pump(other);
}

void Endpoint::push(const std::shared_ptr<Run>& run, uint64_t number) {
  Flow& flow = *run->flow;
  run->number = number;
  run->next = 0;
  run->written = 0;
  flow.used = number;
  flow.peer->pushing.push_back(run);
  if (flow.peer->isPutting && flow.layout == nullptr && !flow.isLayoutWanted) {
    flow.isLayoutWanted = true;
    say(flow.peer, FrameKind::layoutWanted, &flow);
  }
  pump(flow.peer);
}

/** What is leaving goes on to where it is not wanted, but counts for nothing. */
void Endpoint::stopPushing(const std::shared_ptr<Run>& run) {
  const uint64_t number = std::exchange(run->number, 0);
  if (number == 0) return;
  const auto& peer = run->flow->peer;
  std::erase(peer->pushing, run);
  stopped(peer, *run->flow, number);
}

void Endpoint::stopped(const std::shared_ptr<Peer>& peer, const Flow& flow, uint64_t run) {
  if (peer->link != Link::open) return;
  if (flow.layout == nullptr) return say(peer, FrameKind::stopped, &flow, run);
  auto operation = std::make_unique<Operation>();
  operation->kind = Operation::Kind::flush;
  operation->peer = peer;
  operation->number = peer->generation;
  operation->frame = {FrameKind::stopped, flow.program, settings_.rank, 0, peer->ours, run, 0, flow.digest};
  issue(std::move(operation), [&](abi::RequestParam& param) { return api_.flushEp(peer->ep, &param); });
}

void Endpoint::pump(const std::shared_ptr<Peer>& peer) {
  while (peer->link == Link::open && peer->inFlight < mostInFlight) {
    const auto found = std::find_if(peer->pushing.begin(), peer->pushing.end(),
                                    [&](const auto& run) { return !peer->isPutting || run->flow->layout != nullptr; });
    if (found == peer->pushing.end()) return;
    const auto run = *found;
    if (!sendChunk(run)) return;
    if (run->next < run->flow->chunks()) continue;
    peer->pushing.erase(std::find(peer->pushing.begin(), peer->pushing.end(), run));
    endSending(run);
  }
}

/** False where there is no room to gather it. */
bool Endpoint::sendChunk(const std::shared_ptr<Run>& run) {
  const Flow& flow = *run->flow;
  const auto& peer = flow.peer;
  const size_t chunk = run->next;
  const uint64_t length = flow.lengthOf(chunk);
  wire::RunCursor cursor;
  cursor.seek(flow.stream, chunk * chunkBytes);
  const void* from = cursor.data();
  uint8_t* slot = nullptr;
  const Region* const region = cursor.left() < length ? nullptr : flow.regionOf(from, length);
  // A region that UCX refused to register is gathered too: UCX would register each chunk on its way.
  if (region == nullptr) {
    slot = peer->gathered < mostGathered ? arena_.leaving.take() : nullptr;
    if (slot == nullptr) return false;
    peer->gathered++;
    gather(cursor, slot, length);
    from = slot;
  }
  auto operation = std::make_unique<Operation>();
  const Layout::Place place = flow.layout == nullptr ? Layout::Place{0, 0} : flow.layout->places[chunk];
  operation->kind = place.address == 0 ? Operation::Kind::chunk : Operation::Kind::put;
  operation->peer = peer;
  operation->run = run;
  operation->number = peer->generation;
  operation->chunk = chunk;
  operation->length = length;
  operation->slot = slot;
  operation->frame = {FrameKind::chunk, flow.program, settings_.rank, 0, peer->ours, run->number, chunk, flow.digest};
  Operation& kept = *operation;
  run->next++;
  peer->inFlight++;
  if (place.address != 0) run->written += length;
  issue(std::move(operation), [&](abi::RequestParam& param) {
    param.mask |= abi::requestMemory;
    param.memory = region == nullptr ? arenaMemory_ : region->memory;
    return place.address == 0 ? api_.sendMessage(peer->ep, 0, &kept.frame, sizeof kept.frame, from, length, &param)
                              : api_.put(peer->ep, from, length, place.address, flow.layout->keys[place.key], &param);
  });
  return true;
}

void Endpoint::endSending(const std::shared_ptr<Run>& run) {
  if (run->written == 0) return;
  const Flow& flow = *run->flow;
  const auto& peer = flow.peer;
  auto operation = std::make_unique<Operation>();
  operation->kind = Operation::Kind::flush;
  operation->peer = peer;
  operation->run = run;
  operation->number = peer->generation;
  operation->frame = {FrameKind::done, flow.program, settings_.rank, 0,
                      peer->ours,      run->number,  run->written,   flow.digest};
  issue(std::move(operation), [&](abi::RequestParam& param) { return api_.flushEp(peer->ep, &param); });
}

void Endpoint::dropLayout(Flow& flow) {
  flow.isLayoutWanted = false;
  if (flow.layout == nullptr) return;
  for (abi::RemoteKey* const key : flow.layout->keys) api_.destroyKey(key);
  flow.layout.reset();
}

/** Layout, in words of 64 bits: keys; of each its bytes and those; then of each chunk its address and its key. */
Status Endpoint::takeLayout(const std::shared_ptr<Flow>& flow, const std::string& body) {
  const auto& peer = flow->peer;
  const auto wrong = [&] { return peerFailure(*peer, Code::SystemFailure, "broke the protocol with a layout"); };
  if (!flow->isLayoutWanted || flow->layout != nullptr || peer->link != Link::open) return {};
  size_t at = 0;
  const auto word = [&](uint64_t& value) {
    if (body.size() - at < sizeof value) return false;
    std::memcpy(&value, body.data() + at, sizeof value);
    at += sizeof value;
    return true;
  };
  auto layout = std::make_unique<Layout>();
  const auto refuse = [&](tensorferry::Status status) {
    for (abi::RemoteKey* const key : layout->keys) api_.destroyKey(key);
    return status;
  };
  uint64_t keys = 0;
  if (!word(keys)) return wrong();
  for (; keys > 0; keys--) {
    uint64_t length = 0;
    if (!word(length) || length == 0 || body.size() - at < length) return refuse(wrong());
    abi::RemoteKey* key = nullptr;
    const auto status = api_.unpackKey(peer->ep, body.data() + at, &key);
    if (status != abi::ok)
      return refuse(peerFailure(*peer, Code::SystemFailure, "gave a key that is of no use: " + textOf(status), status));
    layout->keys.push_back(key);
    at += length;
  }
  if ((body.size() - at) != flow->chunks() * 2 * sizeof(uint64_t)) return refuse(wrong());
  for (size_t chunk = 0; chunk < flow->chunks(); chunk++) {
    uint64_t address = 0, key = 0;
    if (!word(address) || !word(key) || (address != 0 && key >= layout->keys.size())) return refuse(wrong());
    layout->places.push_back({address, static_cast<uint32_t>(key)});
  }
  flow->layout = std::move(layout);
  pump(peer);
  return {};
}

}  // namespace tensorferry::ucx
