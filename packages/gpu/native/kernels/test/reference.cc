// SPDX-License-Identifier: Apache-2.0
/*
 * The naive reference: one element after another, as tensorferry/elements.h defines the types.
 */
#include <utility>

#include <tensorferry/elements.h>

#include "support.h"

namespace tensorferry::gpu::test {
namespace {

using CastElement = void (*)(void* to, const void* from);

template <DType toType, DType fromType>
void castElement(void* to, const void* from) {
  typename Element<fromType>::Stored stored;
  std::memcpy(&stored, from, sizeof stored);
  const auto cast = Element<toType>::encode(Element<fromType>::decode(stored));
  std::memcpy(to, &cast, sizeof cast);
}

/** Pairs of types are numbered by destination, then source. */
template <size_t... pairs>
CastElement castOf(size_t pair, std::index_sequence<pairs...>) {
  static constexpr CastElement casts[] = {
      castElement<static_cast<DType>(pairs / castableCount), static_cast<DType>(pairs % castableCount)>...};
  return casts[pair];
}

}  // namespace

void castNaively(uint8_t toType, void* to, uint8_t fromType, const void* from, size_t count) {
  const CastElement cast =
      castOf(toType * castableCount + fromType, std::make_index_sequence<castableCount * castableCount>());
  for (size_t i = 0; i < count; i++)
    cast(static_cast<uint8_t*>(to) + i * dtypeBytes[toType],
         static_cast<const uint8_t*>(from) + i * dtypeBytes[fromType]);
}

void moveNaively(const Move& move, int64_t shift) {
  uint64_t position[maxDimensions] = {};
  for (;;) {
    uint64_t to = move.destination + static_cast<uint64_t>(shift), from = move.source;
    for (size_t d = 0; d < move.dimensionCount; d++) {
      if (move.dimensions[d].length == 0) return;
      to += position[d] * static_cast<uint64_t>(move.dimensions[d].destinationStep);
      from += position[d] * static_cast<uint64_t>(move.dimensions[d].sourceStep);
    }
    if (move.kind == MoveKind::Fill) {
      std::memset(reinterpret_cast<void*>(to), static_cast<int>(move.source & 0xff), move.destinationSize);
    } else if (move.destinationType == move.sourceType) {
      std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), move.sourceSize);
    } else {
      castNaively(move.destinationType, reinterpret_cast<void*>(to), move.sourceType,
                  reinterpret_cast<const void*>(from), 1);
    }
    size_t d = move.dimensionCount;
    while (d > 0 && ++position[d - 1] == move.dimensions[d - 1].length) position[--d] = 0;
    if (d == 0) return;
  }
}

}  // namespace tensorferry::gpu::test
