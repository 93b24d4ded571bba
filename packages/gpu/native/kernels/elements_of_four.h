// SPDX-License-Identifier: Apache-2.0
/*
 * Four elements at a time: read as bits, made values, made bits of another type, written. Pure but for the memory given.
 *
 * Bits of elements travel packed as in memory, in as many 32-bit words as an element has bytes, so that code is made per
 * size and not per pair of types. Which case is taken depends on the record alone: threads of a block never part.
 */
#pragma once

#include <tensorferry/elements.h>

#include "device.h"

namespace tensorferry::gpu {
namespace {

inline constexpr uint32_t four = 4;

/** Bytes of an element. A switch, since devices do not see tables of the host. */
TENSORFERRY_DEVICE uint32_t bytesOf(uint32_t type) {
  switch (static_cast<DType>(type)) {
    case DType::UInt16:
    case DType::Int16:
    case DType::Float16:
    case DType::BFloat16:
      return 2;
    case DType::UInt32:
    case DType::Int32:
    case DType::Float32:
      return 4;
    case DType::UInt64:
    case DType::Int64:
    case DType::Float64:
      return 8;
    default:
      return 1;
  }
}

template <uint32_t size>
struct BitsOfSize;
template <>
struct BitsOfSize<1> {
  using type = uint8_t;
};
template <>
struct BitsOfSize<2> {
  using type = uint16_t;
};
template <>
struct BitsOfSize<4> {
  using type = uint32_t;
};
template <>
struct BitsOfSize<8> {
  using type = uint64_t;
};

template <uint32_t size>
TENSORFERRY_DEVICE void setElement(uint32_t (&words)[8], uint32_t k, typename BitsOfSize<size>::type bits) {
  if constexpr (size == 8) {
    words[2 * k] = static_cast<uint32_t>(bits);
    words[2 * k + 1] = static_cast<uint32_t>(bits >> 32);
  } else if constexpr (size == 4) {
    words[k] = bits;
  } else {
    constexpr uint32_t perWord = 4 / size;
    const uint32_t shifted = static_cast<uint32_t>(bits) << (8 * size * (k % perWord));
    words[k / perWord] = k % perWord == 0 ? shifted : words[k / perWord] | shifted;
  }
}

template <uint32_t size>
TENSORFERRY_DEVICE typename BitsOfSize<size>::type elementOf(const uint32_t (&words)[8], uint32_t k) {
  using Bits = typename BitsOfSize<size>::type;
  if constexpr (size == 8) {
    return static_cast<Bits>(words[2 * k + 1]) << 32 | words[2 * k];
  } else if constexpr (size == 4) {
    return words[k];
  } else {
    constexpr uint32_t perWord = 4 / size;
    return static_cast<Bits>(words[k / perWord] >> (8 * size * (k % perWord)));
  }
}

/** One element whose address is a multiple of `width` only. */
template <uint32_t size>
TENSORFERRY_DEVICE typename BitsOfSize<size>::type loadElement(uint64_t address, uint32_t width) {
  using Bits = typename BitsOfSize<size>::type;
  if (width >= size) return load<Bits>(address);
  Bits bits = 0;
  for (uint32_t i = 0; i < size; i++) bits |= static_cast<Bits>(load<uint8_t>(address + i)) << (8 * i);
  return bits;
}

template <uint32_t size>
TENSORFERRY_DEVICE void storeElement(uint64_t address, uint32_t width, typename BitsOfSize<size>::type bits) {
  if (width >= size) return store(address, bits);
  for (uint32_t i = 0; i < size; i++) store(address + i, static_cast<uint8_t>(bits >> (8 * i)));
}

/** Four neighbours. `width` is at most 16. */
template <uint32_t size>
TENSORFERRY_DEVICE void loadFour(uint32_t (&words)[8], uint64_t address, uint32_t width) {
  if constexpr (size >= 4) {
    if (width == 16) {
      TENSORFERRY_UNROLL
      for (uint32_t i = 0; i < size; i += 4) {
        const Vector vector = load<Vector>(address + 4 * i);
        words[i] = vector.x;
        words[i + 1] = vector.y;
        words[i + 2] = vector.z;
        words[i + 3] = vector.w;
      }
      return;
    }
  } else if constexpr (size == 2) {
    if (width >= 8) {
      const uint64_t bits = load<uint64_t>(address);
      words[0] = static_cast<uint32_t>(bits);
      words[1] = static_cast<uint32_t>(bits >> 32);
      return;
    }
  } else if (width >= 4) {
    words[0] = load<uint32_t>(address);
    return;
  }
  TENSORFERRY_UNROLL
  for (uint32_t k = 0; k < four; k++) setElement<size>(words, k, loadElement<size>(address + k * size, width));
}

template <uint32_t size>
TENSORFERRY_DEVICE void storeFour(uint64_t address, uint32_t width, const uint32_t (&words)[8]) {
  if constexpr (size >= 4) {
    if (width == 16) {
      TENSORFERRY_UNROLL
      for (uint32_t i = 0; i < size; i += 4)
        store<Vector>(address + 4 * i, {words[i], words[i + 1], words[i + 2], words[i + 3]});
      return;
    }
  } else if constexpr (size == 2) {
    if (width >= 8) return store<uint64_t>(address, static_cast<uint64_t>(words[1]) << 32 | words[0]);
  } else if (width >= 4) {
    return store<uint32_t>(address, words[0]);
  }
  TENSORFERRY_UNROLL
  for (uint32_t k = 0; k < four; k++) storeElement<size>(address + k * size, width, elementOf<size>(words, k));
}

template <typename Stored>
TENSORFERRY_DEVICE Stored storedOf(typename BitsOfSize<sizeof(Stored)>::type bits) {
  return static_cast<Stored>(bits);
}
template <>
TENSORFERRY_DEVICE float storedOf<float>(uint32_t bits) {
  return floatOf(bits);
}
template <>
TENSORFERRY_DEVICE double storedOf<double>(uint64_t bits) {
  return doubleOf(bits);
}

/** Runs a function template for the size of an element. */
#define TENSORFERRY_FOR_SIZE(SIZE, CALL, ...) \
  switch (SIZE) {                             \
    case 1:                                   \
      CALL<1>(__VA_ARGS__);                   \
      break;                                  \
    case 2:                                   \
      CALL<2>(__VA_ARGS__);                   \
      break;                                  \
    case 4:                                   \
      CALL<4>(__VA_ARGS__);                   \
      break;                                  \
    default:                                  \
      CALL<8>(__VA_ARGS__);                   \
  }

/** Runs a function template for a type that is quantized. */
#define TENSORFERRY_FOR_PLAIN_TYPE(TYPE, FUNCTION, ...) \
  switch (static_cast<DType>(TYPE)) {                   \
    case DType::BFloat16:                               \
      FUNCTION<DType::BFloat16>(__VA_ARGS__);           \
      break;                                            \
    case DType::Float16:                                \
      FUNCTION<DType::Float16>(__VA_ARGS__);            \
      break;                                            \
    default:                                            \
      FUNCTION<DType::Float32>(__VA_ARGS__);            \
  }

template <DType type, typename W>
TENSORFERRY_DEVICE void decodeAs(W (&values)[four], const uint32_t (&words)[8]) {
  using E = Element<type>;
  using Stored = typename E::Stored;
  TENSORFERRY_UNROLL
  for (uint32_t k = 0; k < four; k++) values[k] = E::decode(storedOf<Stored>(elementOf<sizeof(Stored)>(words, k)));
}

#define TENSORFERRY_DECODE(TYPE)          \
  case DType::TYPE:                       \
    decodeAs<DType::TYPE>(values, words); \
    return;

/** Four elements of a type whose wide form it is. */
TENSORFERRY_DEVICE void decode(uint32_t type, float (&values)[four], const uint32_t (&words)[8]) {
  switch (static_cast<DType>(type)) {
    TENSORFERRY_DECODE(Float16)
    TENSORFERRY_DECODE(BFloat16)
    TENSORFERRY_DECODE(Float8E4M3)
    TENSORFERRY_DECODE(Float8E5M2)
    TENSORFERRY_DECODE(Float8E8M0)
    default:
      decodeAs<DType::Float32>(values, words);
  }
}
TENSORFERRY_DEVICE void decode(uint32_t type, int64_t (&values)[four], const uint32_t (&words)[8]) {
  switch (static_cast<DType>(type)) {
    TENSORFERRY_DECODE(Bool)
    TENSORFERRY_DECODE(UInt8)
    TENSORFERRY_DECODE(Int8)
    TENSORFERRY_DECODE(UInt16)
    TENSORFERRY_DECODE(Int16)
    TENSORFERRY_DECODE(UInt32)
    TENSORFERRY_DECODE(Int32)
    default:
      decodeAs<DType::Int64>(values, words);
  }
}
TENSORFERRY_DEVICE void decode(uint32_t, double (&values)[four], const uint32_t (&words)[8]) {
  decodeAs<DType::Float64>(values, words);
}
TENSORFERRY_DEVICE void decode(uint32_t, uint64_t (&values)[four], const uint32_t (&words)[8]) {
  decodeAs<DType::UInt64>(values, words);
}
#undef TENSORFERRY_DECODE

/**
 * Half way to another type: what all casts to it share. Types that go through float32 are `narrow` then; of others the bits
 * are in `whole`, of which as many count as the type has.
 */
struct Halfway {
  float narrow[four];
  uint64_t whole[four];
};

template <typename W>
TENSORFERRY_DEVICE void goHalfway(uint32_t to, Halfway& halfway, const W (&values)[four]) {
  const DType type = static_cast<DType>(to);
  TENSORFERRY_UNROLL
  for (uint32_t k = 0; k < four; k++) {
    if (wideOf(static_cast<uint8_t>(to)) == Wide::Float32) {
      halfway.narrow[k] = static_cast<float>(values[k]);
    } else if (type == DType::Float64) {
      halfway.whole[k] = bitsOf(Element<DType::Float64>::encode(values[k]));
    } else if (type == DType::Bool) {
      halfway.whole[k] = Element<DType::Bool>::encode(values[k]);
    } else {
      halfway.whole[k] = Element<DType::UInt64>::encode(values[k]);  // integers keep their low bits
    }
  }
}

template <DType type>
TENSORFERRY_DEVICE void encodeAs(uint32_t (&words)[8], const float (&values)[four]) {
  using E = Element<type>;
  using Stored = typename E::Stored;
  TENSORFERRY_UNROLL
  for (uint32_t k = 0; k < four; k++) setElement<sizeof(Stored)>(words, k, E::encode(values[k]));
}

template <uint32_t size>
TENSORFERRY_DEVICE void keepLowBits(uint32_t (&words)[8], const uint64_t (&whole)[four]) {
  TENSORFERRY_UNROLL
  for (uint32_t k = 0; k < four; k++)
    setElement<size>(words, k, static_cast<typename BitsOfSize<size>::type>(whole[k]));
}

TENSORFERRY_DEVICE void goTheRest(uint32_t to, uint32_t (&words)[8], const Halfway& halfway) {
  switch (static_cast<DType>(to)) {
#define TENSORFERRY_ENCODE(TYPE) \
  case DType::TYPE:              \
    return encodeAs<DType::TYPE>(words, halfway.narrow);
    TENSORFERRY_ENCODE(Float16)
    TENSORFERRY_ENCODE(BFloat16)
    TENSORFERRY_ENCODE(Float8E4M3)
    TENSORFERRY_ENCODE(Float8E5M2)
    TENSORFERRY_ENCODE(Float8E8M0)
#undef TENSORFERRY_ENCODE
    case DType::Float32:
      TENSORFERRY_UNROLL
      for (uint32_t k = 0; k < four; k++) words[k] = bitsOf(Element<DType::Float32>::encode(halfway.narrow[k]));
      return;
    default:
      TENSORFERRY_FOR_SIZE(bytesOf(to), keepLowBits, words, halfway.whole)
  }
}

template <typename W>
TENSORFERRY_DEVICE void castHalfway(uint32_t to, uint32_t from, Halfway& halfway, const uint32_t (&words)[8]) {
  W values[four];
  decode(from, values, words);
  goHalfway(to, halfway, values);
}

/** Casts four elements, in place. */
TENSORFERRY_DEVICE void castFour(uint32_t to, uint32_t from, uint32_t (&words)[8]) {
  Halfway halfway = {};
  switch (wideOf(static_cast<uint8_t>(from))) {
    case Wide::Float32:
      castHalfway<float>(to, from, halfway, words);
      break;
    case Wide::Float64:
      castHalfway<double>(to, from, halfway, words);
      break;
    case Wide::Int64:
      castHalfway<int64_t>(to, from, halfway, words);
      break;
    case Wide::UInt64:
      castHalfway<uint64_t>(to, from, halfway, words);
      break;
  }
  goTheRest(to, words, halfway);
}

}  // namespace
}  // namespace tensorferry::gpu
