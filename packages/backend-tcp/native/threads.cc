// SPDX-License-Identifier: Apache-2.0
/*
 * The threads of an endpoint and what they wait for. The first thread also has the listeners and the clock.
 *
 * Invariant: a stranger costs one socket and a few bytes; where one more comes than there are places, the oldest goes.
 */
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/random.h>

#include "endpoint.h"

namespace tensorferry::tcp {
namespace {

/** Connections that have not proved themselves. */
constexpr size_t strangerPlaces = 64;

void set(int socket, int level, int option, int value) noexcept {
  // A system that lacks an option does without it.
  ::setsockopt(socket, level, option, &value, sizeof value);
}

}  // namespace

void tune(int socket, std::chrono::milliseconds deadline) noexcept {
  const int quarter = static_cast<int>(std::clamp<int64_t>(deadline.count() / 4000, 1, 3600));
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, quarter);
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, quarter);
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, 2);
  set(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(std::min<int64_t>(deadline.count(), 1 << 30)));
  // Bytes that have not left stay out of the queue of a slow connection, so that a faster one can take them.
  set(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, static_cast<int>(chunkBytes));
}

Result<Endpoint::Listener> Endpoint::listen(const Address& address, Address& listening) {
  const std::string about = "Rank " + std::to_string(settings_.rank) + " cannot listen at " + address.text();
  Listener listener;
  listener.socket = Descriptor(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int socket = listener.socket.get();
  if (!listener.socket.isOpen()) return systemFailure("socket", about);
  set(socket, SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.family() == AF_INET6) set(socket, IPPROTO_IPV6, IPV6_V6ONLY, 1);
  if (::bind(socket, address.raw(), address.length()) != 0) return systemFailure("bind", about);
  if (::listen(socket, 1024) != 0) return systemFailure("listen", about);
  listening = Address::of(socket, false);
  return Result<Listener>(std::move(listener));
}

Result<std::vector<Address>> Endpoint::open(const std::vector<Address>& addresses) {
  std::vector<Address> listening;
  for (const auto& address : addresses) {
    Address at;
    auto listener = listen(address, at);
    if (!listener.ok()) return listener.status();
    listeners_.push_back(std::move(listener.value()));
    listening.push_back(at);
  }
  for (size_t i = 0; i < settings_.threads; i++) {
    threads_.push_back(std::make_unique<Thread>());
    if (Status status = threads_.back()->poller.open(); !status.ok()) return status;
  }
  for (size_t i = 0; i < listeners_.size(); i++)
    if (Status status = threads_[0]->poller.add(listeners_[i].socket.get(), i, false); !status.ok()) return status;
  lastTick_ = lastNeeded_ = Clock::now();
  isOpen_ = true;
  // Signals belong to the process's main thread.
  sigset_t all, before;
  sigfillset(&all);
  // A fault in memory that was cut short is the thread's own, and has a handler.
  sigdelset(&all, SIGBUS);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const Status started = caught("thread", [&]() -> Status {
    for (size_t i = 0; i < threads_.size(); i++) threads_[i]->thread = std::thread([this, i] { serve(i); });
    return {};
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!started.ok()) {
    close();
    return started;
  }
  return listening;
}

void Endpoint::close() noexcept {
  {
    Lock lock(mutex_);
    if (isClosing_) return;
    isClosing_ = true;
    isOpen_ = false;
    const auto peers = peers_;
    for (const auto& [id, peer] : peers) failPeer(peer, failure(Code::Cancelled, "close", "The endpoint was closed."));
  }
  for (auto& thread : threads_) thread->poller.wake();
  for (auto& thread : threads_)
    if (thread->thread.joinable()) thread->thread.join();
  Lock lock(mutex_);
  listeners_.clear();
  strangers_.clear();
  attended_.clear();
  for (auto& thread : threads_) thread->wanted.clear();
  for (const auto& [number, lane] : lanes_) {
    lane->state = LaneState::closed;
    lane->peer.reset();
    lane->unconfirmed.clear();
    lane->work.run.reset();
  }
  lanes_.clear();
  for (const auto& [id, peer] : peers_) {
    peer->outgoing.clear();
    peer->incoming.clear();
    peer->dialing.clear();
    peer->sends.clear();
    peer->receives.clear();
  }
  peers_.clear();
}

void Endpoint::serve(size_t number) noexcept {
  Thread& thread = *threads_[number];
  for (;;) {
    std::chrono::milliseconds most{-1};
    if (number == 0) {
      Lock lock(mutex_);
      most = untilUnattended(untilTick());
    }
    const auto events = thread.poller.wait(most);
    // What cannot be remembered for want of memory ends its lane when its deadline comes.
    const Status status = caught("serve", [&]() -> Status {
      Lock lock(mutex_);
      if (isClosing_) return failure(Code::Cancelled, "serve", "");
      for (const auto& event : events) handle(event, lock);
      const auto wanted = std::move(thread.wanted);
      thread.wanted.clear();
      for (const auto& lane : wanted) pump(lane, lock);
      if (number == 0) {
        endOldAttending(lock);
        tick(lock);
      }
      return {};
    });
    if (status.code == Code::Cancelled) return;
  }
}

void Endpoint::handle(const Event& event, Lock& lock) {
  if (event.token < firstLane) return accept(event.token, lock);
  const auto found = lanes_.find(event.token);
  if (found == lanes_.end()) return;
  const LanePointer lane = found->second;
  if (lane->state == LaneState::connecting) {
    if (event.hasRoom) connected(lane);
    return;
  }
  if (event.isReadable) drain(lane, lock);
  if (event.hasRoom) pump(lane, lock);
}

void Endpoint::accept(size_t number, Lock& lock) {
  Listener& listener = listeners_[number];
  for (size_t taken = 0; taken < strangerPlaces; taken++) {
    Descriptor socket(::accept4(listener.socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.isOpen()) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        // Without room for one more, waiting would not wait. The clock tries again.
        threads_[0]->poller.change(listener.socket.get(), number, false, false);
        listener.isPaused = true;
      }
      return;
    }
    while (strangers_.size() >= strangerPlaces) breakLane(LanePointer(strangers_.front()), "made room for others");
    auto lane = std::make_shared<Lane>();
    tune(socket.get(), settings_.deadline);
    lane->socket = std::move(socket);
    lane->state = LaneState::awaitsHello;
    lane->need = sizeof(wire::Hello);
    lane->challenge.magic = wire::protocolMagic;
    if (::getrandom(lane->challenge.nonce.data(), lane->challenge.nonce.size(), 0) != 32) return;
    lane->output.assign(reinterpret_cast<const char*>(&lane->challenge), sizeof lane->challenge);
    if (!addLane(lane, false).ok()) return;
    strangers_.push_back(lane);
    pump(lane, lock);
  }
}

void Endpoint::resumeListeners() {
  for (size_t i = 0; i < listeners_.size(); i++) {
    if (!listeners_[i].isPaused) continue;
    listeners_[i].isPaused = false;
    threads_[0]->poller.change(listeners_[i].socket.get(), i, false);
  }
}

Status Endpoint::addLane(const LanePointer& lane, bool awaitsRoom) {
  lane->number = nextLane_++;
  lane->thread = lane->number % threads_.size();
  lane->since = lane->lastMoved = Clock::now();
  lane->awaitsRoom = awaitsRoom;
  lanes_.emplace(lane->number, lane);
  Status status = threads_[lane->thread]->poller.add(lane->socket.get(), lane->number, awaitsRoom);
  if (!status.ok()) lanes_.erase(lane->number);
  return status;
}

void Endpoint::awaitRoom(Lane& lane, bool awaitsRoom) {
  if (lane.awaitsRoom == awaitsRoom) return;
  lane.awaitsRoom = awaitsRoom;
  threads_[lane.thread]->poller.change(lane.socket.get(), lane.number, awaitsRoom, !lane.isAttended);
}

void Endpoint::wake(const LanePointer& lane) {
  Thread& thread = *threads_[lane->thread];
  thread.wanted.push_back(lane);
  if (thread.wanted.size() == 1) thread.poller.wake();
}

void Endpoint::wakeClock() {
  lastNeeded_ = Clock::now();
  if (!isClockIdle_) return;
  isClockIdle_ = false;
  threads_[0]->poller.wake();
}

}  // namespace tensorferry::tcp
