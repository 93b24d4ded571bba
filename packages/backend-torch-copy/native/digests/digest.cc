// SPDX-License-Identifier: Apache-2.0
/*
 * See digest.h. A unit of work is a piece of a long run or some short ones. Whole blocks are read where they lie; what does
 * not fill one is laid out in a block of ones, which add nothing.
 */
#include "digest.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include <tensorferry/digest.h>
#include <tensorferry/tables/digest_table.h>

#include "../kernels.h"

namespace tensorferry {
namespace {

constexpr uint64_t digestUnitBytes = 1 << 20;
/** Runs of so many bytes at most are taken word by word. */
constexpr uint64_t fewBytes = 16;

/** Both halves of the factors of words. */
struct WordFactors {
  uint64_t of[digestHalves][digestBlockWords];
  constexpr WordFactors() : of() {
    for (uint32_t half = 0; half < digestHalves; half++)
      for (uint32_t word = 0; word < digestBlockWords; word++) of[half][word] = digestWordFactor(half, word);
  }
};
constexpr WordFactors wordFactors;

/** What one unit adds to a digest. */
class Sum {
 public:
  explicit Sum(uint8_t mask) : mask_(mask) {}

  uint64_t halves[digestHalves] = {};

  void addRun(const uint8_t* bytes, uint64_t position, uint64_t length) noexcept {
    if (length <= fewBytes) return addWords(bytes, position, length);
    while (length > 0) {
      const uint64_t first = position % digestBlockBytes;
      if (first == 0 && length >= digestBlockBytes && mask_ == 0xff) {
        const uint64_t blocks = length / digestBlockBytes;
        kernels().digestBlocks(halves, bytes, position / digestBlockBytes, static_cast<size_t>(blocks));
        bytes += blocks * digestBlockBytes;
        position += blocks * digestBlockBytes;
        length -= blocks * digestBlockBytes;
        continue;
      }
      const uint64_t part = std::min<uint64_t>(length, digestBlockBytes - first);
      begin();
      std::memcpy(block_ + first, bytes, part);
      end(position, part);
      bytes += part;
      position += part;
      length -= part;
    }
  }

  /** Elements that follow one another in the whole and lie apart in memory. */
  void addSpread(const uint8_t* bytes, uint64_t position, uint64_t size, uint64_t step, uint64_t count) noexcept {
    while (count > 0) {
      const uint64_t first = position % digestBlockBytes;
      // An element that crosses the end of a block goes to the next one in part.
      if (first + size > digestBlockBytes) {
        addRun(bytes, position, size);
        bytes += step;
        position += size;
        count--;
        continue;
      }
      const uint64_t many = std::min<uint64_t>(count, (digestBlockBytes - first) / size);
      begin();
      gather(block_ + first, bytes, size, step, many);
      end(position, many * size);
      bytes += many * step;
      position += many * size;
      count -= many;
    }
  }

 private:
  void begin() noexcept { std::memset(block_, 0xff, sizeof block_); }

  void end(uint64_t position, uint64_t length) noexcept {
    const uint64_t first = position % digestBlockBytes;
    if (mask_ != 0xff)
      for (uint64_t at = first; at < first + length; at++) block_[at] |= static_cast<uint8_t>(~mask_);
    kernels().digestBlocks(halves, block_, position / digestBlockBytes, 1);
  }

  static void gather(uint8_t* to, const uint8_t* from, uint64_t size, uint64_t step, uint64_t count) noexcept {
    switch (size) {
      case 1:
        return gatherOf<1>(to, from, step, count);
      case 2:
        return gatherOf<2>(to, from, step, count);
      case 4:
        return gatherOf<4>(to, from, step, count);
      case 8:
        return gatherOf<8>(to, from, step, count);
      default:
        for (uint64_t i = 0; i < count; i++) std::memcpy(to + i * size, from + i * step, size);
    }
  }

  template <size_t size>
  static void gatherOf(uint8_t* to, const uint8_t* from, uint64_t step, uint64_t count) noexcept {
    for (uint64_t i = 0; i < count; i++) std::memcpy(to + i * size, from + i * step, size);
  }

  void addWords(const uint8_t* bytes, uint64_t position, uint64_t length) noexcept {
    while (length > 0) {
      const uint64_t word = position / 4, shift = 8 * (position % 4);
      const uint64_t part = std::min<uint64_t>(length, 4 - position % 4);
      uint32_t value = 0;
      for (uint64_t i = 0; i < part; i++)
        value |= static_cast<uint32_t>(static_cast<uint8_t>(~bytes[i]) & mask_) << (8 * i);
      value <<= shift;
      for (uint32_t half = 0; half < digestHalves; half++)
        halves[half] +=
            value * wordFactors.of[half][word % digestBlockWords] * digestBlockFactor(half, word / digestBlockWords);
      bytes += part;
      position += part;
      length -= part;
    }
  }

