/*
 * Strided copies, casts, fills and reads of other processes' memory, as one job over one table.
 *
 * Owns the table's binary form, the normalisation of a move and how moves are cut into work items. Parsing happens on the
 * JS thread, execution on pool threads. Invariant: a parsed table has been checked for form; that its addresses are valid
 * is the caller's promise (TypeScript checks every view against its storage first).
 *
 * Table, in 64-bit words, per move:
 *   word 0: kind (bits 0-7: 0 copy, 1 fill), destination type (8-15), source type (16-23), dimensions (24-31), pid (32-63)
 *   word 1: destination address; word 2: source address, or the byte to fill with
 *   then the shape, the destination's strides and the source's strides, in elements, one word per dimension each
 * A pid of 0 means that the source lies in this process.
 */
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <tensorferry/napi_jobs.h>
#include <tensorferry/status.h>

namespace tensorferry {

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
void normalise(Move& move) noexcept;

/** Number of bytes that a move writes. */
uint64_t destinationBytes(const Move& move) noexcept;

/**
 * Parses a table, normalises its moves and cuts them into items that threads can share. Zero-size moves are dropped.
 * `refuseOverlap` fails where dense regions of this process would race.
 */
Result<MoveList> parseMoves(const uint64_t* words, size_t count, bool refuseOverlap);

/** Runs one normalised move whose source is in this process; `past` stores past the caches where that is possible. */
void runLocalMove(const Move& move, bool past) noexcept;

std::shared_ptr<Job> makeMoveJob(MoveList items);

}  // namespace tensorferry
