// SPDX-License-Identifier: Apache-2.0
/*
 * The types in which values are converted and accumulated, and the operations of reductions, by number. Plain values; any
 * thread, hosts and devices.
 */
#pragma once

#include "dtype.h"
#include "integers.h"

namespace tensorferry {

enum class Wide : uint8_t { Float32, Float64, Int64, UInt64 };
inline constexpr size_t wideCount = 4;

/** In the order in which TypeScript numbers them. */
enum class ReduceOp : uint8_t { Sum, Average, Maximum, Minimum, Product };
inline constexpr size_t reduceOpCount = 5;

/** The wide form of each castable type. */
inline constexpr TENSORFERRY_SHARED Wide wideOf(uint8_t dtype) noexcept {
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

}  // namespace tensorferry
