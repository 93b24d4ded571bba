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

namespace tensorferry {

/** The types in which values are converted and accumulated. */
enum class Wide : uint8_t { Float32, Float64, Int64, UInt64 };
inline constexpr size_t wideCount = 4;

/** Elements per block; the widest block takes 8 KiB. */
inline constexpr size_t blockElements = 1024;

enum class ReduceOp : uint8_t { Sum, Average, Maximum, Minimum, Product };
inline constexpr size_t reduceOpCount = 5;

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
  /** `accumulator = accumulator op block`; the average sums. */
  void (*accumulate[reduceOpCount][wideCount])(void* accumulator, const void* block, size_t count);
  void (*divide[wideCount])(void* accumulator, uint64_t divisor, size_t count);
};

/** The wide form of each castable type. */
inline constexpr Wide wideOf(uint8_t dtype) noexcept {
  switch (static_cast<DType>(dtype)) {
    case DType::Float64:
      return Wide::Float64;
    case DType::UInt64:
      return Wide::UInt64;
    case DType::Bool:
    case DType::UInt8:
    case DType::Int8:
    case DType::UInt16:
    case DType::Int16:
    case DType::UInt32:
    case DType::Int32:
    case DType::Int64:
      return Wide::Int64;
    default:
      return Wide::Float32;
  }
}

/** The best table for this processor. */
const Kernels& kernels() noexcept;

}  // namespace tensorferry
