// SPDX-License-Identifier: Apache-2.0
/*
 * How the worker waits for a device: by asking, at first without pause, then with pauses that grow to 20 microseconds. Where
 * there are cores enough it asks without pause for 100 ms: a thread that sleeps is late by as much as a short kernel takes.
 *
 * Invariant: whoever cancels wakes a waiter at once; nobody waits inside the driver, where nothing could wake it.
 */
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include <tensorferry/cancel.h>

namespace tensorferry::gpu {

/** As in BusyPolling.ts: a process may take this many cores from others. */
inline bool hasSpareCores() noexcept {
  static const bool has = std::thread::hardware_concurrency() >= 4;
  return has;
}

/** Wakes a waiting thread. */
class Waker {
 public:
  void wake() noexcept {
    std::lock_guard lock(mutex_);
    changed_.notify_all();
  }
  void waitFor(std::chrono::microseconds duration, const CancelToken& token) {
    std::unique_lock lock(mutex_);
    // A cancelled token is no reason to stop waiting for the device, only for being woken: then sleep as usual.
    const bool wasCancelled = token.isCancelled();
    changed_.wait_for(lock, duration, [&] { return !wasCancelled && token.isCancelled(); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

/** One wait: call `pause` between two looks. */
class Backoff {
 public:
  Backoff(Waker& waker, const CancelToken& token) noexcept : waker_(waker), token_(token) {}

  void pause() {
    const auto waited = std::chrono::steady_clock::now() - begin_;
    if (waited < std::chrono::microseconds(50)) return;
    if (hasSpareCores() && waited < std::chrono::milliseconds(100)) return std::this_thread::yield();
    waker_.waitFor(pause_, token_);
    pause_ = std::min(2 * pause_, std::chrono::microseconds(20));
  }

 private:
  Waker& waker_;
  const CancelToken& token_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::chrono::microseconds pause_{10};
};

}  // namespace tensorferry::gpu
