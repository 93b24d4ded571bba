// SPDX-License-Identifier: Apache-2.0
/*
 * Finds regions of one batch that would race: a destination that meets another region of the batch. Pure; any thread.
 *
 * Only dense regions are judged, exactly; strided ones may interleave, and deciding that costs more than the copy. The same
 * region twice is legal.
 */
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace tensorferry {

/** Bytes `start` to before `end`. */
struct Span {
  uint64_t start, end;
  bool operator==(const Span&) const = default;
  auto operator<=>(const Span&) const = default;
};

/** Address of a byte that is written and also part of another region. Sorts its arguments. */
inline std::optional<uint64_t> findOverlap(std::vector<Span>& written, std::vector<Span>& read) {
  for (auto* spans : {&written, &read})
    if (!std::is_sorted(spans->begin(), spans->end())) std::sort(spans->begin(), spans->end());
  for (size_t i = 1; i < written.size(); i++)
    if (written[i] != written[i - 1] && written[i].start < written[i - 1].end) return written[i].start;
  size_t first = 0;
  for (const Span& source : read) {
    while (first < written.size() && written[first].end <= source.start) first++;
    for (size_t i = first; i < written.size() && written[i].start < source.end; i++)
      if (written[i] != source) return std::max(written[i].start, source.start);
  }
  return std::nullopt;
}

}  // namespace tensorferry
