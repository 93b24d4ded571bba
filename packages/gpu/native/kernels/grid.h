// SPDX-License-Identifier: Apache-2.0
/*
 * What batches are compiled from: two strided regions as dimensions, the innermost first, and the arithmetic on them. Pure;
 * any thread. Used by the compilers of moves and of reductions only.
 */
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>

#include <tensorferry/moves.h>
#include <tensorferry/status.h>

#include "parameters.h"

namespace tensorferry::gpu {

/** Dimensions of a grid: those of a move, two that were cut in two, and one within an element. */
inline constexpr size_t gridDimensions = maxDimensions + 3;

/** Bytes that one batch may read or write: above any device, and far from the end of 64-bit numbers. */
inline constexpr uint64_t maxBytes = 1ull << 48;

struct Grid {
  uint64_t destination, source;
  uint32_t count = 0;
  std::array<Dimension, gridDimensions> dimensions;

  void append(const Dimension& dimension) { dimensions[count++] = dimension; }
  void insertInnermost(const Dimension& dimension) {
    std::copy_backward(dimensions.begin(), dimensions.begin() + count, dimensions.begin() + count + 1);
    dimensions[0] = dimension;
    count++;
  }
  void remove(uint32_t index) {
    std::copy(dimensions.begin() + index + 1, dimensions.begin() + count, dimensions.begin() + index);
    count--;
  }
  /** The part of a dimension from a position on. */
  Grid part(uint32_t index, uint64_t from, uint64_t length) const {
    Grid made = *this;
    Dimension& dimension = made.dimensions[index];
    made.destination += from * static_cast<uint64_t>(dimension.destinationStep);
    made.source += from * static_cast<uint64_t>(dimension.sourceStep);
    dimension.length = length;
    if (length == 1) made.remove(index);
    return made;
  }
  /** Number of positions; at most maxBytes, since moves were checked. */
  uint64_t positions() const {
    uint64_t product = 1;
    for (uint32_t i = 0; i < count; i++) product *= dimensions[i].length;
    return product;
  }
};

/** Multiplier and shift of a number from 1 to maxIndex; see Divisor. */
inline Divisor divisorOf(uint32_t number) noexcept {
  const uint32_t shift = static_cast<uint32_t>(std::bit_width(number - 1));
  return {static_cast<uint32_t>(((1ull << 32) * ((1ull << shift) - number)) / number + 1), shift};
}

/** The greatest power of two, at most 16, that divides all numbers. */
inline uint8_t commonWidth(std::initializer_list<uint64_t> numbers) noexcept {
  uint64_t bits = 16;
  for (const uint64_t number : numbers) bits |= number;
  return static_cast<uint8_t>(bits & (0 - bits));
}

/** Bytes from the first to behind the last of a strided region; nothing where they do not fit beside its address. */
template <typename StepOf>
std::optional<uint64_t> extentOf(uint64_t address, uint64_t elementBytes, size_t count, StepOf dimensionAt) noexcept {
  uint64_t extent = elementBytes;
  for (size_t i = 0; i < count; i++) {
    const auto [length, step] = dimensionAt(i);
    uint64_t span = 0;
    if (step < 0 || length == 0) return std::nullopt;
    if (__builtin_mul_overflow(length - 1, static_cast<uint64_t>(step), &span)) return std::nullopt;
    if (__builtin_add_overflow(extent, span, &extent)) return std::nullopt;
  }
  uint64_t end = 0;
  if (__builtin_add_overflow(address, extent, &end)) return std::nullopt;
  return extent;
}

/**
 * Gives a grid to `emit` in parts of at most `limit` positions, in order. Lengths are at most maxIndex then.
 */
template <typename Emit>
void emitParts(const Grid& grid, uint64_t limit, const Emit& emit) {
  const uint64_t positions = grid.positions();
  if (positions <= limit) return emit(grid);
  const uint32_t outermost = grid.count - 1;
  const uint64_t length = grid.dimensions[outermost].length, inner = positions / length;
  const uint64_t chunk = std::max<uint64_t>(1, limit / inner);
  for (uint64_t from = 0; from < length; from += chunk)
    emitParts(grid.part(outermost, from, std::min(chunk, length - from)), limit, emit);
}

}  // namespace tensorferry::gpu
