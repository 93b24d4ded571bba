// SPDX-License-Identifier: Apache-2.0
/*
 * Element types by number, in the order of `dtypes` in @tensorferry/core; TypeScript compares the names at load.
 *
 * Plain values; any thread.
 */
#pragma once

#include "integers.h"

namespace tensorferry {

enum class DType : uint8_t {
  Bool,
  UInt8,
  Int8,
  UInt16,
  Int16,
  UInt32,
  Int32,
  UInt64,
  Int64,
  Float16,
  BFloat16,
  Float32,
  Float64,
  Float8E4M3,
  Float8E5M2,
  Float8E8M0,
  // From here on types are moved as bits and never cast.
  Float8E4M3Fnuz,
  Float8E5M2Fnuz,
  Float4E2M1,
  Float6E2M3,
  Float6E3M2,
  Complex64,
};

inline constexpr size_t dtypeCount = 22;
inline constexpr size_t castableCount = 16;

inline constexpr const char* dtypeNames[dtypeCount] = {
    "bool",          "uint8",         "int8",          "uint16",         "int16",           "uint32",
    "int32",         "uint64",        "int64",         "float16",        "bfloat16",        "float32",
    "float64",       "float8_e4m3fn", "float8_e5m2",   "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz",
    "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "complex64"};

/** Bytes per element; 0 for types whose elements share bytes (they travel as uint8). */
inline constexpr uint8_t dtypeBytes[dtypeCount] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1, 1, 1, 1, 1, 0, 0, 0, 8};

inline constexpr TENSORFERRY_SHARED bool isCastable(uint8_t code) noexcept { return code < castableCount; }

}  // namespace tensorferry
