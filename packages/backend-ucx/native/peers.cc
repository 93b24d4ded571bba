// SPDX-License-Identifier: Apache-2.0
/*
 * Links to peers: how they are made, what is said over them, and their end.
 *
 * Invariants: a link is closed whole before its peer is reached again. A peer that says nothing for the deadline while it is
 * waited for is gone, whatever UCX has noticed: its own watch over links takes far longer.
 */
#include "endpoint.h"

namespace tensorferry::ucx {
namespace {

using std::chrono::milliseconds;

/** Transports whose remote writes are done by hardware. */
constexpr const char* writers[] = {"rc", "dc"};

}  // namespace

/** How long memory of a run that has ended may stay in the hands of a peer that does not answer. */
milliseconds Endpoint::lingerTime() const noexcept {
  return std::clamp(settings_.deadline / 2, milliseconds(200), milliseconds(5000));
}

void Endpoint::addPeer(const std::shared_ptr<Peer>& peer) {
  post([this, peer] { peers_[peer->rank] = peer; });
}

void Endpoint::reach(const std::shared_ptr<Peer>& peer) {
  if (peer->link != Link::none || peer->isClosed) return;
  abi::EpParams params{};
  params.mask = abi::epRemoteAddress | abi::epErrorMode | abi::epErrorHandler;
  params.address = reinterpret_cast<const abi::Address*>(peer->address.data());
  params.errorMode = abi::errorModePeer;
  params.onError = &Endpoint::epFailed;
  params.errorArgument = this;
  const auto status = api_.createEp(worker_, &params, &peer->ep);
  if (status != abi::ok) {
    peer->ep = nullptr;
    peer->output.clear();
    // A port that nobody listens at any more is as far away to UCX as a network that it does not reach.
    if (peer->generation > 0) return failPeer(peer, gone(*peer, status));
    return failPeer(
        peer, peerFailure(*peer, status == abi::unreachable ? Code::Unsupported : Code::SystemFailure,
                          "cannot be reached by a transport of UCX that both ranks have: " + textOf(status), status));
  }
  peer->link = Link::open;
  peer->generation++;
  peer->isWelcomed = false;
  peer->lastHeard = Clock::now();
  linked_.push_back(peer);
  say(peer, FrameKind::hello);
}

void Endpoint::epFailed(void* argument, abi::Ep* ep, abi::Status status) {
  auto& self = *static_cast<Endpoint*>(argument);
  for (const auto& peer : self.linked_)
    if (peer->ep == ep && peer->link == Link::open) self.failures_.push_back({peer, peer->generation, status});
}

tensorferry::Status Endpoint::gone(const Peer& peer, abi::Status status) const {
  return peerFailure(peer, Code::PeerGone, "has ended or cannot be reached any more: " + textOf(status), status);
}

void Endpoint::lost(const std::shared_ptr<Peer>& peer, abi::Status status) {
  if (peer->link != Link::open) return;
  failPeer(peer, gone(*peer, status));
}

void Endpoint::failPeer(const std::shared_ptr<Peer>& peer, const Status& status) {
  if (peer->link == Link::open) closeLink(peer);
  for (const auto& flows : {peer->sends, peer->receives})
    for (const auto& flow : flows)
      if (flow->run != nullptr) fail(*flow->run->transfer, status);
  for (const auto& job : std::exchange(peer->connecting, {})) {
    job->fail(status);
    job->done();
  }
}

/** At once: what is under way over the link ends, by failing where it must. */
void Endpoint::closeLink(const std::shared_ptr<Peer>& peer) {
  if (peer->link != Link::open) return;
  peer->link = Link::closing;
  peer->output.clear();
  auto operation = std::make_unique<Operation>();
  operation->kind = Operation::Kind::close;
  operation->peer = peer;
  issue(std::move(operation), [&](abi::RequestParam& param) {
    param.mask |= abi::requestFlags;
    param.flags = abi::closeForce;
    return api_.closeEp(peer->ep, &param);
  });
}

/** Closes the link when what was said over it has arrived. */
void Endpoint::bidFarewell(const std::shared_ptr<Peer>& peer) {
  auto operation = std::make_unique<Operation>();
  operation->kind = Operation::Kind::farewell;
  operation->peer = peer;
  issue(std::move(operation), [&](abi::RequestParam& param) { return api_.flushEp(peer->ep, &param); });
}

void Endpoint::linkClosed(const std::shared_ptr<Peer>& peer) {
  peer->link = Link::none;
  peer->ep = nullptr;
  std::erase(linked_, peer);
  for (const auto& flow : peer->sends) dropLayout(*flow);
  for (const auto& flow : peer->receives) flow->isLaidOut = false;
  for (const auto& run : std::vector(peer->exposed)) conceal(run);
  if (!peer->isClosed && (!peer->output.empty() || !peer->connecting.empty())) reach(peer);
}

void Endpoint::closePeer(const std::shared_ptr<Peer>& peer) {
  ask([&] {
    peer->isClosed = true;
    failPeer(peer, peerFailure(*peer, Code::PeerGone, "has built its driver again"));
    if (const auto found = peers_.find(peer->rank); found != peers_.end() && found->second == peer) peers_.erase(found);
  });
}

void Endpoint::connect(const std::shared_ptr<ConnectJob>& job) {
  const bool isPosted = post([this, job] {
    const auto& peer = job->peer;
    if (peer->isClosed || (peer->link == Link::open && peer->isWelcomed)) {
      if (peer->isClosed) job->fail(peerFailure(*peer, Code::PeerGone, "has built its driver again"));
      return job->done();
    }
    peer->lastHeard = Clock::now();
    peer->connecting.push_back(job);
    reach(peer);
  });
  if (isPosted) return;
  job->fail(failure(Code::InvalidHandle, "connect", "The driver was closed."));
  job->done();
}

void Endpoint::cancel(const std::shared_ptr<ConnectJob>& job) noexcept {
  post([this, job] {
    if (std::erase(job->peer->connecting, job) == 0) return;
    job->fail(failure(Code::Cancelled, "connect", "The attempt was cancelled."));
    job->done();
  });
}

void Endpoint::say(const std::shared_ptr<Peer>& peer, FrameKind kind, const Flow* flow, uint64_t run, uint64_t chunk,
                   std::string body) {
  if (peer->isClosed) return;
  const Frame frame{kind,  flow == nullptr ? 0 : flow->program, settings_.rank, 0, peer->ours, run,
                    chunk, flow == nullptr ? 0 : flow->digest};
  peer->output.push_back({frame, std::move(body)});
  if (peer->link == Link::none) reach(peer);
  if (peer->link == Link::open) flushOutput(peer);
}

void Endpoint::flushOutput(const std::shared_ptr<Peer>& peer) {
  while (!peer->output.empty() && peer->link == Link::open) {
    auto operation = std::make_unique<Operation>();
    operation->peer = peer;
    operation->number = peer->generation;
    operation->frame = peer->output.front().first;
    operation->body = std::move(peer->output.front().second);
    peer->output.pop_front();
    Operation& kept = *operation;
    issue(std::move(operation), [&](abi::RequestParam& param) {
      return api_.sendMessage(peer->ep, 0, &kept.frame, sizeof kept.frame, kept.body.data(), kept.body.size(), &param);
    });
  }
}

void Endpoint::welcomed(const std::shared_ptr<Peer>& peer) {
  if (peer->isWelcomed || peer->link != Link::open) return;
  peer->isWelcomed = true;
  char* text = nullptr;
  size_t length = 0;
  if (FILE* const stream = ::open_memstream(&text, &length); stream != nullptr) {
    api_.printEp(peer->ep, stream);
    std::fclose(stream);
    peer->lanes.assign(text, length);
    std::free(text);
  }
  peer->isPutting = choosesPut(peer->lanes);
  if (settings_.way == Way::put && !peer->isPutting) {
    return failPeer(peer,
                    peerFailure(*peer, Code::Unsupported,
                                "is reached by transports whose remote writes UCX only emulates, and where a peer "
                                "dies it then ends this process: let chunks be sent, by transfer auto"));
  }
  for (const auto& job : std::exchange(peer->connecting, {})) job->done();
}

bool Endpoint::choosesPut(const std::string& lanes) const {
  if (settings_.way == Way::message || settings_.way == Way::emulated) return settings_.way == Way::emulated;
  for (size_t at = 0; (at = lanes.find("lane[", at)) != std::string::npos; at++) {
    const std::string line = lanes.substr(at, lanes.find('\n', at) - at);
    if (line.find(" rma") == std::string::npos) continue;
    for (const char* writer : writers)
      if (line.find(std::string(":") + writer + "_") != std::string::npos) return true;
  }
  return false;
}

std::pair<std::string, bool> Endpoint::describe(const std::shared_ptr<Peer>& peer) {
  std::pair<std::string, bool> answer;
  ask([&] { answer = {peer->lanes, peer->isPutting}; });
  return answer;
}

void Endpoint::tickPeer(const std::shared_ptr<Peer>& peer, Time now) {
  if (peer->lingering > 0 && now > peer->lingersUntil) {
    peer->lingersUntil = now + lingerTime();
    return failPeer(peer, peerFailure(*peer, Code::DeadlineExceeded, "does not let go of memory"));
  }
  if (peer->running == 0 && peer->connecting.empty()) return;
  if (now - peer->lastHeard > settings_.deadline) {
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%g s", static_cast<double>(settings_.deadline.count()) / 1000);
    return failPeer(peer, peerFailure(*peer, Code::DeadlineExceeded, std::string("has not answered for ") + seconds,
                                      abi::timedOut));
  }
  if (now < peer->nextHello || peer->link == Link::closing) return;
  // A peer that does not know this rank yet does not answer.
  const bool isNew = !peer->connecting.empty();
  peer->nextHello =
      now + (isNew ? milliseconds(50) : std::clamp(settings_.deadline / 4, milliseconds(50), milliseconds(1000)));
  say(peer, FrameKind::hello);
}

}  // namespace tensorferry::ucx
