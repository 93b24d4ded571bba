// SPDX-License-Identifier: Apache-2.0
/*
 * Mapped files that their owner may cut short: what is read behind the new end is zero, and the cut is remembered, where
 * the kernel would end this process with SIGBUS. Any thread.
 *
 * Invariant: the handler touches guarded ranges only and calls nothing that may not be called in a signal; any other bus
 * error goes to whoever handled it before. A guard outlives its mapping's last access and ends before it is unmapped.
 */
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

namespace tensorferry {

namespace truncation {

struct Range {
  std::atomic<uintptr_t> begin{0};
  /** 0: nothing is guarded here. */
  std::atomic<uintptr_t> end{0};
  std::atomic<bool> isCut{false};
};

/** Ranges in blocks that are never freed, so that the handler needs no lock. */
struct Block {
  std::array<Range, 512> ranges;
  std::atomic<Block*> next{nullptr};
};

inline Block firstBlock;
/** Cuts that were met so far, of all ranges. */
inline std::atomic<uint64_t> cuts{0};
inline std::mutex adding;
inline struct sigaction previous{};

inline Range* find(uintptr_t address) noexcept {
  for (Block* block = &firstBlock; block != nullptr; block = block->next.load(std::memory_order_acquire)) {
    for (Range& range : block->ranges) {
      if (address >= range.begin.load(std::memory_order_acquire) && address < range.end.load(std::memory_order_acquire))
        return &range;
    }
  }
  return nullptr;
}

/** Puts zeros where the file ends before the range does. */
inline bool cover(uintptr_t address) noexcept {
  Range* const range = find(address);
  if (range == nullptr) return false;
  const auto page = static_cast<uintptr_t>(::getpagesize());
  const uintptr_t from = address / page * page;
  const uintptr_t to = (range->end.load(std::memory_order_acquire) + page - 1) / page * page;
  void* const zeros = ::mmap(reinterpret_cast<void*>(from), to - from, PROT_READ | PROT_WRITE,
                             MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (zeros == MAP_FAILED) return false;
  range->isCut.store(true, std::memory_order_release);
  cuts.fetch_add(1, std::memory_order_acq_rel);
  return true;
}

inline void onBusError(int signal, siginfo_t* facts, void* context) {
  const int before = errno;
  const bool isCovered = facts->si_code == BUS_ADRERR && cover(reinterpret_cast<uintptr_t>(facts->si_addr));
  errno = before;
  if (isCovered) return;
  if ((previous.sa_flags & SA_SIGINFO) != 0 && previous.sa_sigaction != nullptr) {
    previous.sa_sigaction(signal, facts, context);
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(signal);
  } else {
    // The access is tried again and ends the process as it would have without this.
    struct sigaction plain{};
    plain.sa_handler = SIG_DFL;
    ::sigaction(signal, &plain, nullptr);
  }
}

inline void install() noexcept {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction own{};
    own.sa_sigaction = onBusError;
    own.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&own.sa_mask);
    ::sigaction(SIGBUS, &own, &previous);
  });
}

/** A free place, set to the range. */
inline Range* take(uintptr_t begin, uintptr_t end) {
  const std::lock_guard lock(adding);
  for (Block* block = &firstBlock;;) {
    for (Range& range : block->ranges) {
      if (range.end.load(std::memory_order_relaxed) != 0) continue;
      range.isCut.store(false, std::memory_order_relaxed);
      range.begin.store(begin, std::memory_order_release);
      range.end.store(end, std::memory_order_release);
      return &range;
    }
    Block* next = block->next.load(std::memory_order_relaxed);
    if (next == nullptr) {
      next = std::make_unique<Block>().release();
      block->next.store(next, std::memory_order_release);
    }
    block = next;
  }
}

}  // namespace truncation

/** Guards one mapping for as long as it lives. */
class TruncationGuard {
 public:
  TruncationGuard() = default;
  TruncationGuard(const void* address, size_t length) {
    truncation::install();
    const auto begin = reinterpret_cast<uintptr_t>(address);
    range_ = truncation::take(begin, begin + length);
  }
  TruncationGuard(TruncationGuard&& other) noexcept : range_(other.range_) { other.range_ = nullptr; }
  TruncationGuard& operator=(TruncationGuard&& other) noexcept {
    if (this != &other) {
      reset();
      range_ = other.range_;
      other.range_ = nullptr;
    }
    return *this;
  }
  ~TruncationGuard() { reset(); }

  /** Whether the file was found to be shorter than its mapping. */
  bool isCut() const noexcept { return range_ != nullptr && range_->isCut.load(std::memory_order_acquire); }
  void reset() noexcept {
    if (range_ != nullptr) range_->end.store(0, std::memory_order_release);
    range_ = nullptr;
  }

 private:
  truncation::Range* range_ = nullptr;
};

/** Cuts that this addon has met: while the number stays, no guarded mapping has changed. */
inline uint64_t truncationCuts() noexcept { return truncation::cuts.load(std::memory_order_acquire); }

}  // namespace tensorferry
