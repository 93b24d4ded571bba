// SPDX-License-Identifier: Apache-2.0
/*
 * From a socket to an open lane, and its end: dialing, the handshake, what is done when a connection breaks or cannot be
 * made. Functions are called with the mutex held.
 *
 * Invariants: a chunk that a broken lane had, confirmed by nobody, is given back and so sent again on another lane. A peer
 * that refuses connections on all ways is gone at once; one that does not answer is gone at the deadline.
 */
#include <sys/random.h>

#include "endpoint.h"

namespace tensorferry::tcp {

void tune(int socket, std::chrono::milliseconds deadline) noexcept;

namespace {

/** Lanes to begin with: on a short cable, more bring nothing and cost caches. */
constexpr size_t firstLanes = 2;
/** Ways that are tried at once. */
constexpr size_t mostAttempts = 16;
/** How long a way is left alone that could not be used while others can. */
constexpr std::chrono::seconds healingTime{5};
/** Rounds of refusals after which a peer is gone: one could meet a listener that is about to open again. */
constexpr int mostRefusals = 3;
constexpr size_t mostIncoming = 128;

void remove(std::vector<LanePointer>& lanes, const LanePointer& lane) { std::erase(lanes, lane); }

}  // namespace

bool isNeeded(const Peer& peer) noexcept { return peer.running > 0 || !peer.connecting.empty(); }

Status peerFailure(const Peer& peer, Code code, const std::string& what, int32_t nativeCode) {
  Status status = failure(code, "connect", "Rank " + std::to_string(peer.rank), nativeCode);
  status.detail += " " + what + ".";
  status.item = peer.rank;
  return status;
}

std::string faultsOf(const Peer& peer) {
  std::string text;
  for (const auto& path : peer.paths) {
    if (path.fault.empty()) continue;
    if (!text.empty()) text += "; ";
    text += path.to.text() + ": " + path.fault;
  }
  return text.empty() ? "no address of it was tried" : text;
}

void Endpoint::dial(const std::shared_ptr<Peer>& peer, size_t number) {
  Path& path = peer->paths[number];
  auto lane = std::make_shared<Lane>();
  lane->isOutgoing = true;
  lane->peer = peer;
  lane->path = number;
  lane->state = LaneState::connecting;
  path.isTried = true;
  path.isRefused = false;
  path.tried = Clock::now();
  const auto fault = [&](const char* call) { path.fault = std::string(call) + ": " + std::strerror(errno); };
  lane->socket = Descriptor(::socket(path.to.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int socket = lane->socket.get();
  if (!lane->socket.isOpen()) return fault("socket");
  tune(socket, settings_.deadline);
  if (path.from && ::bind(socket, path.from->raw(), path.from->length()) != 0) return fault("bind");
  if (::connect(socket, path.to.raw(), path.to.length()) != 0 && errno != EINPROGRESS) {
    path.isRefused = errno == ECONNREFUSED;
    return fault("connect");
  }
  if (const Status status = addLane(lane, true); !status.ok()) {
    path.fault = status.detail;
    return;
  }
  peer->dialing.push_back(lane);
}

void Endpoint::dialIfNeeded(const std::shared_ptr<Peer>& peer) {
  if (isClosing_ || peer->isClosed || peer->paths.empty() || !isNeeded(*peer)) return;
  const Time now = Clock::now();
  if (now < peer->nextDial) return;
  if (peer->outgoing.empty()) {
    if (!peer->dialing.empty()) return;
    for (size_t i = 0; i < std::min(mostAttempts, peer->paths.size()); i++) dial(peer, i);
    if (peer->dialing.empty()) dialFailed(peer);
    return;
  }
  size_t open = 0;
  for (const auto& run : peer->pushing) open += run->ledger.open();
  const size_t most = std::min(peer->wanted, peer->outgoing.size() + open);
  for (size_t tries = peer->paths.size(); tries > 0 && peer->outgoing.size() + peer->dialing.size() < most;) {
    const size_t next = peer->nextPath++ % peer->paths.size();
    if (!peer->paths[next].fault.empty()) {
      tries--;
      continue;
    }
    dial(peer, next);
  }
  // A way that could not be used may have healed.
  for (size_t i = 0; i < peer->paths.size() && peer->outgoing.size() < settings_.lanes; i++) {
    const Path& path = peer->paths[i];
    if (!path.fault.empty() && now - path.tried > healingTime) dial(peer, i);
  }
}

void Endpoint::dialFailed(const std::shared_ptr<Peer>& peer) {
  if (!peer->dialing.empty()) return;
  peer->backoff = std::clamp(peer->backoff * 2, std::chrono::milliseconds(10), std::chrono::milliseconds(500));
  peer->nextDial = Clock::now() + peer->backoff;
  if (!peer->outgoing.empty()) return;
  const bool isRefused = std::all_of(peer->paths.begin(), peer->paths.end(),
                                     [](const auto& path) { return path.isTried && path.isRefused; });
  peer->refusedRounds = isRefused ? peer->refusedRounds + 1 : 0;
  if (peer->refusedRounds < mostRefusals) return;
  failPeer(peer,
           peerFailure(*peer, Code::PeerGone, "has ended or closed its driver: " + faultsOf(*peer), ECONNREFUSED));
}

void Endpoint::connected(const LanePointer& lane) {
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(lane->socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) {
    return breakLane(lane, std::string("connect: ") + std::strerror(error),
                     error == ECONNREFUSED ? Code::PeerGone : Code::SystemFailure);
  }
  lane->label = Address::of(lane->socket.get(), false).host() + " to " + lane->peer->paths[lane->path].to.host();
  lane->state = LaneState::awaitsChallenge;
  lane->need = sizeof(wire::Challenge);
  awaitRoom(*lane, false);
}

void Endpoint::handshake(const LanePointer& lane, Lock& lock) {
  if (lane->state == LaneState::awaitsHello) return greeted(lane, lock);
  if (lane->state == LaneState::awaitsJudgement) return judged(lane, lock);
  std::memcpy(&lane->challenge, lane->input.data(), sizeof lane->challenge);
  if (lane->challenge.magic != wire::protocolMagic)
    return breakLane(lane, "what listens there speaks another protocol", Code::Unsupported);
  wire::Bytes32 nonce;
  if (::getrandom(nonce.data(), nonce.size(), 0) != 32) return breakLane(lane, "there are no random numbers");
  lane->hello = wire::makeHello(lane->peer->key, lane->challenge, settings_.rank, settings_.id, lane->peer->id, nonce);
  lane->output.append(reinterpret_cast<const char*>(&lane->hello), sizeof lane->hello);
  lane->state = LaneState::awaitsJudgement;
  lane->need = sizeof(wire::Judgement);
  pump(lane, lock);
}

void Endpoint::greeted(const LanePointer& lane, Lock& lock) {
  wire::Hello hello;
  std::memcpy(&hello, lane->input.data(), sizeof hello);
  wire::Judgement judgement = wire::judgeHello(settings_.key, lane->challenge, hello, settings_.id);
  std::shared_ptr<Peer> peer;
  if (judgement.verdict == wire::Verdict::admitted) {
    auto& known = peers_[hello.dialer];
    if (known == nullptr) {
      // It heard of this rank first.
      known = std::make_shared<Peer>();
      known->rank = hello.rank;
      known->id = hello.dialer;
    }
    peer = known;
    if (peer->rank != hello.rank || peer->isClosed) judgement = {wire::Verdict::otherEndpoint, {}, {}};
    else if (peer->incoming.size() >= mostIncoming) judgement = {wire::Verdict::tooMany, {}, {}};
  }
  lane->output.append(reinterpret_cast<const char*>(&judgement), sizeof judgement);
  pump(lane, lock);
  if (lane->state == LaneState::closed) return;
  if (judgement.verdict != wire::Verdict::admitted) return breakLane(lane, "not admitted");
  std::erase(strangers_, lane);
  lane->peer = peer;
  lane->label = Address::of(lane->socket.get(), false).host() + " to " + Address::of(lane->socket.get(), true).host();
  opened(lane, lock);
}

void Endpoint::judged(const LanePointer& lane, Lock& lock) {
  wire::Judgement judgement;
  std::memcpy(&judgement, lane->input.data(), sizeof judgement);
  const auto peer = lane->peer;
  const std::string rank = "rank " + std::to_string(peer->rank);
  switch (judgement.verdict) {
    case wire::Verdict::admitted:
      if (wire::provesKey(peer->key, lane->challenge, lane->hello, judgement)) return opened(lane, lock);
      return breakLane(lane, "what listens there is not " + rank + ": it does not know the token",
                       Code::PermissionDenied);
    case wire::Verdict::wrongProof:
      breakLane(lane, rank + " has another token", Code::PermissionDenied);
      return failPeer(peer, peerFailure(*peer, Code::PermissionDenied, "has another token: " + faultsOf(*peer)));
    case wire::Verdict::otherEndpoint:
      return breakLane(lane, "what listens there is not " + rank, Code::PeerGone);
    case wire::Verdict::tooMany:
      return breakLane(lane, rank + " has no room for more connections");
    default:
      return breakLane(lane, "what listens there speaks another protocol", Code::Unsupported);
  }
}

void Endpoint::opened(const LanePointer& lane, Lock& lock) {
  const auto peer = lane->peer;
  if (peer->isClosed) return breakLane(lane, "the peer was closed");
  const Time now = Clock::now();
  lane->state = LaneState::open;
  lane->need = sizeof(Frame);
  lane->since = lane->lastMoved = now;
  // Once: a peer that only ever greets does not get on.
  if (!peer->hasReopened) peer->lastProgress = now;
  peer->hasReopened = true;
  if (!lane->isOutgoing) {
    peer->incoming.push_back(lane);
    return announceAll(peer, lane, lock);
  }
  remove(peer->dialing, lane);
  peer->outgoing.push_back(lane);
  peer->paths[lane->path].fault.clear();
  peer->refusedRounds = 0;
  peer->backoff = {};
  peer->nextDial = now;
  for (const auto& job : std::exchange(peer->connecting, {})) {
    job->done();
  }
  dialIfNeeded(peer);
  pump(lane, lock);
}

void Endpoint::breakLane(const LanePointer& lane, const std::string& why, Code code) {
  if (lane->state == LaneState::closed) return;
  const bool wasOpen = lane->state == LaneState::open;
  lane->state = LaneState::closed;
  threads_[lane->thread]->poller.remove(lane->socket.get());
  ::shutdown(lane->socket.get(), SHUT_RDWR);
  lanes_.erase(lane->number);
  std::erase(strangers_, lane);
  const auto peer = std::exchange(lane->peer, nullptr);
  if (peer == nullptr) return;
  if (!wasOpen && lane->isOutgoing) {
    remove(peer->dialing, lane);
    peer->paths[lane->path].fault = why;
    peer->paths[lane->path].isRefused = code == Code::PeerGone;
    return dialFailed(peer);
  }
  for (const auto& [run, chunk] : std::exchange(lane->unconfirmed, {}))
    if (!run->hasEnded) run->ledger.giveBack(chunk);
  if (!lane->isOutgoing && lane->work.isActive && lane->work.run != nullptr && !lane->work.run->hasEnded)
    lane->work.run->ledger.giveBack(lane->work.chunk);
  remove(lane->isOutgoing ? peer->outgoing : peer->incoming, lane);
  // The next tick says again what a lost lane may have lost.
  peer->nextAnnouncement = {};
  peer->nextDial = {};
  wakeSenders(*peer);
  dialIfNeeded(peer);
}

void Endpoint::failPeer(const std::shared_ptr<Peer>& peer, const Status& status) {
  peer->refusedRounds = 0;
  for (const auto& job : std::exchange(peer->connecting, {})) {
    job->fail(status);
    job->done();
  }
  const auto flows = [&](const Flows& some) {
    for (const auto& [program, flow] : Flows(some))
      if (flow->run != nullptr) fail(*flow->run->transfer, status);
  };
  flows(peer->sends);
  flows(peer->receives);
}

std::shared_ptr<Peer> Endpoint::addPeer(uint32_t rank, const wire::EndpointId& id, const wire::Bytes32& key,
                                        std::vector<Path> paths) {
  Lock lock(mutex_);
  auto& peer = peers_[id];
  if (peer == nullptr) peer = std::make_shared<Peer>();
  peer->rank = rank;
  peer->id = id;
  peer->key = key;
  if (peer->paths.empty()) peer->paths = std::move(paths);
  peer->wanted = std::min<size_t>(settings_.lanes, std::max(firstLanes, peer->paths.size()));
  return peer;
}

void Endpoint::closePeer(const std::shared_ptr<Peer>& peer) {
  Lock lock(mutex_);
  peer->isClosed = true;
  failPeer(peer, peerFailure(*peer, Code::PeerGone, "has a new driver"));
  for (const auto* lanes : {&peer->outgoing, &peer->incoming, &peer->dialing})
    for (const auto& lane : std::vector(*lanes)) breakLane(lane, "the peer was closed");
  peers_.erase(peer->id);
}

void Endpoint::connect(const std::shared_ptr<ConnectJob>& job) {
  Lock lock(mutex_);
  const auto& peer = job->peer;
  if (!isOpen_ || peer->isClosed || !peer->outgoing.empty()) {
    if (!isOpen_ || peer->isClosed) job->fail(failure(Code::InvalidHandle, "connect", "The endpoint was closed."));
    return job->done();
  }
  if (!isNeeded(*peer)) peer->lastProgress = Clock::now();
  peer->connecting.push_back(job);
  peer->nextDial = {};
  dialIfNeeded(peer);
  wakeClock();
}

void Endpoint::cancel(const std::shared_ptr<ConnectJob>& job) noexcept {
  Lock lock(mutex_);
  if (std::erase(job->peer->connecting, job) == 0) return;
  job->fail(failure(Code::Cancelled, "connect", "The connection was cancelled."));
  job->done();
}

std::vector<std::string> Endpoint::describe(const std::shared_ptr<Peer>& peer) {
  Lock lock(mutex_);
  std::vector<std::string> labels;
  for (const auto* lanes : {&peer->outgoing, &peer->incoming})
    for (const auto& lane : *lanes) labels.push_back(lane->label);
  return labels;
}

}  // namespace tensorferry::tcp
