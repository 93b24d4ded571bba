// SPDX-License-Identifier: Apache-2.0
/*
 * From an index to addresses: where the dimensions of a record put it. Pure.
 *
 * Invariant: indices are below 2 * maxIndex, so that 32 bits hold every step of a division. Several indices are located at
 * once, so that each dimension is read once for all of them.
 */
#pragma once

#include "device.h"
#include "parameters.h"

namespace tensorferry::gpu {
namespace {

/** Loads that a thread has under way at once. */
inline constexpr uint32_t inFlight = 4;

TENSORFERRY_DEVICE uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

TENSORFERRY_DEVICE uint32_t divide(uint32_t number, uint32_t multiplier, uint32_t shift) {
  const uint32_t high = static_cast<uint32_t>((static_cast<uint64_t>(number) * multiplier) >> 32);
  return (high + number) >> shift;
}

TENSORFERRY_DEVICE uint64_t offsetOf(uint32_t position, int64_t step) {
  return static_cast<uint64_t>(position) * static_cast<uint64_t>(step);
}

/** Adds to the addresses what the indices mean in `count` dimensions that begin at `dimensions`. Uses the indices up. */
template <uint32_t many>
TENSORFERRY_DEVICE void locate(uint64_t dimensions, uint32_t count, uint32_t (&index)[many], uint64_t (&to)[many],
                               uint64_t (&from)[many]) {
  TENSORFERRY_KEEP_LOOP
  for (uint32_t d = 0; d < count; d++) {
    const uint64_t at = dimensions + d * sizeof(DimensionRecord);
    const int64_t destinationStep = load<int64_t>(at + 16), sourceStep = load<int64_t>(at + 24);
    const bool isLast = d + 1 == count;  // what is left is the position in it
    const uint32_t length = load<uint32_t>(at), multiplier = load<uint32_t>(at + 8), shift = load<uint32_t>(at + 12);
    TENSORFERRY_UNROLL
    for (uint32_t k = 0; k < many; k++) {
      const uint32_t rest = isLast ? 0 : divide(index[k], multiplier, shift);
      const uint32_t position = index[k] - rest * length;
      to[k] += offsetOf(position, destinationStep);
      from[k] += offsetOf(position, sourceStep);
      index[k] = rest;
    }
  }
}

}  // namespace
}  // namespace tensorferry::gpu
