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

struct Move {
  MoveKind kind;
  uint8_t destinationType, sourceType;
  uint8_t destinationSize, sourceSize;
  uint8_t dimensionCount;
  int32_t pid;
  /** Position in the table, for error messages. */
  uint32_t index;
  uint64_t destination, source;
  std::array<Dimension, maxDimensions> dimensions;
};

/** Orders dimensions by the destination's steps and merges neighbours. Lengths are at least 2. */
void normalise(Move& move) noexcept;

/** Number of bytes that a move writes. */
uint64_t destinationBytes(const Move& move) noexcept;

/** Parses a table, normalises its moves and cuts them into items that threads can share. Zero-size moves are dropped. */
Result<std::vector<Move>> parseMoves(const uint64_t* words, size_t count);

/** Runs one normalised move whose source is in this process. */
void runLocalMove(const Move& move) noexcept;

std::shared_ptr<Job> makeMoveJob(std::vector<Move> items);

}  // namespace tensorferry
