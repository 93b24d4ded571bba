// SPDX-License-Identifier: Apache-2.0
/*
 * Sums of a base and a product of two narrow matrices. A block takes a tile of the product, and some ranks at a time: its
 * threads bring the factors' numbers, as float64, into memory that they share, since to convert one takes as long as four
 * sums. A thread has a few neighbours of a few rows.
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

/** Ranks whose factors a block holds at a time, and the pairs that they are. */
inline constexpr uint32_t heldRanks = 16, pairsAlong = productTileColumns / 2, pairsAcross = productTileRows / 2;
static_assert(heldRanks * (pairsAlong + pairsAcross) == sharedPairs);

/** Four neighbours as they lie in memory, or as many as there are and zeros. */
template <uint32_t size>
TENSORFERRY_DEVICE void loadNeighbours(uint32_t (&words)[8], bool isWide, uint64_t address, int64_t step,
                                       uint32_t width, uint32_t count) {
  if (isWide) {
    if (count > 0) loadFour<size>(words, address, 4 * size);
    return;
  }
  TENSORFERRY_UNROLL
  for (uint32_t k = 0; k < four; k++)
    setElement<size>(words, k, k < count ? loadElement<size>(address + offsetOf(k, step), width) : 0);
}

/**
 * Numbers of both factors that a tile needs of some ranks; those outside of the product are zero. Pairs are in the order in
 * which threads that read them together have them.
 */
template <DType type>
struct TileFactors {
  const ProductParameter& head;
  uint32_t row, column, rank, ranks;

  /** Where the pairs of columns of a rank begin that come first, and those that come second in what threads have. */
  TENSORFERRY_DEVICE static uint32_t alongAt(uint32_t r, uint32_t half) { return pairsAlong * r + teamThreads * half; }
  /** Where a pair of rows lies of a rank. */
  TENSORFERRY_DEVICE static uint32_t acrossAt(uint32_t r, uint32_t pair) { return heldRanks * (pairsAlong + pair) + r; }

  TENSORFERRY_DEVICE static uint32_t most(uint32_t length, uint32_t at) { return at < length ? length - at : 0; }

  TENSORFERRY_DEVICE void operator()(Pair* pairs, uint32_t thread) const {
    constexpr uint32_t size = Sharing<type>::size, teams = productThreads / teamThreads;
    const uint32_t lane = thread % teamThreads, c = column + four * lane;
    TENSORFERRY_UNROLL
    for (uint32_t r = thread / teamThreads; r < heldRanks; r += teams) {
      if (r >= ranks) continue;
      uint32_t words[8] = {};
      loadNeighbours<size>(words, head.isWideA != 0,
                           head.a + offsetOf(rank + r, head.aSteps[0]) + offsetOf(c, head.aSteps[1]), head.aSteps[1],
                           head.aWidth, most(head.columns, c));
      pairs[alongAt(r, 0) + lane] = {valueOf<type>(words, 0), valueOf<type>(words, 1)};
      pairs[alongAt(r, 1) + lane] = {valueOf<type>(words, 2), valueOf<type>(words, 3)};
    }
    // Ranks of a row follow one another in memory.
    constexpr uint32_t quads = heldRanks / four;
    static_assert(productThreads == quads * productTileRows);
    const uint32_t i = thread / quads, r = thread % quads * four;
    if (r >= ranks) return;
    uint32_t words[8] = {};
    if (row + i < head.rows)
      loadNeighbours<size>(words, head.isWideB != 0,
                           head.b + offsetOf(row + i, head.bSteps[0]) + offsetOf(rank + r, head.bSteps[1]),
                           head.bSteps[1], head.bWidth, ranks - r);
    TENSORFERRY_UNROLL
    for (uint32_t k = 0; k < four; k++) {
      Pair& pair = pairs[acrossAt(r + k, i / 2)];
      (i % 2 == 0 ? pair.first : pair.second) = valueOf<type>(words, k);
    }
  }
};

/** What a thread has of the base: its rows, four columns each, as they lie in memory. */
template <uint32_t size, bool isWide>
struct BaseRows {
  uint32_t words[productRows][size];

  TENSORFERRY_DEVICE void load(const ProductParameter& head, uint32_t row, uint32_t column, uint32_t columns) {
    uint64_t at = head.base + offsetOf(row, head.baseSteps[0]) + offsetOf(column, head.baseSteps[1]);
    TENSORFERRY_UNROLL
    for (uint32_t i = 0; i < productRows; i++, at += static_cast<uint64_t>(head.baseSteps[0])) {
      uint32_t held[8] = {};
      if (row + i < head.rows) loadNeighbours<size>(held, isWide, at, head.baseSteps[1], head.baseWidth, columns);
      TENSORFERRY_UNROLL
      for (uint32_t w = 0; w < size; w++) words[i][w] = held[w];
    }
  }
};

