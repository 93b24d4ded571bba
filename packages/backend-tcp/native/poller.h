// SPDX-License-Identifier: Apache-2.0
/*
 * Waiting for many sockets at once, by epoll. The one place that knows by which means of the system a thread waits.
 *
 * Sockets may be added, changed and removed by any thread; one thread waits. Invariant: `wake` ends a wait, present or next.
 */
#pragma once

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <span>

#include <tensorferry/descriptor.h>
#include <tensorferry/status.h>

namespace tensorferry::tcp {

struct Event {
  /** What the socket was added as. */
  uint64_t token;
  bool isReadable, hasRoom;
};

class Poller {
 public:
  Status open() {
    poll_ = Descriptor(::epoll_create1(EPOLL_CLOEXEC));
    if (!poll_.isOpen()) return systemFailure("epoll_create1", "A thread cannot wait for sockets");
    bell_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!bell_.isOpen()) return systemFailure("eventfd", "A thread cannot be woken");
    return add(bell_.get(), bellToken, false);
  }

  Status add(int socket, uint64_t token, bool awaitsRoom) { return control(EPOLL_CTL_ADD, socket, token, awaitsRoom); }
  Status change(int socket, uint64_t token, bool awaitsRoom, bool awaitsBytes = true) {
    return control(EPOLL_CTL_MOD, socket, token, awaitsRoom, awaitsBytes);
  }
  void remove(int socket) noexcept { ::epoll_ctl(poll_.get(), EPOLL_CTL_DEL, socket, nullptr); }

  void wake() noexcept {
    const uint64_t one = 1;
    // A bell that is full has rung.
    [[maybe_unused]] const auto written = ::write(bell_.get(), &one, sizeof one);
  }

  /** What can be read or written by now, at the latest after this time. */
  std::span<const Event> wait(std::chrono::milliseconds most) noexcept {
    const int count =
        ::epoll_wait(poll_.get(), raw_.data(), static_cast<int>(raw_.size()), static_cast<int>(most.count()));
    size_t kept = 0;
    for (int i = 0; i < count; i++) {
      const auto& event = raw_[static_cast<size_t>(i)];
      if (event.data.u64 == bellToken) {
        uint64_t rung;
        [[maybe_unused]] const auto read = ::read(bell_.get(), &rung, sizeof rung);
        continue;
      }
      // An error shows when the socket is read or written, so it counts as both.
      const bool isBroken = (event.events & (EPOLLERR | EPOLLHUP)) != 0;
      events_[kept++] = {event.data.u64, isBroken || (event.events & EPOLLIN) != 0,
                         isBroken || (event.events & EPOLLOUT) != 0};
    }
    return {events_.data(), kept};
  }

 private:
  static constexpr uint64_t bellToken = ~uint64_t{0};

  Status control(int operation, int socket, uint64_t token, bool awaitsRoom, bool awaitsBytes = true) {
    epoll_event event{};
    event.events = (awaitsBytes ? EPOLLIN : 0u) | (awaitsRoom ? EPOLLOUT : 0u);
    event.data.u64 = token;
    if (::epoll_ctl(poll_.get(), operation, socket, &event) == 0) return {};
    return systemFailure("epoll_ctl", "A socket cannot be waited for");
  }

  Descriptor poll_, bell_;
  std::array<epoll_event, 64> raw_;
  std::array<Event, 64> events_;
};

}  // namespace tensorferry::tcp
