// SPDX-License-Identifier: Apache-2.0
/*
 * Strided copies and casts by the processor, for what no copy command can do. Pure; any thread.
 */
#pragma once

#include <tensorferry/moves.h>

namespace tensorferry::xpu {

/** Does a copy whose both sides the host can touch, at other addresses than the move's own. */
void moveOnHost(const Move& move, uint8_t* destination, const uint8_t* source);

/** Sets every byte of the destination's elements. */
void fillOnHost(const Move& move, uint8_t* destination, uint8_t byte);

/** Calls `body(destination offset, source offset, bytes)` for every run that is contiguous on both sides. */
template <typename Body>
bool eachRun(const Move& move, Body body) {
  size_t outer = move.dimensionCount;
  uint64_t run = move.destinationSize;
  if (outer > 0 && move.dimensions[outer - 1].destinationStep == move.destinationSize &&
      move.dimensions[outer - 1].sourceStep == move.sourceSize) {
    outer--;
    run *= move.dimensions[outer].length;
  }
  std::array<uint64_t, maxDimensions> at{};
  int64_t destination = 0, source = 0;
  for (;;) {
    if (!body(destination, source, run)) return false;
    size_t d = outer;
    for (; d > 0; d--) {
      const Dimension& dimension = move.dimensions[d - 1];
      destination += dimension.destinationStep;
      source += dimension.sourceStep;
      if (++at[d - 1] < dimension.length) break;
      destination -= dimension.destinationStep * static_cast<int64_t>(dimension.length);
      source -= dimension.sourceStep * static_cast<int64_t>(dimension.length);
      at[d - 1] = 0;
    }
    if (d == 0) return true;
  }
}

}  // namespace tensorferry::xpu
