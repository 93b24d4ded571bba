// SPDX-License-Identifier: Apache-2.0
/*
 * Strided copies, casts and fills as data: the binary form in which they cross from TypeScript, and their normal form.
 *
 * Invariant: a parsed table has been checked for form; that its addresses are valid is the caller's promise (TypeScript
 * checks every view against its storage first). Any thread.
 *
 * Table, in 64-bit words, per move:
 *   word 0: kind (bits 0-7: 0 copy, 1 fill), destination type (8-15), source type (16-23), dimensions (24-31), pid (32-63)
 *   word 1: destination address; word 2: source address, or the byte to fill with
 *   then the shape, the destination's strides and the source's strides, in elements, one word per dimension each
 * A pid of 0 means that the source lies in this process.
 */
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dtype.h"
#include "overlap.h"
#include "status.h"

namespace tensorferry {

/** Words of a move of one dimension, which most are once dense dimensions are one. */
inline constexpr size_t usualMoveWords = 6;

/** Dimensions longer than 1 that a move may have. */
inline constexpr size_t maxDimensions = 16;

struct Dimension {
  uint64_t length;
  /** Bytes between neighbours. */
  int64_t destinationStep, sourceStep;
};

enum class MoveKind : uint8_t { Copy, Fill };

/** What all moves have. */
struct MoveHead {
  MoveKind kind;
  uint8_t destinationType, sourceType;
  uint8_t destinationSize, sourceSize;
  uint8_t dimensionCount;
  int32_t pid;
  /** Position in the table, for error messages. */
  uint32_t index;
  uint64_t destination, source;
};

/** A move being worked on. */
struct Move : MoveHead {
  std::array<Dimension, maxDimensions> dimensions;
};

/** Moves at rest, each with as many dimensions as it has: batches have thousands of small ones. */
class MoveList {
 public:
  void reserve(size_t moves) {
    entries_.reserve(moves);
    dimensions_.reserve(moves);
  }
  void add(const Move& move);
  size_t size() const noexcept { return entries_.size(); }
  Move at(size_t index) const noexcept;
  /** Number of bytes that the move writes. */
  uint64_t bytesOf(size_t index) const noexcept { return entries_[index].bytes; }

