// SPDX-License-Identifier: Apache-2.0
/*
 * Comparisons: how many bytes of two regions differ, and which is the first. Reads only.
 */
#pragma once

#include "device.h"
#include "locate.h"
#include "parameters.h"

namespace tensorferry::gpu {
namespace {

/** Adds the bytes in which two words differ, the first of which lies at `position`. */
TENSORFERRY_DEVICE void countBytes(uint64_t a, uint64_t b, uint64_t position, Difference& found) {
  uint64_t differing = a ^ b;
  if (differing == 0) return;
  TENSORFERRY_KEEP_LOOP
  for (uint32_t i = 0; i < 8; i++, differing >>= 8) {
    if ((differing & 0xff) == 0) continue;
    found.bytes++;
    if (position + i < found.first) found.first = position + i;
  }
}

TENSORFERRY_DEVICE uint64_t pair(uint32_t low, uint32_t high) { return static_cast<uint64_t>(high) << 32 | low; }

template <typename T>
TENSORFERRY_DEVICE void comparePieces(uint64_t record, const UnitRecord& unit, const Place& place, Difference& found) {
  const MoveRecord& move = view<MoveRecord>(record);
  TENSORFERRY_KEEP_LOOP
  for (uint32_t i = place.thread; i < unit.count; i += inFlight * blockThreads) {
    uint32_t index[inFlight];
    uint64_t to[inFlight], from[inFlight];
    T a[inFlight], b[inFlight];
    TENSORFERRY_UNROLL
    for (uint32_t k = 0; k < inFlight; k++) {
      index[k] = unit.begin + least(i + k * blockThreads, unit.count - 1);
      to[k] = move.destination;
      from[k] = move.source;
    }
    locate(record + sizeof(MoveRecord), move.dimensionCount, index, to, from);
    TENSORFERRY_UNROLL
    for (uint32_t k = 0; k < inFlight; k++) {
      a[k] = load<T>(to[k]);
      b[k] = load<T>(from[k]);
    }
    TENSORFERRY_UNROLL
    for (uint32_t k = 0; k < inFlight; k++) {
      if (i + k * blockThreads >= unit.count) continue;
      const uint64_t position = move.length + static_cast<uint64_t>(unit.begin + i + k * blockThreads) * sizeof(T);
      if constexpr (sizeof(T) == 16) {
        countBytes(pair(a[k].x, a[k].y), pair(b[k].x, b[k].y), position, found);
        countBytes(pair(a[k].z, a[k].w), pair(b[k].z, b[k].w), position + 8, found);
      } else {
        countBytes(a[k], b[k], position, found);
      }
    }
  }
}

TENSORFERRY_DEVICE void comparePieces(uint64_t record, const UnitRecord& unit, const Place& place, Difference& found) {
  switch (view<MoveRecord>(record).destinationWidth) {
    case 1:
      return comparePieces<uint8_t>(record, unit, place, found);
    case 2:
      return comparePieces<uint16_t>(record, unit, place, found);
    case 4:
      return comparePieces<uint32_t>(record, unit, place, found);
    case 8:
      return comparePieces<uint64_t>(record, unit, place, found);
    default:
      return comparePieces<Vector>(record, unit, place, found);
  }
}

}  // namespace
}  // namespace tensorferry::gpu