template <DType type, bool isWide>
TENSORFERRY_DEVICE void storeSums(const ProductParameter& head, uint32_t row, uint32_t column, uint32_t columns,
                                  const BaseRows<Sharing<type>::size, isWide>& base,
                                  const double (&sums)[productRows][four]) {
  constexpr uint32_t size = Sharing<type>::size;
  uint64_t to = head.destination + offsetOf(row, head.destinationSteps[0]) + offsetOf(column, head.destinationSteps[1]);
  TENSORFERRY_UNROLL
  for (uint32_t i = 0; i < productRows; i++, to += static_cast<uint64_t>(head.destinationSteps[0])) {
    if (row + i >= head.rows) continue;
    uint32_t from[8] = {}, words[8] = {};
    TENSORFERRY_UNROLL
    for (uint32_t w = 0; w < size; w++) from[w] = base.words[i][w];
    TENSORFERRY_UNROLL
    for (uint32_t k = 0; k < four; k++) {
      const float scaled = static_cast<float>(sums[i][k]) * head.scale;
      const auto stored = Element<type>::encode(valueOf<type>(from, k) + scaled);
      if constexpr (size == 4) {
        words[k] = bitsOf(stored);
      } else {
        setElement<2>(words, k, stored);
      }
    }
    if constexpr (isWide) {
      storeFour<size>(to, 4 * size, words);
    } else {
      TENSORFERRY_UNROLL
      for (uint32_t k = 0; k < four; k++)
        if (k < columns)
          storeElement<size>(to + offsetOf(k, head.destinationSteps[1]), head.destinationWidth,
                             elementOf<size>(words, k));
    }
  }
}

/** A thread's part of a tile. The base is under way while the product is summed, where registers are left for it. */
template <DType factor, uint32_t size, bool isWide>
TENSORFERRY_DEVICE void addTile(const ProductParameter& head, uint32_t tileRow, uint32_t tileColumn, uint32_t thread) {
  const uint32_t lane = thread % teamThreads, team = thread / teamThreads;
  const uint32_t row = tileRow + productRows * team, column = tileColumn + four * lane;
  const uint32_t columns = column < head.columns ? least(four, head.columns - column) : 0;
  constexpr bool isEarly = size == 2 && isWide;
  BaseRows<size, isWide> base;
  if constexpr (isEarly) base.load(head, row, column, columns);
  double sums[productRows][four] = {};
  TENSORFERRY_KEEP_LOOP
  for (uint32_t rank = 0; rank < head.rank; rank += heldRanks) {
    using Factors = TileFactors<factor>;
    const uint32_t ranks = least(heldRanks, head.rank - rank);
    const Pair* held = broughtTogether<productThreads>(thread, Factors{head, tileRow, tileColumn, rank, ranks});
    TENSORFERRY_KEEP_LOOP
    for (uint32_t r = 0; r < ranks; r++) {
      const Pair low = held[Factors::alongAt(r, 0) + lane], high = held[Factors::alongAt(r, 1) + lane];
      TENSORFERRY_UNROLL
      for (uint32_t i = 0; i < productRows; i += 2) {
        const Pair across = held[Factors::acrossAt(r, (productRows * team + i) / 2)];
        TENSORFERRY_UNROLL
        for (uint32_t j = 0; j < 2; j++) {
          const double factorOfRow = j == 0 ? across.first : across.second;
          sums[i + j][0] = addProductOf(sums[i + j][0], factorOfRow, low.first);
          sums[i + j][1] = addProductOf(sums[i + j][1], factorOfRow, low.second);
          sums[i + j][2] = addProductOf(sums[i + j][2], factorOfRow, high.first);
          sums[i + j][3] = addProductOf(sums[i + j][3], factorOfRow, high.second);
        }
      }
    }
  }
  if (columns == 0) return;
  if constexpr (!isEarly) base.load(head, row, column, columns);
  if constexpr (size == 4) {
    storeSums<DType::Float32, isWide>(head, row, column, columns, base, sums);
  } else if (static_cast<DType>(head.type) == DType::Float16) {
    storeSums<DType::Float16, isWide>(head, row, column, columns, base, sums);
  } else {
    storeSums<DType::BFloat16, isWide>(head, row, column, columns, base, sums);
  }
}

template <DType factor>
TENSORFERRY_DEVICE void addTileOf(const ProductParameter& head, uint32_t row, uint32_t column, uint32_t thread) {
  const bool isOfWords = static_cast<DType>(head.type) == DType::Float32;
  if (head.isWide != 0 && isOfWords) return addTile<factor, 4, true>(head, row, column, thread);
  if (head.isWide != 0) return addTile<factor, 2, true>(head, row, column, thread);
  if (isOfWords) return addTile<factor, 4, false>(head, row, column, thread);
  addTile<factor, 2, false>(head, row, column, thread);
}

TENSORFERRY_DEVICE void runProducts(const ProductParameter& head, const Place& place) {
  const uint32_t across = (head.columns + productTileColumns - 1) / productTileColumns;
  TENSORFERRY_KEEP_LOOP
  for (uint64_t tile = place.block; tile < head.tiles; tile += place.blocks) {
    const uint32_t row = static_cast<uint32_t>(tile / across) * productTileRows;
    const uint32_t column = static_cast<uint32_t>(tile % across) * productTileColumns;
    TENSORFERRY_FOR_PLAIN_TYPE(head.factorType, addTileOf, head, row, column, place.thread)
  }
}

}  // namespace
}  // namespace tensorferry::gpu
