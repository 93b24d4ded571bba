// SPDX-License-Identifier: Apache-2.0
/*
 * FP8 in blocks of many rows: all threads of a block of threads take one block of the matrix together. A thread holds its
 * vectors between the search for the largest magnitude and the codes, so that elements are read once.
 *
 * Invariants: the bits are those of quantize_rules.h, as on hosts. Plain rows are dense and lie at multiples of 16 bytes.
 * Threads exchange the largest magnitude, and nothing else; plain C++ has one thread do what all would.
 */
#pragma once

#include "forms_values.h"

namespace tensorferry::gpu {
namespace {

/** Where a tile begins, and how far its rows lie apart. */
struct TilePlace {
  uint64_t plain, codes, scale;
};

TENSORFERRY_DEVICE TilePlace tileAt(uint64_t table, const FormRecord& head, uint32_t index) {
  const uint32_t line = divide(index, head.byCells.multiplier, head.byCells.shift), across = index - line * head.cells;
  const uint32_t matrix = divide(line, head.byRows.multiplier, head.byRows.shift), down = line - matrix * head.rows;
  const uint64_t column = static_cast<uint64_t>(across) * head.blockColumns;
  FormCell cell{head.plain + static_cast<uint64_t>(head.blockRows) * offsetOf(down, head.plainRow) +
                    column * static_cast<uint64_t>(head.plainStep),
                head.codes + static_cast<uint64_t>(head.blockRows) * offsetOf(down, head.codesRow) +
                    column * static_cast<uint64_t>(head.codesStep),
                head.scales + offsetOf(down, head.scalesRow) + offsetOf(across, head.scalesStep),
                0,
                0,
                false};
  addMatrix(table, head, matrix, cell);
  return {cell.plain, cell.codes, cell.scale};
}

/** What a value is divided by, so that most quotients take a product and two corrections. */
struct Quotients {
  float by, inverse;
};

/** Whether the corrections are exact: numbers of 16 bits over a divisor far from both ends. */
template <DType type>
TENSORFERRY_DEVICE bool isCorrected(float by) {
  return type != DType::Float32 && by >= 0x1p-60f && by <= 0x1p15f;
}

/** The quotient as one rounding gives it: by trial for every pair of a divisor and a value of up to 11 binary digits. */
template <DType type>
TENSORFERRY_DEVICE float signedQuotientOf(float value, const Quotients& over) {
  if constexpr (type == DType::Float32) {
    return value / over.by;
  } else {
    const float near = value * over.inverse;
    return multiplyAdd(-multiplyAdd(near, over.by, -value), over.inverse, near);
  }
}

/** The same, but that minus zero becomes zero. */
template <DType type>
TENSORFERRY_DEVICE float quotientOf(float value, const Quotients& over) {
  if constexpr (type == DType::Float32) {
    return value / over.by + 0.0f;
  } else {
    const float near = value * over.inverse;
    return multiplyAdd(multiplyAdd(-near, over.by, value), over.inverse, near);
  }
}

TENSORFERRY_DEVICE bool isWideType(uint32_t type) { return type == static_cast<uint32_t>(DType::Float32); }

/** Which vector of a tile a thread holds in a round: row and place in it. */
struct TileVector {
  uint32_t row, at;
};

TENSORFERRY_DEVICE TileVector tileVector(const FormRecord& head, uint32_t round, uint32_t thread) {
  const uint32_t number = round * formThreads + thread;
  const uint32_t row = divide(number, head.byCellsOfBlock.multiplier, head.byCellsOfBlock.shift);
  return {row, number - row * head.cellsOfBlock};
}

TENSORFERRY_DEVICE uint64_t addressOf(const FormRecord& head, const TilePlace& tile, const TileVector& own) {
  return tile.plain + offsetOf(own.row, head.plainRow) + own.at * sizeof(Vector);
}

/** The vectors of a tile that a thread holds, round by round, as addresses on one side. */
struct TileWalk {
  uint64_t address;
  /** Bytes from one round to the next, and more where that leaves the row. */
  int64_t step, wrap;
  uint32_t row, at, rowStep, atStep, cells;

