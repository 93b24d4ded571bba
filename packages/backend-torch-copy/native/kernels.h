// SPDX-License-Identifier: Apache-2.0
/*
 * The inner loops, as a table per instruction set. Owns conversion and accumulation over short runs of elements.
 *
 * A cast goes source -> wide type -> destination, a block at a time, so that the number of loops is the number of types
 * and not of pairs; only a few, which models are made of, have a loop per pair. Pure functions over the memory given; any thread. Addresses need no alignment; strides are in bytes.
 */
#pragma once

#include <cstddef>
#include <cstdint>

#include <tensorferry/dtype.h>
#include <tensorferry/mxfp8.h>
#include <tensorferry/wide.h>

namespace tensorferry {

/** Elements per block; the widest block takes 8 KiB. */
inline constexpr size_t blockElements = 1024;

/** Runs that are copied at the same time to keep the memory busy; one of `splitRun` bytes is as many by itself. */
inline constexpr size_t runsInTurn = 8, splitRun = 64 << 10;

struct Kernels {
  const char* name;
  /** Elements to a dense block of the type's wide form. */
  void (*load[castableCount])(void* block, const uint8_t* source, int64_t stride, size_t count);
  /** A dense block to elements. */
  void (*store[castableCount][wideCount])(uint8_t* destination, int64_t stride, const void* block, size_t count);
  /**
   * Dense elements to dense elements at once, for the pairs of types where that is faster; null for others. Source and
   * destination lie apart.
   */
  void (*convert[castableCount][castableCount])(uint8_t* destination, const uint8_t* source, size_t count);
  /**
   * Converts the beginning of a long run past the caches and returns how many elements that was, for the pairs of types
   * that gain by it; null for others. The destination begins at a cache line; `finishStreaming` comes after.
   */
  size_t (*convertPast[castableCount][castableCount])(uint8_t* destination, const uint8_t* source, size_t count);
  /** Copies dense bytes past the caches; `finishStreaming` comes after. */
  void (*copyRunPast)(uint8_t* destination, const uint8_t* source, size_t length);
  /** The same for `runsInTurn` runs of one length. */
  void (*copyRunsPast)(uint8_t* const* destinations, const uint8_t* const* sources, size_t length);
  /** `accumulator = accumulator op block`; the average sums. */
  void (*accumulate[reduceOpCount][wideCount])(void* accumulator, const void* block, size_t count);
  void (*divide[wideCount])(void* accumulator, uint64_t divisor, size_t count);
  /** Dense blocks of float32 or bfloat16 to data and one scale each. */
  void (*quantizeFloats)(uint8_t* data, uint8_t* scales, const uint8_t* source, size_t blocks, ScaleRule rule);
  void (*quantizeBFloat16s)(uint8_t* data, uint8_t* scales, const uint8_t* source, size_t blocks, ScaleRule rule);
  void (*dequantizeFloats)(float* values, const uint8_t* data, const uint8_t* scales, size_t blocks);
};

/** The best table for this processor. */
const Kernels& kernels() noexcept;

}  // namespace tensorferry
