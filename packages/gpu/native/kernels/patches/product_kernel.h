// SPDX-License-Identifier: Apache-2.0
/*
 * Sums of a base and a product of two narrow matrices: a thread has a few neighbours of a few rows, and goes through all ranks.
 *
 * Invariant: the bits are those of hosts. A product of two float32 numbers is exact in float64, so only the order of the ranks
 * matters, and that is theirs.
 */
#pragma once

#include "../device.h"
#include "../elements_of_four.h"
#include "../locate.h"
#include "../parameters.h"
#include "../quantize_kernel.h"

namespace tensorferry::gpu {
namespace {

/** Up to four neighbours of a row as float32; those beyond `count` are zero. */
template <DType type>
TENSORFERRY_DEVICE void loadNeighbours(float (&values)[four], uint64_t address, int64_t step, uint32_t width,
                                       uint32_t count) {
  constexpr uint32_t size = Sharing<type>::size;
  uint32_t words[8] = {};
  if (count == four) {
    gatherFour<size>(words, address, 0, step, width);
  } else {
    TENSORFERRY_UNROLL
    for (uint32_t k = 0; k < four; k++)
      if (k < count) setElement<size>(words, k, loadElement<size>(address + offsetOf(k, step), width));
  }
  TENSORFERRY_UNROLL
  for (uint32_t k = 0; k < four; k++) values[k] = k < count ? valueOf<type>(words, k) : 0.0f;
}

template <DType type>
TENSORFERRY_DEVICE void loadOneFactor(float& value, uint64_t address, uint32_t width) {
  uint32_t words[8] = {};
  setElement<Sharing<type>::size>(words, 0, loadElement<Sharing<type>::size>(address, width));
  value = valueOf<type>(words, 0);
}

template <DType type>
TENSORFERRY_DEVICE void storeSums(const ProductRecord& head, uint64_t destination, uint64_t base,
                                  const double (&sums)[four], uint32_t count) {
  constexpr uint32_t size = Sharing<type>::size;
  float values[four];
  loadNeighbours<type>(values, base, head.baseSteps[1], head.baseWidth, count);
  uint32_t words[8] = {};
  TENSORFERRY_UNROLL
  for (uint32_t k = 0; k < four; k++) {
    const float scaled = static_cast<float>(sums[k]) * head.scale;
    const auto stored = Element<type>::encode(values[k] + scaled);
    if constexpr (size == 4) {
      words[k] = bitsOf(stored);
    } else {
      setElement<2>(words, k, stored);
    }
  }
  if (count == four) return scatterFour<size>(words, destination, 0, head.destinationSteps[1], head.destinationWidth);
  TENSORFERRY_UNROLL
  for (uint32_t k = 0; k < four; k++)
    if (k < count)
      storeElement<size>(destination + offsetOf(k, head.destinationSteps[1]), head.destinationWidth,
                         elementOf<size>(words, k));
}

/** The columns from one on, of some rows: the factor's columns are read once for all of them. */
template <DType factor>
TENSORFERRY_DEVICE void addTile(const ProductRecord& head, uint32_t row, uint32_t column) {
  const uint32_t columns = least(four, head.columns - column), rows = least(productRows, head.rows - row);
  double sums[productRows][four] = {};
  TENSORFERRY_KEEP_LOOP
  for (uint32_t r = 0; r < head.rank; r++) {
    float along[four];
    loadNeighbours<factor>(along, head.a + offsetOf(r, head.aSteps[0]) + offsetOf(column, head.aSteps[1]),
                           head.aSteps[1], head.aWidth, columns);
    TENSORFERRY_UNROLL
    for (uint32_t i = 0; i < productRows; i++) {
      float across;
      loadOneFactor<factor>(
          across, head.b + offsetOf(least(row + i, head.rows - 1), head.bSteps[0]) + offsetOf(r, head.bSteps[1]),
          head.bWidth);
      TENSORFERRY_UNROLL
      for (uint32_t k = 0; k < four; k++) sums[i][k] = addProductOf(sums[i][k], across, along[k]);
    }
  }
  TENSORFERRY_UNROLL
  for (uint32_t i = 0; i < productRows; i++) {
    if (i >= rows) continue;
    const uint64_t destination =
        head.destination + offsetOf(row + i, head.destinationSteps[0]) + offsetOf(column, head.destinationSteps[1]);
    const uint64_t base = head.base + offsetOf(row + i, head.baseSteps[0]) + offsetOf(column, head.baseSteps[1]);
    TENSORFERRY_FOR_PLAIN_TYPE(head.type, storeSums, head, destination, base, sums[i], columns)
  }
}

TENSORFERRY_DEVICE void runProducts(const ProductParameter& parameter, const Place& place) {
  const ProductRecord& head = view<ProductRecord>(parameter.record);
  const uint32_t across = (head.columns + four - 1) / four;
  TENSORFERRY_KEEP_LOOP
  for (uint64_t at = static_cast<uint64_t>(place.block) * blockThreads + place.thread; at < head.tiles;
       at += static_cast<uint64_t>(place.blocks) * blockThreads) {
    const uint32_t row = static_cast<uint32_t>(at / across), column = static_cast<uint32_t>(at % across);
    TENSORFERRY_FOR_PLAIN_TYPE(head.factorType, addTile, head, row * productRows, column * four)
  }
}

}  // namespace
}  // namespace tensorferry::gpu