  TENSORFERRY_DEVICE void next() {
    row += rowStep;
    address += static_cast<uint64_t>(step);
    if (atStep == 0) return;
    at += atStep;
    if (at < cells) return;
    at -= cells;
    row++;
    address += static_cast<uint64_t>(wrap);
  }
};

/** `size`: bytes of a vector's elements on this side. */
TENSORFERRY_DEVICE TileWalk walkOf(const FormRecord& head, uint64_t tile, int64_t rowBytes, uint32_t size,
                                   uint32_t thread) {
  const uint32_t cells = head.cellsOfBlock, multiplier = head.byCellsOfBlock.multiplier;
  const uint32_t shift = head.byCellsOfBlock.shift;
  const uint32_t row = divide(thread, multiplier, shift), at = thread - row * cells;
  const uint32_t rowStep = divide(formThreads, multiplier, shift), atStep = formThreads - rowStep * cells;
  return {tile + offsetOf(row, rowBytes) + at * size,
          static_cast<int64_t>(offsetOf(rowStep, rowBytes) + atStep * size),
          rowBytes - static_cast<int64_t>(cells * size),
          row,
          at,
          rowStep,
          atStep,
          cells};
}

/** The bits of the largest magnitude of a thread's vectors, the first of which it holds. */
template <DType type>
TENSORFERRY_DEVICE uint32_t loadTile(Vector (&held)[tileRounds], const FormRecord& head, const TilePlace& tile,
                                     uint32_t thread) {
  const uint32_t rows = head.blockRows;
  TileWalk walk = walkOf(head, tile.plain, head.plainRow, sizeof(Vector), thread);
  TENSORFERRY_UNROLL
  for (uint32_t round = 0; round < tileRounds; round++) {
    held[round] = Vector{0, 0, 0, 0};
    if (walk.row < rows) held[round] = loadPassing<Vector>(walk.address);
    walk.next();
  }
  Largest<type> largest;
  TENSORFERRY_UNROLL
  for (uint32_t round = 0; round < tileRounds; round++) largest.add(held[round]);
  TENSORFERRY_KEEP_LOOP
  for (; walk.row < rows; walk.next()) largest.add(load<Vector>(walk.address));
  return largest.bits();
}

/** The first four elements as codes, or the second four. */
template <DType type, bool isProduct>
TENSORFERRY_DEVICE uint32_t encodeFour(const Vector& vector, uint32_t which, const Quotients& over) {
  float values[4];
  if constexpr (type == DType::Float32) {
    values[0] = floatOf(vector.x);
    values[1] = floatOf(vector.y);
    values[2] = floatOf(vector.z);
    values[3] = floatOf(vector.w);
  } else {
    valuesOfWord<type>(which == 0 ? vector.x : vector.z, values[0], values[1]);
    valuesOfWord<type>(which == 0 ? vector.y : vector.w, values[2], values[3]);
  }
  TENSORFERRY_UNROLL
  for (uint32_t i = 0; i < 4; i++)
    values[i] = isProduct ? values[i] * over.by : signedQuotientOf<type>(values[i], over);
  return encodePair(values[0], values[1]) | encodePair(values[2], values[3]) << 16;
}

template <DType type, bool isProduct>
TENSORFERRY_DEVICE void storeTileVector(const Vector& vector, uint64_t codes, const Quotients& over) {
  using Data = typename Sharing<type>::Data;
  Data data = encodeFour<type, isProduct>(vector, 0, over);
  if constexpr (type != DType::Float32)
    data |= static_cast<uint64_t>(encodeFour<type, isProduct>(vector, 1, over)) << 32;
  storePassing(codes, data);
}

template <DType type, bool isProduct>
TENSORFERRY_DEVICE void storeTileAs(const Vector (&held)[tileRounds], const FormRecord& head, const TilePlace& tile,
                                    uint32_t thread, const Quotients& over) {
  const uint32_t rows = head.blockRows;
  TileWalk walk = walkOf(head, tile.codes, head.codesRow, sizeof(typename Sharing<type>::Data), thread);
  TENSORFERRY_UNROLL
  for (uint32_t round = 0; round < tileRounds; round++) {
    if (walk.row < rows) storeTileVector<type, isProduct>(held[round], walk.address, over);
    walk.next();
  }
  TENSORFERRY_KEEP_LOOP
  for (uint32_t round = tileRounds; walk.row < rows; round++) {
    const Vector vector = load<Vector>(addressOf(head, tile, tileVector(head, round, thread)));
    storeTileVector<type, isProduct>(vector, walk.address, over);
    walk.next();
  }
}

/** One by one, and read again: rules and numbers that have no faster way. */
template <DType type>
TENSORFERRY_DEVICE void storeTileSlowly(const FormRecord& head, const TilePlace& tile, uint32_t thread,
                                        Encoding encoding, float factor) {
  constexpr uint32_t size = Sharing<type>::size, elements = Sharing<type>::held;
  TENSORFERRY_KEEP_LOOP
  for (uint32_t round = 0;; round++) {
    const TileVector own = tileVector(head, round, thread);
    if (own.row >= head.blockRows) return;
    TENSORFERRY_KEEP_LOOP
    for (uint32_t i = own.at * elements; i < (own.at + 1) * elements; i++) {
      const float value =
          loadPlain(static_cast<uint32_t>(type), tile.plain + offsetOf(own.row, head.plainRow) + i * size, size);
      const uint32_t code = codeBy(encoding, value, factor, KnownSource<type>{});
      store<uint8_t>(tile.codes + offsetOf(own.row, head.codesRow) + i, static_cast<uint8_t>(code));
    }
  }
}

template <DType type>
TENSORFERRY_DEVICE void encodeTile(const Vector (&held)[tileRounds], const FormRecord& head, const TilePlace& tile,
                                   uint32_t thread, const BlockScaling& scaling) {
  const Encoding encoding = encodingOf(static_cast<QuantizeRule>(head.rule));
  const float factor = scaling.factor;
  if (encoding == Encoding::Float8Product) {
    storeTileAs<type, true>(held, head, tile, thread, {factor, 0.0f});
  } else if (encoding == Encoding::Float8Quotient && (type == DType::Float32 || isCorrected<type>(factor))) {
    storeTileAs<type, false>(held, head, tile, thread, {factor, 1.0f / factor});
  } else {
    storeTileSlowly<type>(head, tile, thread, encoding, factor);
  }
  if (thread == 0) storeScale(head, tile.scale, scaling.stored);
}

/** Only the rules that have such blocks. */
template <DType type>
TENSORFERRY_DEVICE BlockScaling tileScaling(const FormRecord& head, uint32_t largest) {
  const float amax = floatOf(bitsOfMagnitude<type>(largest));
  switch (static_cast<QuantizeRule>(head.rule)) {
#define TENSORFERRY_TILE_SCALING(NAME) \
  case QuantizeRule::NAME:             \
    return fp8Scaling<QuantizeRule::NAME>(amax, KnownSource<type>{});
    TENSORFERRY_FOR_EACH_FP8_RULE(TENSORFERRY_TILE_SCALING)
#undef TENSORFERRY_TILE_SCALING
    default:
      return {};
  }
}

template <DType type>
TENSORFERRY_DEVICE void runTile(const FormRecord& head, const TilePlace& tile, uint32_t thread, uint32_t turn) {
  Vector held[tileRounds];
#ifdef TENSORFERRY_ON_DEVICE
  const uint32_t own = loadTile<type>(held, head, tile, thread);
  const uint32_t largest = largestOfThreads<formThreads>(own, thread, turn);
  encodeTile<type>(held, head, tile, thread, tileScaling<type>(head, largest));
#else
  static_cast<void>(turn);
  if (thread != 0) return;
  uint32_t largest = 0;
  for (uint32_t each = 0; each < formThreads; each++) {
    const uint32_t own = loadTile<type>(held, head, tile, each);
    largest = own > largest ? own : largest;
  }
  for (uint32_t each = 0; each < formThreads; each++) {
    loadTile<type>(held, head, tile, each);
    encodeTile<type>(held, head, tile, each, tileScaling<type>(head, largest));
  }
#endif
}

template <DType type>
TENSORFERRY_DEVICE void runTilesOf(const FormParameter& parameter, const Place& place) {
  const FormRecord& head = parameter.record;
  uint32_t turn = 0;
  TENSORFERRY_KEEP_LOOP
  for (uint32_t at = place.block; at < head.count; at += place.blocks) {
    runTile<type>(head, tileAt(parameter.table, head, at), place.thread, turn);
    turn ^= 1;
  }
}

TENSORFERRY_DEVICE void runTiles(const FormParameter& parameter, const Place& place) {
  TENSORFERRY_FOR_PLAIN_TYPE(parameter.record.plainType, runTilesOf, parameter, place)
}

}  // namespace
}  // namespace tensorferry::gpu
