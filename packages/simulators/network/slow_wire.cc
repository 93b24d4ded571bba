// SPDX-License-Identifier: Apache-2.0
/*
 * A long cable between two network namespaces: every packet arrives after a delay, at a rate, or not at all. For kernels
 * whose traffic control cannot delay or lose packets.
 *
 *   slow_wire NAMESPACE NAMESPACE DEVICE MTU BITS_PER_SECOND DELAY_MICROSECONDS LOSS_PER_MILLION QUEUE_BYTES
 *
 * Makes the device in both namespaces, prints a line when both are there, and ends when its input ends. Packets wait in a
 * queue of at most so many bytes before the wire takes them, as in a router; those that find it full are dropped.
 */
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

struct Packet {
  Clock::time_point due;
  std::vector<char> bytes;
};

/** One direction. */
struct Way {
  int from, to;
  Clock::time_point isFree{};
  std::deque<Packet> packets;
};

[[noreturn]] void die(const char* what) {
  std::perror(what);
  std::exit(1);
}

int openDevice(const std::string& space, const char* device) {
  const int own = ::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  const int other = ::open(("/var/run/netns/" + space).c_str(), O_RDONLY | O_CLOEXEC);
  if (own < 0 || other < 0 || ::setns(other, CLONE_NEWNET) != 0) die(space.c_str());
  const int tun = ::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  std::strncpy(request.ifr_name, device, sizeof request.ifr_name - 1);
  if (tun < 0 || ::ioctl(tun, TUNSETIFF, &request) != 0) die("tun");
  if (::setns(own, CLONE_NEWNET) != 0) die("setns");
  ::close(own);
  ::close(other);
  return tun;
}

}  // namespace

int main(int count, char** values) {
  if (count != 9) {
    std::fprintf(stderr,
                 "usage: slow_wire NAMESPACE NAMESPACE DEVICE MTU BITS_PER_SECOND DELAY_US LOSS_PPM QUEUE_BYTES\n");
    return 2;
  }
  ::prctl(PR_SET_TIMERSLACK, 1000UL);
  const int first = openDevice(values[1], values[3]), second = openDevice(values[2], values[3]);
  const auto mtu = static_cast<size_t>(std::atol(values[4]));
  const double nanosPerByte = 8e9 / std::atof(values[5]);
  const nanoseconds delay(1000 * std::atol(values[6]));
  const auto lossPerMillion = static_cast<uint32_t>(std::atol(values[7]));
  const nanoseconds longestQueue(static_cast<int64_t>(nanosPerByte * std::atof(values[8])));
  std::minstd_rand random(1);
  Way ways[2] = {{first, second, {}, {}}, {second, first, {}, {}}};
  const int timer = ::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  std::puts("ready");
  std::fflush(stdout);
  std::vector<char> buffer(mtu + 64);
  for (;;) {
    auto now = Clock::now();
    auto next = now + std::chrono::seconds(1);
    for (Way& way : ways) {
      while (!way.packets.empty() && way.packets.front().due <= now) {
        const auto& bytes = way.packets.front().bytes;
        [[maybe_unused]] const auto written = ::write(way.to, bytes.data(), bytes.size());
        way.packets.pop_front();
      }
      if (!way.packets.empty()) next = std::min(next, way.packets.front().due);
    }
    const auto wait = std::max(nanoseconds(1), nanoseconds(next - Clock::now()));
    const itimerspec spec{{0, 0}, {wait.count() / 1'000'000'000, wait.count() % 1'000'000'000}};
    ::timerfd_settime(timer, 0, &spec, nullptr);
    pollfd waiting[4] = {{first, POLLIN, 0}, {second, POLLIN, 0}, {timer, POLLIN, 0}, {0, POLLIN, 0}};
    if (::poll(waiting, 4, -1) < 0) die("poll");
    if (waiting[2].revents != 0) {
      uint64_t expired;
      [[maybe_unused]] const auto got = ::read(timer, &expired, sizeof expired);
    }
    if (waiting[3].revents != 0) {
      char any[64];
      if (::read(0, any, sizeof any) <= 0) return 0;
    }
    for (Way& way : ways) {
      for (int taken = 0; taken < 64; taken++) {
        const auto got = ::read(way.from, buffer.data(), buffer.size());
        if (got <= 0) break;
        now = Clock::now();
        way.isFree = std::max(way.isFree, now);
        if (way.isFree - now > longestQueue || random() % 1'000'000 < lossPerMillion) continue;
        way.isFree += nanoseconds(static_cast<int64_t>(nanosPerByte * static_cast<double>(got)));
        way.packets.push_back({way.isFree + delay, {buffer.data(), buffer.data() + got}});
      }
    }
  }
}
