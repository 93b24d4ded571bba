// SPDX-License-Identifier: Apache-2.0
/*
 * How long work is told to stop and how it tells how far it is. Any thread may use both; neither ever blocks.
 *
 * Invariant: a token once cancelled stays cancelled. The counter only grows.
 */
#pragma once

#include <atomic>
#include <cstdint>

namespace tensorferry {

class CancelToken {
 public:
  void cancel() noexcept { flag_.store(true, std::memory_order_release); }
  bool isCancelled() const noexcept { return flag_.load(std::memory_order_acquire); }

 private:
  std::atomic<bool> flag_{false};
};

class ProgressCounter {
 public:
  void add(uint64_t bytes) noexcept { bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  uint64_t read() const noexcept { return bytes_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> bytes_{0};
};

}  // namespace tensorferry
