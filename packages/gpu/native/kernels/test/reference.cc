// SPDX-License-Identifier: Apache-2.0
/*
 * The naive reference: one element after another, casts by the kernels of the host's backend.
 */
#include "../../../../backend-torch-copy/native/kernels.h"
#include "support.h"

// Not all of that backend: the table of its plainest instruction set.
namespace tensorferry::baseline {
extern const Kernels table;
}

namespace tensorferry::gpu::test {

void castOnHost(uint8_t toType, void* to, uint8_t fromType, const void* from, size_t count) {
  const Kernels& table = baseline::table;
  uint8_t wide[blockElements * 8];
  for (size_t done = 0; done < count; done += blockElements) {
    const size_t part = std::min(blockElements, count - done);
    table.load[fromType](wide, static_cast<const uint8_t*>(from) + done * dtypeBytes[fromType], dtypeBytes[fromType],
                         part);
    table.store[toType][static_cast<size_t>(wideOf(fromType))](static_cast<uint8_t*>(to) + done * dtypeBytes[toType],
                                                               dtypeBytes[toType], wide, part);
  }
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
      castOnHost(move.destinationType, reinterpret_cast<void*>(to), move.sourceType,
                 reinterpret_cast<const void*>(from), 1);
    }
    size_t d = move.dimensionCount;
    while (d > 0 && ++position[d - 1] == move.dimensions[d - 1].length) position[--d] = 0;
    if (d == 0) return;
  }
}

}  // namespace tensorferry::gpu::test