  const uint8_t mask_;
  alignas(64) uint8_t block_[digestBlockBytes];
};

/** How the runs of an entry are shared out. */
struct Share {
  /** Units of entries before this one. */
  size_t first;
  /** Pieces of a long run, or runs of a unit. */
  uint64_t pieces, runs;
};

class DigestJob final : public Job {
 public:
  explicit DigestJob(DigestTable table) : t_(std::move(table)), halves_(digestHalves * size_t{t_.parts}) {
    for (DigestEntry& entry : t_.entries) {
      // Neighbours of the whole that lie apart are one run of the work.
      uint64_t bytes = entry.run;
      if (isSpread(entry)) bytes *= entry.dimensions.back().length;
      const uint64_t rows = entry.runs * entry.run / bytes;
      const uint64_t pieces = isSpread(entry) ? 1 : (bytes + digestUnitBytes - 1) / digestUnitBytes;
      const uint64_t runs = pieces > 1 ? 1 : std::max<uint64_t>(1, digestUnitBytes / bytes);
      shares_.push_back({units_, pieces, runs});
      units_ += static_cast<size_t>(pieces > 1 ? rows * pieces : (rows + runs - 1) / runs);
    }
  }

  size_t count() const noexcept override { return units_; }

  void run(size_t index) noexcept override {
    if (units_ == 0) return;
    size_t at = 0;
    for (size_t step = std::bit_floor(shares_.size()); step > 0; step /= 2)
      if (at + step < shares_.size() && shares_[at + step].first <= index) at += step;
    const DigestEntry& entry = t_.entries[at];
    const Share& share = shares_[at];
    Sum sum(entry.mask);
    if (share.pieces > 1) {
      const uint64_t row = (index - share.first) / share.pieces, piece = (index - share.first) % share.pieces;
      // Pieces meet where blocks of the whole do.
      const auto border = [&](uint64_t row, uint64_t piece) {
        if (piece == 0) return uint64_t{0};
        return std::min(entry.run, piece * digestUnitBytes - placeOf(entry, row).position % digestBlockBytes);
      };
      const uint64_t from = border(row, piece), to = piece + 1 == share.pieces ? entry.run : border(row, piece + 1);
      const Place place = placeOf(entry, row);
      if (!shouldStop()) sum.addRun(place.bytes + from, place.position + from, to - from);
    } else {
      const bool spread = isSpread(entry);
      const uint64_t rows = spread ? entry.runs / entry.dimensions.back().length : entry.runs;
      const uint64_t begin = (index - share.first) * share.runs, end = std::min(rows, begin + share.runs);
      for (uint64_t row = begin; row < end && !shouldStop(); row++) {
        const Place place = placeOf(entry, row);
        if (spread) {
          const DigestDimension& last = entry.dimensions.back();
          sum.addSpread(place.bytes, place.position, entry.run, last.step, last.length);
        } else {
          sum.addRun(place.bytes, place.position, entry.run);
        }
      }
    }
    if (cancelToken.isCancelled()) return fail(failure(Code::Cancelled, "digest", "The digest was cancelled."));
    std::lock_guard lock(mutex_);
    for (size_t half = 0; half < digestHalves; half++) halves_[digestHalves * entry.part + half] += sum.halves[half];
  }

  Napi::Value value(Napi::Env env) override {
    auto array = Napi::BigUint64Array::New(env, halves_.size());
    std::copy(halves_.begin(), halves_.end(), array.Data());
    return array;
  }

 private:
  struct Place {
    const uint8_t* bytes;
    uint64_t position;
  };

  static bool isSpread(const DigestEntry& entry) noexcept {
    return !entry.dimensions.empty() && entry.dimensions.back().positionStep == entry.run;
  }

  /** Where a run begins; of spread ones, the first of a row. */
  static Place placeOf(const DigestEntry& entry, uint64_t row) noexcept {
    uint64_t address = entry.address, position = entry.position;
    for (size_t d = entry.dimensions.size() - (isSpread(entry) ? 1 : 0); d > 0; d--) {
      const DigestDimension& dimension = entry.dimensions[d - 1];
      const uint64_t at = row % dimension.length;
      address += at * dimension.step;
      position += at * dimension.positionStep;
      row /= dimension.length;
    }
    return {reinterpret_cast<const uint8_t*>(address), position};
  }

  DigestTable t_;
  std::vector<Share> shares_;
  size_t units_ = 0;
  std::mutex mutex_;  // guards what follows
  std::vector<uint64_t> halves_;
};

}  // namespace

Result<std::shared_ptr<Job>> makeDigestJob(const uint64_t* words, size_t count) {
  auto read = readDigestTable(words, count);
  if (!read.ok()) return read.status();
  return std::shared_ptr<Job>(std::make_shared<DigestJob>(std::move(read.value())));
}

}  // namespace tensorferry
