// SPDX-License-Identifier: Apache-2.0
/*
 * By which means of the system one thread moves most bytes through sockets: epoll with sendmsg and readv, the same with
 * MSG_ZEROCOPY, or io_uring. What decided how the backend tcp waits and writes.
 *
 *   c++ -O2 -std=c++20 -o socket_io socket_io.cc
 *   ip netns exec B ./socket_io receive epoll|uring ADDRESS CONNECTIONS
 *   ip netns exec A ./socket_io send epoll|zerocopy|uring ADDRESS CONNECTIONS GIBIBYTES
 *
 * Either end prints bytes per second and its processor seconds per GiB.
 */
#include <arpa/inet.h>
#include <linux/errqueue.h>
#include <linux/io_uring.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr size_t chunk = 1 << 20;

[[noreturn]] void die(const char* what) {
  std::perror(what);
  std::exit(1);
}

double processorSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/** The rings of one thread, by the system's own calls. */
struct Ring {
  int descriptor;
  unsigned *head, *tail, *mask, *array, *completedHead, *completedTail, *completedMask;
  io_uring_sqe* entries;
  io_uring_cqe* completions;
  unsigned waiting = 0;

  Ring() {
    io_uring_params params{};
    descriptor = static_cast<int>(syscall(SYS_io_uring_setup, 256, &params));
    if (descriptor < 0) die("io_uring_setup");
    const auto map = [&](size_t length, uint64_t at) {
      void* address =
          mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor, static_cast<off_t>(at));
      if (address == MAP_FAILED) die("mmap");
      return static_cast<char*>(address);
    };
    char* submission = map(params.sq_off.array + params.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
    char* completion = map(params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe), IORING_OFF_CQ_RING);
    entries = reinterpret_cast<io_uring_sqe*>(map(params.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES));
    const auto word = [](char* base, unsigned offset) { return reinterpret_cast<unsigned*>(base + offset); };
    head = word(submission, params.sq_off.head);
    tail = word(submission, params.sq_off.tail);
    mask = word(submission, params.sq_off.ring_mask);
    array = word(submission, params.sq_off.array);
    completedHead = word(completion, params.cq_off.head);
    completedTail = word(completion, params.cq_off.tail);
    completedMask = word(completion, params.cq_off.ring_mask);
    completions = reinterpret_cast<io_uring_cqe*>(completion + params.cq_off.cqes);
  }

  void submit(uint8_t operation, int socket, void* bytes, size_t length, uint64_t token) {
    const unsigned at = *tail & *mask;
    entries[at] = {};
    entries[at].opcode = operation;
    entries[at].fd = socket;
    entries[at].addr = reinterpret_cast<uint64_t>(bytes);
    entries[at].len = static_cast<unsigned>(length);
    entries[at].msg_flags = MSG_NOSIGNAL;
    entries[at].user_data = token;
    array[at] = at;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    waiting++;
  }

  template <typename Each>
  void wait(Each each) {
    if (syscall(SYS_io_uring_enter, descriptor, waiting, 1, IORING_ENTER_GETEVENTS, nullptr, 0) < 0)
      die("io_uring_enter");
    waiting = 0;
    while (*completedHead != __atomic_load_n(completedTail, __ATOMIC_ACQUIRE)) {
      const io_uring_cqe completion = completions[*completedHead & *completedMask];
      __atomic_store_n(completedHead, *completedHead + 1, __ATOMIC_RELEASE);
      each(completion.user_data, completion.res);
    }
  }
};

std::vector<int> open(bool isSending, const char* host, size_t count) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(4713);
  inet_pton(AF_INET, host, &address.sin_addr);
  const auto* at = reinterpret_cast<sockaddr*>(&address);
  const int one = 1;
  std::vector<int> sockets;
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (!isSending && (bind(listener, at, sizeof address) != 0 || listen(listener, 64) != 0)) die("listen");
  for (size_t i = 0; i < count; i++) {
    const int made = isSending ? socket(AF_INET, SOCK_STREAM, 0) : accept(listener, nullptr, nullptr);
    if (made < 0 || (isSending && connect(made, at, sizeof address) != 0)) die("connect");
    setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    sockets.push_back(made);
  }
  close(listener);
  return sockets;
}

