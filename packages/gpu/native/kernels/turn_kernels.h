// SPDX-License-Identifier: Apache-2.0
/*
 * Copies that turn a matrix: one side is dense along one dimension, the other side along another. A thread reads a square of
 * elements by rows and writes it by columns; its registers turn it.
 *
 * Invariant: squares are whole, and every row of them is 16 aligned bytes on either side.
 */
#pragma once

#include "device.h"
#include "locate.h"
#include "parameters.h"

namespace tensorferry::gpu {
namespace {

/** Words of a row of a square. */
struct Row {
  uint32_t words[4];
};

TENSORFERRY_DEVICE Row rowAt(uint64_t address) {
  const Vector vector = load<Vector>(address);
  return {{vector.x, vector.y, vector.z, vector.w}};
}

/** Two neighbours of a column of elements of two bytes. */
TENSORFERRY_DEVICE uint32_t pairOf(uint32_t low, uint32_t high, uint32_t half) {
  return half == 0 ? (low & 0xffff) | (high << 16) : (low >> 16) | (high & 0xffff0000u);
}

/** Steps within a square, as the record has them: read when they are needed, since registers are few. */
TENSORFERRY_DEVICE int64_t destinationStepOf(uint64_t within) { return load<int64_t>(within + 16); }
TENSORFERRY_DEVICE int64_t sourceStepOf(uint64_t within) { return load<int64_t>(within + 24); }

/** Eight by eight elements of two bytes, four columns at a time: all eight would need more registers than there are. */
TENSORFERRY_DEVICE void turnEights(uint64_t to, uint64_t from, uint64_t within) {
  const int64_t sourceStep = sourceStepOf(within), destinationStep = destinationStepOf(within);
  TENSORFERRY_KEEP_LOOP
  for (uint32_t side = 0; side < 2; side++) {
    uint64_t rows[8];
    TENSORFERRY_UNROLL
    for (uint32_t k = 0; k < 8; k++) rows[k] = load<uint64_t>(from + offsetOf(k, sourceStep));
    TENSORFERRY_UNROLL
    for (uint32_t j = 0; j < 4; j++) {
      const auto pair = [&](uint32_t k) {
        return pairOf(static_cast<uint32_t>(rows[k] >> (j / 2 * 32)),
                      static_cast<uint32_t>(rows[k + 1] >> (j / 2 * 32)), j % 2);
      };
      store<Vector>(to + offsetOf(j, destinationStep), {pair(0), pair(2), pair(4), pair(6)});
    }
    from += sizeof(uint64_t);
    to += offsetOf(4, destinationStep);
  }
}

/** Four by four elements of four bytes. */
TENSORFERRY_DEVICE void turnFours(uint64_t to, uint64_t from, uint64_t within) {
  const int64_t sourceStep = sourceStepOf(within), destinationStep = destinationStepOf(within);
  Row rows[4];
  TENSORFERRY_UNROLL
  for (uint32_t k = 0; k < 4; k++) rows[k] = rowAt(from + offsetOf(k, sourceStep));
  TENSORFERRY_UNROLL
  for (uint32_t j = 0; j < 4; j++)
    store<Vector>(to + offsetOf(j, destinationStep),
                  {rows[0].words[j], rows[1].words[j], rows[2].words[j], rows[3].words[j]});
}

/** Turns the squares of a unit. The dimension behind the record's own has the steps within a square. */
TENSORFERRY_DEVICE void moveTurns(uint64_t record, const UnitRecord& unit, const Place& place) {
  const MoveRecord& move = view<MoveRecord>(record);
  const uint64_t destination = move.destination, source = move.source;
  const uint32_t dimensionCount = move.dimensionCount;
  const bool isEights = move.destinationWidth == 2;
  const uint64_t within = record + sizeof(MoveRecord) + dimensionCount * sizeof(DimensionRecord);
  TENSORFERRY_KEEP_LOOP
  for (uint32_t i = place.thread; i < unit.count; i += blockThreads) {
    uint32_t index[1] = {unit.begin + i};
    uint64_t to[1] = {destination}, from[1] = {source};
    locate(record + sizeof(MoveRecord), dimensionCount, index, to, from);
    if (isEights) {
      turnEights(to[0], from[0], within);
    } else {
      turnFours(to[0], from[0], within);
    }
  }
}

}  // namespace
}  // namespace tensorferry::gpu
