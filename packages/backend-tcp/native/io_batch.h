// SPDX-License-Identifier: Apache-2.0
/*
 * What one call of writev or readv moves: runs of a stream in place, and short ones by way of a staging buffer, because a
 * piece costs the system more than copying few bytes.
 *
 * Belongs to one lane, used by one thread at a time. Invariant: staged bytes get to their places when a batch has been read
 * whole, and never after `clear`.
 */
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstring>
#include <vector>

#include <tensorferry/wire/byte_stream.h>

namespace tensorferry::tcp {

class IoBatch {
 public:
  /** Runs below this are staged. */
  static constexpr uint64_t shortRun = 1024;

  bool isEmpty() const noexcept { return left_ == 0; }
  /** Bytes that have not been moved. */
  uint64_t left() const noexcept { return left_; }
  const iovec* pieces() const noexcept { return pieces_.data() + first_; }
  int count() const noexcept { return static_cast<int>(pieces_.size() - first_); }

  void clear() noexcept {
    pieces_.clear();
    landings_.clear();
    first_ = staged_ = 0;
    left_ = 0;
  }

  /** Bytes of the caller's that go first. They stay where they are until the batch is moved. */
  void head(const void* bytes, size_t length) { add(const_cast<void*>(bytes), length); }

  /** Adds up to `bytes` from the cursor on, as far as there is room; the number added. */
  uint64_t gather(wire::RunCursor& cursor, uint64_t bytes) { return fill(cursor, bytes, true); }
  uint64_t scatter(wire::RunCursor& cursor, uint64_t bytes) { return fill(cursor, bytes, false); }

  /** Takes note of what a call has moved. */
  void moved(uint64_t bytes) noexcept {
    left_ -= bytes;
    while (bytes > 0) {
      iovec& piece = pieces_[first_];
      const uint64_t taken = std::min<uint64_t>(bytes, piece.iov_len);
      piece.iov_base = static_cast<uint8_t*>(piece.iov_base) + taken;
      piece.iov_len -= taken;
      bytes -= taken;
      if (piece.iov_len == 0) first_++;
    }
  }

  /** Brings staged bytes to their places, after all have been read. */
  void land() noexcept {
    const uint8_t* from = staging_.data();
    for (const auto& [to, length] : landings_) {
      std::memcpy(to, from, length);
      from += length;
    }
    clear();
  }

 private:
  /** What one call takes (IOV_MAX), less one for the head. */
  static constexpr size_t mostPieces = 1023;
  static constexpr size_t stagingBytes = 128 * 1024;

  void add(void* bytes, uint64_t length) {
    left_ += length;
    if (!pieces_.empty()) {
      iovec& last = pieces_.back();
      if (static_cast<uint8_t*>(last.iov_base) + last.iov_len == bytes) {
        last.iov_len += length;
        return;
      }
    }
    pieces_.push_back({bytes, length});
  }

  uint64_t fill(wire::RunCursor& cursor, uint64_t bytes, bool isSending) {
    uint64_t added = 0;
    while (added < bytes && pieces_.size() < mostPieces) {
      const uint64_t length = std::min(cursor.left(), bytes - added);
      if (length >= shortRun) {
        add(cursor.data(), length);
      } else {
        if (staging_.empty()) staging_.resize(stagingBytes);
        if (stagingBytes - staged_ < length) break;
        uint8_t* const at = staging_.data() + staged_;
        if (isSending) std::memcpy(at, cursor.data(), length);
        else landings_.push_back({cursor.data(), length});
        add(at, length);
        staged_ += length;
      }
      cursor.skip(length);
      added += length;
    }
    return added;
  }

  struct Landing {
    uint8_t* to;
    uint64_t length;
  };
  std::vector<iovec> pieces_;
  std::vector<Landing> landings_;
  std::vector<uint8_t> staging_;
  size_t first_ = 0, staged_ = 0;
  uint64_t left_ = 0;
};

}  // namespace tensorferry::tcp
