// SPDX-License-Identifier: Apache-2.0
/*
 * The parts that go from one rank to another as one stream of bytes: part after part, each in row-major order, wherever its
 * elements lie. Chunks of the stream are read and written in place, run by run.
 *
 * A stream never changes once it is parsed; a cursor belongs to one thread. Invariant: the length of a stream depends on
 * shapes and types alone, so both ends number its bytes alike. That its addresses are valid is the promise of the caller.
 *
 * Table, in 64-bit words, per part: number of dimensions, address of the first byte, then for each dimension from the
 * outermost its length and the bytes between neighbours. The innermost dimensions say how elements follow each other; the
 * last one is of bytes.
 */
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "../status.h"

namespace tensorferry::wire {

class ByteStream {
 public:
  /** Dimensions of a part, the one of bytes included, that are longer than 1 and cannot be merged. */
  static constexpr size_t maxDimensions = 32;

  static Result<ByteStream> parse(const uint64_t* words, size_t count);

  uint64_t byteLength() const noexcept { return length_; }
  size_t parts() const noexcept { return parts_.size(); }

 private:
  friend class RunCursor;
  struct Dimension {
    uint64_t length;
    int64_t step;
  };
  /** Runs of bytes that lie at regular distances. */
  struct Part {
    uint64_t offset, address, run;
    uint32_t firstDimension, dimensions;
  };

  std::vector<Part> parts_;
  std::vector<Dimension> dimensions_;
  uint64_t length_ = 0;
};

inline Result<ByteStream> ByteStream::parse(const uint64_t* words, size_t count) {
  constexpr uint64_t limit = uint64_t{1} << 53;
  const auto bad = [](const char* detail) { return failure(Code::InvalidArgument, "parseStream", detail); };
  ByteStream stream;
  for (size_t at = 0; at < count;) {
    if (count - at < 2) return bad("The table ends inside a part.");
    const uint64_t given = words[at], address = words[at + 1];
    at += 2;
    if (given > maxDimensions || (count - at) / 2 < given) return bad("The table ends inside a part.");
    std::array<Dimension, maxDimensions> dims;
    size_t kept = 0;
    uint64_t bytes = 1;
    for (size_t d = 0; d < given; d++, at += 2) {
      const Dimension next{words[at], static_cast<int64_t>(words[at + 1])};
      if (next.length > limit || (next.length != 0 && bytes > limit / next.length))
        return bad("A part has more than 2^53 bytes.");
      bytes *= next.length;
      if (next.length == 1) continue;
      if (kept > 0 && dims[kept - 1].step == next.step * static_cast<int64_t>(next.length))
        dims[kept - 1] = {dims[kept - 1].length * next.length, next.step};
      else dims[kept++] = next;
    }
    if (bytes == 0) continue;
    uint64_t run = 1;
    if (kept > 0 && dims[kept - 1].step == 1) run = dims[--kept].length;
    if (stream.length_ > limit - bytes) return bad("The stream has more than 2^53 bytes.");
    stream.parts_.push_back(
        {stream.length_, address, run, static_cast<uint32_t>(stream.dimensions_.size()), static_cast<uint32_t>(kept)});
    stream.dimensions_.insert(stream.dimensions_.end(), dims.begin(), dims.begin() + static_cast<ptrdiff_t>(kept));
    stream.length_ += bytes;
  }
  return stream;
}

/** A place in a stream, and the bytes that lie there in a row. */
class RunCursor {
 public:
  /** `at` is below the length of the stream. */
  void seek(const ByteStream& stream, uint64_t at) noexcept {
    stream_ = &stream;
    const auto after = std::upper_bound(stream.parts_.begin(), stream.parts_.end(), at,
                                        [](uint64_t offset, const auto& part) { return offset < part.offset; });
    part_ = static_cast<size_t>(after - stream.parts_.begin()) - 1;
    const auto& part = stream.parts_[part_];
    uint64_t run = (at - part.offset) / part.run;
    inRun_ = (at - part.offset) % part.run;
    address_ = part.address;
    for (size_t d = part.dimensions; d-- > 0;) {
      const auto& dimension = stream.dimensions_[part.firstDimension + d];
      index_[d] = run % dimension.length;
      run /= dimension.length;
      address_ += index_[d] * static_cast<uint64_t>(dimension.step);
    }
  }

  uint8_t* data() const noexcept { return reinterpret_cast<uint8_t*>(address_ + inRun_); }

  /** Bytes from here to the end of the run. */
  uint64_t left() const noexcept { return stream_->parts_[part_].run - inRun_; }

  /** Moves on by at most `left()`. At the end of the stream the cursor may not be used again before it seeks. */
  void skip(uint64_t bytes) noexcept {
    const auto& part = stream_->parts_[part_];
    inRun_ += bytes;
    if (inRun_ < part.run) return;
    inRun_ = 0;
    for (size_t d = part.dimensions; d-- > 0;) {
      const auto& dimension = stream_->dimensions_[part.firstDimension + d];
      address_ += static_cast<uint64_t>(dimension.step);
      if (++index_[d] < dimension.length) return;
      address_ -= dimension.length * static_cast<uint64_t>(dimension.step);
      index_[d] = 0;
    }
    if (++part_ == stream_->parts_.size()) return;
    const auto& next = stream_->parts_[part_];
    address_ = next.address;
    for (size_t d = 0; d < next.dimensions; d++) index_[d] = 0;
  }

 private:
  const ByteStream* stream_ = nullptr;
  size_t part_ = 0;
  uint64_t inRun_ = 0, address_ = 0;
  std::array<uint64_t, ByteStream::maxDimensions> index_;
};

}  // namespace tensorferry::wire