/** Zero-copy sends whose bytes the system may still read; they are taken off its list. */
size_t takeNotices(int socket) {
  size_t taken = 0;
  char control[128];
  for (;;) {
    msghdr message{};
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    if (recvmsg(socket, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return taken;
    for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr; each = CMSG_NXTHDR(&message, each)) {
      const auto* notice = reinterpret_cast<const sock_extended_err*>(CMSG_DATA(each));
      taken += notice->ee_data - notice->ee_info + 1;
    }
  }
}

uint64_t byEpoll(bool isSending, const std::vector<int>& sockets, char* memory, uint64_t total, bool isZeroCopy) {
  const int poll = epoll_create1(0);
  const int one = 1;
  for (size_t i = 0; i < sockets.size(); i++) {
    if (isZeroCopy && setsockopt(sockets[i], SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) != 0) die("SO_ZEROCOPY");
    epoll_event event{isSending ? uint32_t{EPOLLOUT} : uint32_t{EPOLLIN}, {}};
    event.data.u64 = i;
    epoll_ctl(poll, EPOLL_CTL_ADD, sockets[i], &event);
  }
  uint64_t moved = 0;
  size_t open = sockets.size();
  while (open > 0 && moved < total) {
    epoll_event events[64];
    const int count = epoll_wait(poll, events, 64, -1);
    for (int i = 0; i < count; i++) {
      const size_t at = events[i].data.u64;
      if (isZeroCopy) takeNotices(sockets[at]);
      iovec piece{memory + at * chunk, chunk};
      msghdr message{};
      message.msg_iov = &piece;
      message.msg_iovlen = 1;
      const int flags = MSG_DONTWAIT | MSG_NOSIGNAL | (isZeroCopy ? MSG_ZEROCOPY : 0);
      const ssize_t got =
          isSending ? sendmsg(sockets[at], &message, flags) : recvmsg(sockets[at], &message, MSG_DONTWAIT);
      if (got > 0) moved += static_cast<uint64_t>(got);
      else if (got == 0) open--, epoll_ctl(poll, EPOLL_CTL_DEL, sockets[at], nullptr);
    }
  }
  return moved;
}

uint64_t byRing(bool isSending, const std::vector<int>& sockets, char* memory, uint64_t total) {
  Ring ring;
  const auto submit = [&](size_t at) {
    ring.submit(isSending ? IORING_OP_SEND : IORING_OP_RECV, sockets[at], memory + at * chunk, chunk, at);
  };
  for (size_t i = 0; i < sockets.size(); i++) submit(i);
  uint64_t moved = 0;
  size_t open = sockets.size();
  while (open > 0 && moved < total) {
    ring.wait([&](uint64_t at, int got) {
      if (got <= 0) return void(open--);
      moved += static_cast<uint64_t>(got);
      submit(at);
    });
  }
  return moved;
}

}  // namespace

int main(int count, char** values) {
  if (count < 5) return 2;
  const bool isSending = std::string(values[1]) == "send";
  const std::string way = values[2];
  const auto sockets = open(isSending, values[3], std::strtoul(values[4], nullptr, 10));
  const uint64_t total = isSending ? static_cast<uint64_t>(std::atof(values[5]) * (1 << 30)) : ~uint64_t{0};
  std::vector<char> memory(sockets.size() * chunk, 'x');
  const auto begun = std::chrono::steady_clock::now();
  const double before = processorSeconds();
  const uint64_t moved = way == "uring" ? byRing(isSending, sockets, memory.data(), total)
                                        : byEpoll(isSending, sockets, memory.data(), total, way == "zerocopy");
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  std::printf("%s %s: %.2f GB/s, %.3f processor seconds per GiB\n", values[1], values[2],
              static_cast<double>(moved) / 1e9 / seconds,
              (processorSeconds() - before) / (static_cast<double>(moved) / (1 << 30)));
}
