// SPDX-License-Identifier: Apache-2.0
/*
 * See host_moves.h. One loop over the innermost dimension per pair of types.
 */
#include "host_moves.h"

#include <cstring>
#include <utility>

#include <tensorferry/elements.h>

namespace tensorferry::xpu {
namespace {

using Line = void (*)(uint8_t*, int64_t, const uint8_t*, int64_t, uint64_t);

template <typename Stored>
void copyLine(uint8_t* to, int64_t toStep, const uint8_t* from, int64_t fromStep, uint64_t count) {
  for (uint64_t i = 0; i < count; i++, to += toStep, from += fromStep) std::memcpy(to, from, sizeof(Stored));
}

template <uint8_t to, uint8_t from>
void castLine(uint8_t* destination, int64_t toStep, const uint8_t* source, int64_t fromStep, uint64_t count) {
  using To = Element<static_cast<DType>(to)>;
  using From = Element<static_cast<DType>(from)>;
  for (uint64_t i = 0; i < count; i++, destination += toStep, source += fromStep) {
    typename From::Stored stored;
    std::memcpy(&stored, source, sizeof stored);
    const typename To::Stored result = To::encode(From::decode(stored));
    std::memcpy(destination, &result, sizeof result);
  }
}

template <uint8_t to, size_t... from>
constexpr std::array<Line, castableCount> castsTo(std::index_sequence<from...>) {
  return {castLine<to, from>...};
}
template <size_t... to>
constexpr std::array<std::array<Line, castableCount>, castableCount> allCasts(std::index_sequence<to...>) {
  return {castsTo<to>(std::make_index_sequence<castableCount>{})...};
}
constexpr auto casts = allCasts(std::make_index_sequence<castableCount>{});

Line lineOf(const Move& move) {
  if (move.destinationType != move.sourceType) return casts[move.destinationType][move.sourceType];
  switch (move.destinationSize) {
    case 1:
      return copyLine<uint8_t>;
    case 2:
      return copyLine<uint16_t>;
    case 4:
      return copyLine<uint32_t>;
    default:
      return copyLine<uint64_t>;
  }
}

}  // namespace

void moveOnHost(const Move& move, uint8_t* destination, const uint8_t* source) {
  if (move.destinationType == move.sourceType && move.dimensionCount > 0 &&
      move.dimensions[move.dimensionCount - 1].destinationStep == move.destinationSize &&
      move.dimensions[move.dimensionCount - 1].sourceStep == move.sourceSize) {
    eachRun(move, [&](int64_t to, int64_t from, uint64_t bytes) {
      std::memmove(destination + to, source + from, bytes);
      return true;
    });
    return;
  }
  const Line line = lineOf(move);
  // The innermost dimension is the line's own; the others are walked with it taken out.
  Move outer = move;
  const Dimension inner = move.dimensionCount == 0 ? Dimension{1, 0, 0} : move.dimensions[--outer.dimensionCount];
  outer.destinationSize = 0;  // no run is contiguous: every step is a call
  eachRun(outer, [&](int64_t to, int64_t from, uint64_t) {
    line(destination + to, inner.destinationStep, source + from, inner.sourceStep, inner.length);
    return true;
  });
}

void fillOnHost(const Move& move, uint8_t* destination, uint8_t byte) {
  Move both = move;
  both.sourceSize = both.destinationSize;
  for (size_t d = 0; d < both.dimensionCount; d++) both.dimensions[d].sourceStep = both.dimensions[d].destinationStep;
  eachRun(both, [&](int64_t to, int64_t, uint64_t bytes) {
    std::memset(destination + to, byte, bytes);
    return true;
  });
}

}  // namespace tensorferry::xpu
