// SPDX-License-Identifier: Apache-2.0
/*
 * Elements as values: how each castable type is stored, widened, narrowed and combined. Pure; any thread, hosts and devices.
 *
 * A cast is `Element<to>::encode(Element<from>::decode(stored))`. Internal linkage as in casts.h, and for the same reason.
 */
#pragma once

#include "casts.h"
#include "wide.h"

namespace tensorferry {
namespace {

template <Wide>
struct WideType;
template <>
struct WideType<Wide::Float32> {
  using type = float;
};
template <>
struct WideType<Wide::Float64> {
  using type = double;
};
template <>
struct WideType<Wide::Int64> {
  using type = int64_t;
};
template <>
struct WideType<Wide::UInt64> {
  using type = uint64_t;
};
template <Wide wide>
using WideOf = typename WideType<wide>::type;

template <DType>
struct Element;  // storage type, decode to the wide form, encode from float32

#define INTEGER_ELEMENT(NAME, TYPE)                                                            \
  template <>                                                                                  \
  struct Element<DType::NAME> {                                                                \
    using Stored = TYPE;                                                                       \
    static TENSORFERRY_SHARED auto decode(TYPE value) {                                        \
      return static_cast<WideOf<wideOf(static_cast<uint8_t>(DType::NAME))>>(value);            \
    }                                                                                          \
    static TENSORFERRY_SHARED TYPE encode(float value) { return truncate<TYPE>(value); }       \
    static TENSORFERRY_SHARED TYPE encode(double value) { return truncate<TYPE>(value); }      \
    static TENSORFERRY_SHARED TYPE encode(int64_t value) { return static_cast<TYPE>(value); }  \
    static TENSORFERRY_SHARED TYPE encode(uint64_t value) { return static_cast<TYPE>(value); } \
  };
INTEGER_ELEMENT(UInt8, uint8_t)
INTEGER_ELEMENT(Int8, int8_t)
INTEGER_ELEMENT(UInt16, uint16_t)
INTEGER_ELEMENT(Int16, int16_t)
INTEGER_ELEMENT(UInt32, uint32_t)
INTEGER_ELEMENT(Int32, int32_t)
INTEGER_ELEMENT(UInt64, uint64_t)
INTEGER_ELEMENT(Int64, int64_t)
#undef INTEGER_ELEMENT

template <>
struct Element<DType::Bool> {
  using Stored = uint8_t;
  static TENSORFERRY_SHARED int64_t decode(uint8_t value) { return value != 0; }
  template <typename W>
  static TENSORFERRY_SHARED uint8_t encode(W value) {
    return value != 0;
  }
};

template <>
struct Element<DType::Float32> {
  using Stored = float;
  static TENSORFERRY_SHARED float decode(float value) { return value; }
  template <typename W>
  static TENSORFERRY_SHARED float encode(W value) {
    return quiet(static_cast<float>(value));
  }
};

template <>
struct Element<DType::Float64> {
  using Stored = double;
  static TENSORFERRY_SHARED double decode(double value) { return value; }
  template <typename W>
  static TENSORFERRY_SHARED double encode(W value) {
    return quiet(static_cast<double>(value));
  }
};

#define SMALL_ELEMENT(NAME, TYPE, DECODE, ENCODE)                              \
  template <>                                                                  \
  struct Element<DType::NAME> {                                                \
    using Stored = TYPE;                                                       \
    static TENSORFERRY_SHARED float decode(TYPE code) { return DECODE(code); } \
    template <typename W>                                                      \
    static TENSORFERRY_SHARED TYPE encode(W value) {                           \
      return static_cast<TYPE>(ENCODE(static_cast<float>(value)));             \
    }                                                                          \
  };
SMALL_ELEMENT(Float16, uint16_t, Float16::decode, Float16::encode)
SMALL_ELEMENT(BFloat16, uint16_t, decodeBFloat16, encodeBFloat16)
SMALL_ELEMENT(Float8E4M3, uint8_t, decodeFloat8E4M3, encodeFloat8E4M3)
SMALL_ELEMENT(Float8E5M2, uint8_t, Float8E5M2::decode, Float8E5M2::encode)
SMALL_ELEMENT(Float8E8M0, uint8_t, decodeFloat8E8M0, encodeFloat8E8M0)
#undef SMALL_ELEMENT

// Integers wrap: they are added and multiplied as unsigned numbers, where that is defined.
template <typename W>
struct Arithmetic {
  using type = W;
};
template <>
struct Arithmetic<int64_t> {
  using type = uint64_t;
};

template <ReduceOp op, typename W>
TENSORFERRY_SHARED W combine(W a, W b) {
  using A = typename Arithmetic<W>::type;
  if constexpr (op == ReduceOp::Product) return static_cast<W>(static_cast<A>(a) * static_cast<A>(b));
  if constexpr (op == ReduceOp::Maximum) return b > a || b != b ? (a != a ? a : b) : a;
  if constexpr (op == ReduceOp::Minimum) return b < a || b != b ? (a != a ? a : b) : a;
  return static_cast<W>(static_cast<A>(a) + static_cast<A>(b));
}

}  // namespace
}  // namespace tensorferry