 private:
  struct Entry {
    MoveHead head;
    size_t firstDimension;
    uint64_t bytes;
  };
  std::vector<Entry> entries_;
  std::vector<Dimension> dimensions_;
};

/** Orders dimensions by the destination's steps and merges neighbours. Lengths are at least 2. */
inline void normalise(Move& move) noexcept {
  auto* first = move.dimensions.data();
  auto* last = first + move.dimensionCount;
  const auto isOuter = [](const Dimension& a, const Dimension& b) {
    return a.destinationStep != b.destinationStep ? a.destinationStep > b.destinationStep : a.sourceStep > b.sourceStep;
  };
  for (auto* next = first; next < last; next++)  // few and nearly always in order already
    for (auto* at = next; at > first && isOuter(*at, *(at - 1)); at--) std::swap(*at, *(at - 1));
  auto* merged = first;
  for (auto* next = first; next < last; next++) {
    if (next == first) continue;
    const auto length = static_cast<int64_t>(next->length);
    if (merged->destinationStep == next->destinationStep * length && merged->sourceStep == next->sourceStep * length) {
      *merged = {merged->length * next->length, next->destinationStep, next->sourceStep};
    } else {
      *++merged = *next;
    }
  }
  move.dimensionCount = static_cast<uint8_t>(first == last ? 0 : merged - first + 1);
}

/** Number of bytes that a move writes. */
inline uint64_t destinationBytes(const Move& move) noexcept {
  uint64_t bytes = move.destinationSize;
  for (size_t i = 0; i < move.dimensionCount; i++) bytes *= move.dimensions[i].length;
  return bytes;
}

inline void MoveList::add(const Move& move) {
  entries_.push_back({move, dimensions_.size(), destinationBytes(move)});
  dimensions_.insert(dimensions_.end(), move.dimensions.begin(), move.dimensions.begin() + move.dimensionCount);
}

inline Move MoveList::at(size_t index) const noexcept {
  const Entry& entry = entries_[index];
  Move move;
  static_cast<MoveHead&>(move) = entry.head;
  std::copy_n(dimensions_.begin() + static_cast<ptrdiff_t>(entry.firstDimension), move.dimensionCount,
              move.dimensions.begin());
  return move;
}

/**
 * Parses a table and gives each normalised move to `emit`, in order. Zero-size moves are dropped. `refuseOverlap` fails
 * where dense regions of this process would race; moves may have been emitted by then.
 */
template <typename Emit>
Status parseMoves(const uint64_t* words, size_t count, bool refuseOverlap, Emit emit) {
  const auto badTable = [](size_t index, const char* detail) {
    Status status = failure(Code::InvalidArgument, "parseMoves", detail);
    status.item = static_cast<int64_t>(index);
    return status;
  };
  std::vector<Span> written, read;
  if (refuseOverlap) {
    written.reserve(count / usualMoveWords);
    read.reserve(count / usualMoveWords);
  }
  size_t at = 0;
  for (uint32_t index = 0; at < count; index++) {
    if (count - at < 3) return badTable(index, "The table ends inside a move.");
    Move move;
    const uint64_t head = words[at];
    const uint8_t kind = head & 0xff;
    move.index = index;
    move.destinationType = (head >> 8) & 0xff;
    move.sourceType = (head >> 16) & 0xff;
    const size_t dimensions = (head >> 24) & 0xff;
    move.pid = static_cast<int32_t>(head >> 32);
    move.destination = words[at + 1];
    move.source = words[at + 2];
    at += 3;
    if (kind > 1) return badTable(index, "Unknown kind of move.");
    move.kind = static_cast<MoveKind>(kind);
    if (move.destinationType >= dtypeCount || move.sourceType >= dtypeCount)
      return badTable(index, "Unknown element type.");
    move.destinationSize = dtypeBytes[move.destinationType];
    move.sourceSize = dtypeBytes[move.sourceType];
    if (move.destinationSize == 0 || move.sourceSize == 0)
      return badTable(index, "Elements that share bytes travel as uint8.");
    const bool casts = move.destinationType != move.sourceType;
    if (casts && (!isCastable(move.destinationType) || !isCastable(move.sourceType) || move.pid != 0))
      return badTable(index, "These types cannot be cast here.");
    if (move.pid < 0) return badTable(index, "A process number is positive.");
    if ((count - at) / 3 < dimensions) return badTable(index, "The table ends inside a move.");
    bool empty = false;
    move.dimensionCount = 0;
    for (size_t d = 0; d < dimensions; d++) {
      empty = empty || words[at + d] == 0;
      if (words[at + d] == 1) continue;
      if (move.dimensionCount == maxDimensions) return badTable(index, "More than 16 dimensions are longer than 1.");
      move.dimensions[move.dimensionCount++] = {words[at + d],
                                                static_cast<int64_t>(words[at + dimensions + d]) * move.destinationSize,
                                                static_cast<int64_t>(words[at + 2 * dimensions + d]) * move.sourceSize};
    }
    at += 3 * dimensions;
    if (empty) continue;
    normalise(move);
    emit(move);
    if (!refuseOverlap || move.kind != MoveKind::Copy || move.pid != 0 || move.dimensionCount > 1) continue;
    const Dimension run = move.dimensionCount == 1 ? move.dimensions[0] : Dimension{1, 0, 0};
    const bool single = move.dimensionCount == 0;
    if (single || run.destinationStep == move.destinationSize)
      written.push_back({move.destination, move.destination + run.length * move.destinationSize});
    if (single || run.sourceStep == move.sourceSize)
      read.push_back({move.source, move.source + run.length * move.sourceSize});
  }
  if (const auto at = findOverlap(written, read))
    return failure(Code::InvalidArgument, "copy",
                   "Regions of the batch overlap at address " + std::to_string(*at) + ".");
  return {};
}

}  // namespace tensorferry
