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
#include <tensorferry/quantize_rules.h>
#include <tensorferry/wide.h>

namespace tensorferry {

/** Elements per block; the widest block takes 8 KiB. */
inline constexpr size_t blockElements = 1024;

/** Indices that a search for changes may write behind the last one that it finds. */
inline constexpr size_t findSlack = 8;

/** Runs that are copied at the same time to keep the memory busy; one of `splitRun` bytes is as many by itself. */
inline constexpr size_t runsInTurn = 8, splitRun = 64 << 10;

/** Types that are quantized, by their number in the tables below: bfloat16, float16, float32. */
inline constexpr size_t plainTypeCount = 3;

/** How a number under its block's factor becomes a value: once, or twice as the rules with a stored maximum have it. */
enum class Reading : uint8_t { Once, WithoutMinusZero, Twice, TwiceAndDivided };
inline constexpr size_t readingCount = 4;

/** Loops over blocks of `width` dense elements; codes have a byte each. */
struct RuleKernels {
  /** Raises magnitudes, in the bits of the type, to those of one block each. */
  void (*largest[plainTypeCount])(uint32_t* maxima, const uint8_t* source, size_t blocks, size_t width);
  /** Those bits as float32. */
  void (*magnitudes[plainTypeCount])(float* magnitudes, const uint32_t* maxima, size_t count);
  void (*scale[quantizeRuleCount][plainTypeCount])(uint32_t* stored, float* factors, const float* largest, size_t count,
                                                   const GlobalScaling& global);
  /** What the 4over6 rule does after scaling. Groups of at most 16. */
  void (*choose[plainTypeCount])(uint32_t* stored, float* factors, const float* largest, const uint8_t* source,
                                 size_t blocks, size_t width, const GlobalScaling& global);
  void (*encode[encodingCount][plainTypeCount])(uint8_t* codes, const uint8_t* source, const float* factors,
                                                size_t blocks, size_t width);
  void (*pack)(uint8_t* bytes, const uint8_t* codes, size_t count);
  void (*unpack)(uint8_t* codes, const uint8_t* bytes, size_t count);
  void (*readFloat8)(float* values, const uint8_t* codes, const float* factors, size_t blocks, size_t width,
                     float second);
  void (*readFloat4[readingCount])(float* values, const uint8_t* codes, const float* factors, size_t blocks,
                                   size_t width, float second);
};

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
  RuleKernels rules;
  /**
   * Writes the indices of dense elements of 1, 2, 4 or 8 bytes that differ, in order, and gives their number. There is room for
   * all of them, and for `findSlack` more.
   */
  size_t (*findChanges[4])(uint32_t* at, const uint8_t* a, const uint8_t* b, size_t count);
  /**
   * Adds `scale * b @ a` to at most `blockElements` values of a row: `b` has `rank` numbers, `a` as many rows, `stride` numbers
   * apart. Sums in float64, in the order of the ranks.
   */
  void (*addProduct)(float* values, const float* a, size_t stride, const float* b, size_t rank, float scale,
                     size_t count);
  /** Adds whole blocks of a tensor to both halves of its digest; `block` is the number of the first. */
  void (*digestBlocks)(uint64_t* halves, const uint8_t* source, uint64_t block, size_t blocks);
};

/** The best table for this processor. */
const Kernels& kernels() noexcept;

}  // namespace tensorferry
