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

TENSORFERRY_DEVICE TilePlace tileAt(uint64_t record, const FormRecord& head, uint32_t index) {
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
  addMatrix(record, head, matrix, cell);
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

/**
 * The quotient as one rounding gives it, but that minus zero becomes zero: by trial for every pair of a divisor and a value
 * of up to 11 binary digits.
 */
template <DType type>
TENSORFERRY_DEVICE float quotientOf(float value, const Quotients& over) {
  if constexpr (type == DType::Float32) {
    return value / over.by;
  } else {
    const float near = value * over.inverse;
    return multiplyAdd(multiplyAdd(-near, over.by, value), over.inverse, near);
  }
}

/** The bits of the larger magnitude so far, by the size of elements. */
TENSORFERRY_DEVICE uint32_t largestWith(uint32_t largest, const Vector& vector, bool isWide) {
  const uint32_t own = isWide ? largestOfVector<DType::Float32>(vector) : largestOfVector<DType::BFloat16>(vector);
  return own > largest ? own : largest;
}

TENSORFERRY_DEVICE bool isWideType(uint32_t type) { return type == static_cast<uint32_t>(DType::Float32); }

/** That magnitude as a number. */
TENSORFERRY_DEVICE float magnitudeOf(uint32_t type, uint32_t largest) {
  if (isWideType(type)) return floatOf(bitsOfMagnitude<DType::Float32>(largest));
  return type == static_cast<uint32_t>(DType::BFloat16) ? floatOf(bitsOfMagnitude<DType::BFloat16>(largest))
                                                        : floatOf(bitsOfMagnitude<DType::Float16>(largest));
}

/** Which vector of a tile a thread holds in a round: row and place in it. */
struct TileVector {
  uint32_t row, at;
};

TENSORFERRY_DEVICE TileVector tileVector(const FormRecord& head, uint32_t round, uint32_t thread) {
  const uint32_t number = round * blockThreads + thread;
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
    at += atStep;
    address += static_cast<uint64_t>(step);
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
  const uint32_t rowStep = divide(blockThreads, multiplier, shift), atStep = blockThreads - rowStep * cells;
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
TENSORFERRY_DEVICE uint32_t loadTile(Vector (&held)[tileRounds], const FormRecord& head, const TilePlace& tile,
                                     uint32_t thread) {
  const bool isWide = isWideType(head.plainType);
  const uint32_t rows = head.blockRows;
  TileWalk walk = walkOf(head, tile.plain, head.plainRow, sizeof(Vector), thread);
  TENSORFERRY_UNROLL
  for (uint32_t round = 0; round < tileRounds; round++) {
    held[round] = Vector{0, 0, 0, 0};
    if (walk.row < rows) held[round] = loadPassing<Vector>(walk.address);
    walk.next();
  }
  uint32_t largest = 0;
  TENSORFERRY_UNROLL
  for (uint32_t round = 0; round < tileRounds; round++) largest = largestWith(largest, held[round], isWide);
  TENSORFERRY_KEEP_LOOP
  for (; walk.row < rows; walk.next()) largest = largestWith(largest, load<Vector>(walk.address), isWide);
  return largest;
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
  for (uint32_t i = 0; i < 4; i++) {
    const uint32_t sign = bitsOf(values[i]) & 0x80000000u;
    values[i] =
        isProduct ? values[i] * over.by : floatOf((bitsOf(quotientOf<type>(values[i], over)) & 0x7fffffffu) | sign);
  }
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

template <DType type>
TENSORFERRY_DEVICE void storeTile(const Vector (&held)[tileRounds], const FormRecord& head, const TilePlace& tile,
                                  uint32_t thread, bool isProduct, float factor) {
  if (isProduct) {
    storeTileAs<type, true>(held, head, tile, thread, {factor, 0.0f});
  } else {
    storeTileAs<type, false>(held, head, tile, thread, {factor, 1.0f / factor});
  }
}

/** One by one, and read again: rules and numbers that have no faster way. */
TENSORFERRY_DEVICE void storeTileSlowly(const FormRecord& head, const TilePlace& tile, uint32_t thread,
                                        Encoding encoding, float factor) {
  const uint32_t size = isWideType(head.plainType) ? 4 : 2, elements = sizeof(Vector) / size;
  TENSORFERRY_KEEP_LOOP
  for (uint32_t round = 0;; round++) {
    const TileVector own = tileVector(head, round, thread);
    if (own.row >= head.blockRows) return;
    TENSORFERRY_KEEP_LOOP
    for (uint32_t i = own.at * elements; i < (own.at + 1) * elements; i++) {
      const float value = loadPlain(head.plainType, tile.plain + offsetOf(own.row, head.plainRow) + i * size, size);
      const uint32_t code = codeBy(encoding, value, factor, StatedSource{static_cast<DType>(head.plainType)});
      store<uint8_t>(tile.codes + offsetOf(own.row, head.codesRow) + i, static_cast<uint8_t>(code));
    }
  }
}

TENSORFERRY_DEVICE void encodeTile(const Vector (&held)[tileRounds], const FormRecord& head, const TilePlace& tile,
                                   uint32_t thread, const BlockScaling& scaling) {
  const Encoding encoding = encodingOf(static_cast<QuantizeRule>(head.rule));
  const bool isProduct = encoding == Encoding::Float8Product;
  const bool isQuotient = encoding == Encoding::Float8Quotient &&
                          (isWideType(head.plainType) || isCorrected<DType::BFloat16>(scaling.factor));
  if (isProduct || isQuotient) {
    TENSORFERRY_FOR_PLAIN_TYPE(head.plainType, storeTile, held, head, tile, thread, isProduct, scaling.factor)
  } else {
    storeTileSlowly(head, tile, thread, encoding, scaling.factor);
  }
  if (thread == 0) storeScale(head, tile.scale, scaling.stored);
}

/** Only the rules that have such blocks. */
TENSORFERRY_DEVICE BlockScaling tileScaling(const FormRecord& head, uint32_t largest) {
  const float amax = magnitudeOf(head.plainType, largest);
  const StatedSource source{static_cast<DType>(head.plainType)};
  switch (static_cast<QuantizeRule>(head.rule)) {
#define TENSORFERRY_TILE_SCALING(NAME) \
  case QuantizeRule::NAME:             \
    return fp8Scaling<QuantizeRule::NAME>(amax, source);
    TENSORFERRY_FOR_EACH_FP8_RULE(TENSORFERRY_TILE_SCALING)
#undef TENSORFERRY_TILE_SCALING
    default:
      return {};
  }
}

TENSORFERRY_DEVICE void runTile(const FormRecord& head, const TilePlace& tile, uint32_t thread, uint32_t turn) {
  Vector held[tileRounds];
#ifdef TENSORFERRY_ON_DEVICE
  const uint32_t largest = largestOfThreads(loadTile(held, head, tile, thread), thread, turn);
  encodeTile(held, head, tile, thread, tileScaling(head, largest));
#else
  static_cast<void>(turn);
  if (thread != 0) return;
  uint32_t largest = 0;
  for (uint32_t each = 0; each < blockThreads; each++) {
    const uint32_t own = loadTile(held, head, tile, each);
    largest = own > largest ? own : largest;
  }
  for (uint32_t each = 0; each < blockThreads; each++) {
    loadTile(held, head, tile, each);
    encodeTile(held, head, tile, each, tileScaling(head, largest));
  }
#endif
}

TENSORFERRY_DEVICE void runTiles(uint64_t record, const FormRecord& head, const Place& place) {
  uint32_t turn = 0;
  TENSORFERRY_KEEP_LOOP
  for (uint32_t at = place.block; at < head.count; at += place.blocks) {
    const TilePlace tile = tileAt(record, head, at);
    runTile(head, tile, place.thread, turn);
    turn ^= 1;
  }
}

}  // namespace
}  // namespace tensorferry::gpu
