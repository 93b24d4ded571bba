// SPDX-License-Identifier: Apache-2.0
/*
 * Which chunks of a transfer are where, so that each counts once however often it is sent. Both ends keep one: to the sender
 * a chunk is done when the receiver has it, to the receiver when its bytes are in place.
 *
 * Not thread-safe. Invariant: a chunk is in the hands of one connection at most, and once done it stays so.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace tensorferry::wire {

class ChunkLedger {
 public:
  ChunkLedger() = default;
  explicit ChunkLedger(size_t chunks) : states_(chunks, State::open) {}

  size_t size() const noexcept { return states_.size(); }
  bool isComplete() const noexcept { return done_ == states_.size(); }
  bool isDone(size_t chunk) const noexcept { return states_[chunk] == State::done; }
  bool isTaken(size_t chunk) const noexcept { return states_[chunk] == State::taken; }
  /** Chunks that nobody has taken. */
  size_t open() const noexcept { return states_.size() - done_ - taken_; }

  /** The first chunk that nobody has, which is then taken. */
  std::optional<size_t> takeNext() noexcept {
    if (open() == 0) return std::nullopt;
    while (states_[next_] != State::open) next_++;
    take(next_);
    return next_;
  }

  /** False where it is taken or done. */
  bool take(size_t chunk) noexcept {
    if (states_[chunk] != State::open) return false;
    states_[chunk] = State::taken;
    taken_++;
    return true;
  }

  /** Gives a chunk back that is taken; any other stays as it is. */
  void giveBack(size_t chunk) noexcept {
    if (states_[chunk] != State::taken) return;
    states_[chunk] = State::open;
    taken_--;
    if (chunk < next_) next_ = chunk;
  }

  /** False where it was done before. */
  bool finish(size_t chunk) noexcept {
    if (states_[chunk] == State::done) return false;
    if (states_[chunk] == State::taken) taken_--;
    states_[chunk] = State::done;
    done_++;
    return true;
  }

 private:
  enum class State : uint8_t { open, taken, done };
  std::vector<State> states_;
  size_t done_ = 0, taken_ = 0, next_ = 0;
};

}  // namespace tensorferry::wire
