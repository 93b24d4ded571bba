// SPDX-License-Identifier: Apache-2.0
/*
 * The symmetric block of one driver, and the calls by which programs of the GPU's addon put, signal and wait.
 *
 * The block of every PE begins with words, in this order:
 *   arrived   [PE][slot]  set by the PE that put a batch into the slot
 *   leave     [PE][slot]  set by the PE that lets this one write into its slot
 *   gaveUp    [PE]        set by a PE whose run has failed
 * Slots follow; where is TypeScript's business. A word is set to the number of the run and, below it, of the iteration plus
 * one, so it only grows, and a wait for "at least" can be let go by a word that is larger than any.
 *
 * Calls: what the device's worker says (see stream_calls.h). `reset`, `quiet`: a thread of the pool, while no run goes on.
 * Invariants: a PE that gives up tells all others before it lets go of its own waits, so that nobody takes what it sends
 * afterwards for good; who was told fails its run too. Between runs that failed and the next one, all PEs reset.
 */
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

#include <tensorferry_gpu/stream_calls.h>

#include "session.h"

namespace tensorferry::nvshmem {

/** Kinds of calls, the first word. What follows: */
enum class CallKind : uint64_t {
  /** target, source, bytes, word at the peer (as an address here), iteration, peer */
  Put = 1,
  /** word at the peer, iteration, peer */
  Signal,
  /** word here, iteration */
  Wait,
};

class Exchange final : public gpu::StreamCalls, public std::enable_shared_from_this<Exchange> {
 public:
  ~Exchange() override;

  /** `block` of so many bytes; `slots` for what arrives. Makes page-locked memory: the device is current. */
  static Result<std::shared_ptr<Exchange>> create(std::shared_ptr<Session> session, void* block, size_t bytes,
                                                  uint32_t slots);

  /** The run that calls belong to from now on. JS thread, between runs. */
  void setRun(uint64_t run) noexcept { run_.store(run, std::memory_order_release); }
  /** Waits until what this PE has sent is there. */
  Status quiet(const CancelToken& token);
  /** Sets all words to zero. */
  Status reset(const CancelToken& token);
  /** Tells the others that this PE takes no part in the run. */
  Status decline(const CancelToken& token);
  /** Gives the page-locked memory back. JS thread; nothing is under way. */
  void close() noexcept;

  const char* problemOf(const uint64_t* words, size_t count) const noexcept override;
  Status enqueue(const uint64_t* words, size_t count, gpu::StreamHandle stream) noexcept override;
  Status look() noexcept override;
  void giveUp() noexcept override;
  Status finish() noexcept override;

  const std::shared_ptr<Session> session;
  static constexpr uint64_t iterationLimit = (1 << 24) - 2;
  static constexpr uint64_t runLimit = uint64_t{1} << 38;

 private:
  Exchange(std::shared_ptr<Session> session, char* block, size_t bytes, uint32_t slots) noexcept;

  /** Words of `arrived` and `leave` together. */
  size_t pairWords() const noexcept { return 2 * static_cast<size_t>(session->size) * slots_; }
  uint64_t* words() const noexcept { return reinterpret_cast<uint64_t*>(block_); }
  uint64_t* gaveUp() const noexcept { return words() + pairWords(); }
  uint64_t valueOf(uint64_t iteration) const noexcept {
    return run_.load(std::memory_order_acquire) << 24 | (iteration + 1);
  }
  bool isIdle(const gpu::Stream& stream) const noexcept;
  Status copyWords(uint64_t* target, const uint64_t* source, size_t count, const gpu::Stream& stream) noexcept;
  Status waitFor(const gpu::Stream& stream, const CancelToken& token);
  /** The first PE that told that it gave up, as last read; -1 where none did. */
  int whoGaveUp() const noexcept;
  Status told(int pe) const;
  void tellAll() noexcept;
  void letGo(const gpu::Stream& stream) noexcept;

  char* const block_;
  const size_t bytes_;
  const uint32_t slots_;
  std::atomic<uint64_t> run_{0};
  /** Page-locked: zeros, words with all bits set, and what was read of `gaveUp`. */
  gpu::HostBlock host_;
  uint64_t *zeros_ = nullptr, *ones_ = nullptr, *read_ = nullptr;

  // Of the run that goes on; the worker.
  using Clock = std::chrono::steady_clock;
  bool isReading_ = false, hasTold_ = false;
  Clock::time_point lookedAt_{}, toldAt_{}, letGoAt_{};
};

}  // namespace tensorferry::nvshmem
