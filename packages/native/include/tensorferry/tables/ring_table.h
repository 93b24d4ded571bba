// SPDX-License-Identifier: Apache-2.0
/*
 * The parameter of a launch of a replay ring, as RingProgram.ts makes it, checked. Pure; any thread.
 */
#pragma once

#include "../replay/ring_words.h"

namespace tensorferry {

/** What is wrong with the numbers of a parameter; null where nothing is. That addresses are valid is the caller's promise. */
inline const char* ringFault(const RingParameter& p) {
  if (p.step == RingStep::None || static_cast<uint64_t>(p.step) >= ringStepCount) return "Unknown step of a ring.";
  if (p.capacity == 0 || p.capacity > 1ull << 31) return "A ring has 1 to 2^31 rows.";
  if (p.rowBytes == 0 || p.rowBytes >= 1ull << 31 || p.rowBytes % 8 != 0) return "Rows have a multiple of 8 bytes.";
  if (p.first >= 1ull << 53 || p.count2 > 1ull << 31) return "Rows have numbers below 2^53.";
  if (p.count > 1ull << 24 || p.window > 1ull << 16 || p.columns > 256) return "A batch is too large.";
  if (p.segments > mostRingSegments || p.segmentLength > 1ull << 20) return "A request has too many segments.";
  if (p.level > 8 || p.weight > 0xffffffffull) return "A weight or a level is too large.";
  const bool isSummed = p.step == RingStep::Sums || p.step == RingStep::Resum;
  if (isSummed && (p.level == 0 || p.level > ringLevels(p.capacity))) return "There is no such level.";
  if (p.step == RingStep::Gather && p.window == 0) return "A window has a row at least.";
  if (p.episodes > RingEpisodes::Cut || p.endOffset >= p.rowBytes) return "Episodes end at a byte of a row.";
  return nullptr;
}

}  // namespace tensorferry
