// SPDX-License-Identifier: Apache-2.0
/*
 * The inner loops of quantized forms by any rule. Included by kernels.cc, once per instruction set. Pure functions over the
 * memory given; any thread.
 *
 * Each loop does one step for many blocks at once: largest magnitudes, what blocks are scaled by, codes. A code has a byte of
 * its own until it is packed.
 */
#pragma once

#include <array>
#include <cstring>
#include <utility>

#include <tensorferry/elements.h>
#include <tensorferry/quantize_rules.h>

#include "kernels.h"

namespace tensorferry {
namespace {

inline constexpr DType plainTypes[plainTypeCount] = {DType::BFloat16, DType::Float16, DType::Float32};

template <DType type>
inline constexpr size_t bytesOfPlain = type == DType::Float32 ? 4 : 2;

/** The value of an element, as rules see it: a NaN keeps its sign, but for float16. */
template <DType type>
inline float plainValue(const uint8_t* at) {
  if constexpr (type == DType::Float32) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
  } else {
    uint16_t bits;
    std::memcpy(&bits, at, sizeof bits);
    if constexpr (type == DType::BFloat16) {
      return floatOf(static_cast<uint32_t>(bits) << 16);
    } else {
      return Float16::decode(bits);
    }
  }
}

/** Raises the largest magnitude, in the bits of the type, by so many elements. As signed numbers, NaN is above all. */
template <DType type>
inline uint32_t largestOfRun(uint32_t before, const uint8_t* source, size_t count) {
  using Bits = std::conditional_t<type == DType::Float32, int32_t, int16_t>;
  auto largest = static_cast<Bits>(before);
  constexpr Bits mask = type == DType::Float32 ? static_cast<Bits>(0x7fffffff) : static_cast<Bits>(0x7fff);
  for (size_t i = 0; i < count; i++) {
    Bits bits;
    std::memcpy(&bits, source + i * sizeof bits, sizeof bits);
    bits &= mask;
    largest = bits > largest ? bits : largest;
  }
  return static_cast<uint32_t>(largest);
}

/** Of groups of 16 elements of 16 bits: one or two registers each. */
inline uint32_t largestOfSixteen(const uint8_t* source) {
  EightLanes parts[2];
  std::memcpy(parts, source, sizeof parts);
  const EightLanes mask = EightLanes{} + static_cast<int16_t>(0x7fff);
  EightLanes most = larger(parts[0] & mask, parts[1] & mask);
#ifdef __SSE4_1__
  return static_cast<uint16_t>(~_mm_cvtsi128_si32(_mm_minpos_epu16(reinterpret_cast<__m128i>(~most))));
#else
  most = larger(most, __builtin_shufflevector(most, most, 4, 5, 6, 7, 0, 1, 2, 3));
  most = larger(most, __builtin_shufflevector(most, most, 2, 3, 0, 1, 6, 7, 4, 5));
  most = larger(most, __builtin_shufflevector(most, most, 1, 0, 3, 2, 5, 4, 7, 6));
  return static_cast<uint16_t>(most[0]);
#endif
}

template <DType type>
void largestOfBlocks(uint32_t* maxima, const uint8_t* source, size_t blocks, size_t width) {
  constexpr size_t size = bytesOfPlain<type>;
  if (size == 2 && width % 16 == 0 && width <= 64) {
    for (size_t block = 0; block < blocks; block++) {
      uint32_t largest = maxima[block];
      for (size_t at = 0; at < width; at += 16) {
        const uint32_t own = largestOfSixteen(source + (block * width + at) * size);
        largest = own > largest ? own : largest;
      }
      maxima[block] = largest;
    }
    return;
  }
  for (size_t block = 0; block < blocks; block++)
    maxima[block] = largestOfRun<type>(maxima[block], source + block * width * size, width);
}

/** Magnitudes in the bits of the type as float32. */
template <DType type>
void magnitudesOf(float* magnitudes, const uint32_t* maxima, size_t count) {
  for (size_t i = 0; i < count; i++)
    magnitudes[i] = type == DType::Float32    ? floatOf(maxima[i])
                    : type == DType::BFloat16 ? floatOf(maxima[i] << 16)
                                              : Float16::decode(maxima[i]);
}

template <QuantizeRule rule, DType type>
void scaleBlocks(uint32_t* __restrict stored, float* __restrict factors, const float* __restrict largest, size_t count,
                 const GlobalScaling& given) {
  const GlobalScaling global = given;
  for (size_t i = 0; i < count; i++) {
    const BlockScaling made = scalingOf<rule>(largest[i], global, KnownSource<type>{});
    stored[i] = made.stored;
    factors[i] = made.factor;
  }
}

template <Encoding encoding, DType type>
inline void encodeRun(uint8_t* __restrict codes, const uint8_t* __restrict source, float factor, size_t count) {
  for (size_t i = 0; i < count; i++)
    codes[i] = static_cast<uint8_t>(
        codeOf<encoding>(plainValue<type>(source + i * bytesOfPlain<type>), factor, KnownSource<type>{}));
}

template <Encoding encoding, DType type>
void encodeBlocks(uint8_t* __restrict codes, const uint8_t* __restrict source, const float* __restrict factors,
                  size_t blocks, size_t width) {
  constexpr size_t size = bytesOfPlain<type>;
  // Of narrow blocks the compiler is told how long they are.
  constexpr size_t narrow = isFloat8(encoding) || encoding >= Encoding::Float4SignEven ? 32 : 16;
  if (width % narrow == 0 && width <= 32) {
    for (size_t block = 0; block < blocks; block++)
      for (size_t at = 0; at < width; at += narrow)
        encodeRun<encoding, type>(codes + block * width + at, source + (block * width + at) * size, factors[block],
                                  narrow);
    return;
  }
  for (size_t block = 0; block < blocks; block++)
    encodeRun<encoding, type>(codes + block * width, source + block * width * size, factors[block], width);
}

/** The errors of a group under a scaling, one by one and then from left to right. */
template <DType type>
inline float sumOfErrors(const uint8_t* source, uint32_t stored, float factor, float global, size_t width) {
  constexpr QuantizeRule rule = QuantizeRule::Nvfp4TransformerEngine4Over6;
  float errors[16];
  const float scale = decodeFloat8E4M3(stored);
  for (size_t i = 0; i < width; i++) {
    const float value = plainValue<type>(source + i * bytesOfPlain<type>);
    const uint32_t code = codeOf<encodingOf(rule)>(value, factor, KnownSource<type>{});
    errors[i] = absolute(readGroup(rule, decodeFloat4(code), scale, global) - value);
  }
  float sum = 0;
  for (size_t i = 0; i < width; i++) sum = sum + errors[i];
  return sum;
}

/** Takes the second scaling of the 4over6 rule for groups where it has the smaller error. */
template <DType type>
void chooseScales(uint32_t* stored, float* factors, const float* largest, const uint8_t* source, size_t blocks,
                  size_t width, const GlobalScaling& global) {
  for (size_t block = 0; block < blocks; block++) {
    const uint8_t* own = source + block * width * bytesOfPlain<type>;
    const BlockScaling other = otherScaling(largest[block], global);
    if (sumOfErrors<type>(own, other.stored, other.factor, global.stored, width) <
        sumOfErrors<type>(own, stored[block], factors[block], global.stored, width)) {
      stored[block] = other.stored;
      factors[block] = other.factor;
    }
  }
}

/** Two codes to a byte, the first in the low half. */
inline void packCodes(uint8_t* __restrict bytes, const uint8_t* __restrict codes, size_t count) {
  for (size_t i = 0; i < count / 2; i++) {
    uint16_t pair;
    std::memcpy(&pair, codes + 2 * i, sizeof pair);
    bytes[i] = static_cast<uint8_t>((pair & 15u) | (pair >> 4));
  }
}

inline void unpackCodes(uint8_t* __restrict codes, const uint8_t* __restrict bytes, size_t count) {
  for (size_t i = 0; i < count / 2; i++) {
    const auto pair = static_cast<uint16_t>((bytes[i] & 15u) | (bytes[i] & 0xf0u) << 4);
    std::memcpy(codes + 2 * i, &pair, sizeof pair);
  }
}

template <Reading reading, bool isFloat8>
void readBlocks(float* __restrict values, const uint8_t* __restrict codes, const float* __restrict factors,
                size_t blocks, size_t width, float second) {
  for (size_t block = 0; block < blocks; block++) {
    const float factor = factors[block];
    for (size_t i = 0; i < width; i++) {
      const uint32_t code = codes[block * width + i];
      const float number = isFloat8 ? decodeFloat8E4M3(code) : decodeFloat4(code);
      float value = reading == Reading::WithoutMinusZero ? (number + 0.0f) * factor : number * factor;
      if constexpr (reading == Reading::Twice || reading == Reading::TwiceAndDivided) value = value * second;
      if constexpr (reading == Reading::TwiceAndDivided) value = value / 2688.0f;
      values[block * width + i] = quiet(value);
    }
  }
}

/** Whether a rule asks for the type of the source when it scales a block. */
constexpr bool asksForType(QuantizeRule rule) {
  switch (rule) {
    case QuantizeRule::Mxfp8CompressedTensors:
    case QuantizeRule::Mxfp4CompressedTensors:
    case QuantizeRule::Fp8SlimeOffline:
    case QuantizeRule::Fp8SlimeOfflineCuda:
    case QuantizeRule::Fp8TransformerEngine:
    case QuantizeRule::Fp8TransformerEnginePower:
    case QuantizeRule::Fp8CompressedTensors:
    case QuantizeRule::Nvfp4CompressedTensors:
      return true;
    default:
      return false;
  }
}

template <size_t rule, size_t type>
constexpr auto scaler() {
  constexpr auto named = static_cast<QuantizeRule>(rule);
  return &scaleBlocks < named, asksForType(named) ? plainTypes[type] : DType::Float32 > ;
}

template <size_t type, size_t... rule, size_t... encoding>
constexpr void fillPlainType(RuleKernels& table, std::index_sequence<rule...>, std::index_sequence<encoding...>) {
  constexpr DType dtype = plainTypes[type];
  table.largest[type] = &largestOfBlocks<dtype>;
  table.magnitudes[type] = &magnitudesOf<dtype>;
  table.choose[type] = &chooseScales<dtype>;
  ((table.scale[rule][type] = scaler<rule, type>()), ...);
  ((table.encode[encoding][type] = &encodeBlocks<static_cast<Encoding>(encoding), dtype>), ...);
}

constexpr RuleKernels makeRuleKernels() {
  RuleKernels table{};
  constexpr auto rules = std::make_index_sequence<quantizeRuleCount>{};
  constexpr auto encodings = std::make_index_sequence<encodingCount>{};
  fillPlainType<0>(table, rules, encodings);
  fillPlainType<1>(table, rules, encodings);
  fillPlainType<2>(table, rules, encodings);
  table.pack = &packCodes;
  table.unpack = &unpackCodes;
  table.readFloat8 = &readBlocks<Reading::Once, true>;
  table.readFloat4[0] = &readBlocks<Reading::Once, false>;
  table.readFloat4[1] = &readBlocks<Reading::WithoutMinusZero, false>;
  table.readFloat4[2] = &readBlocks<Reading::Twice, false>;
  table.readFloat4[3] = &readBlocks<Reading::TwiceAndDivided, false>;
  return table;
}

}  // namespace
}  // namespace tensorferry
