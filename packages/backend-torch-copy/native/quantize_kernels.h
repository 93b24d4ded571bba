// SPDX-License-Identifier: Apache-2.0
/*
 * The inner loops of block scaling. Included by kernels.cc, once per instruction set. Pure functions over the memory given;
 * any thread.
 */
#pragma once

#include <cstring>
#include <utility>

#ifdef __SSE4_1__
#include <smmintrin.h>
#endif

#include <tensorferry/casts.h>
#include <tensorferry/mxfp8.h>

namespace tensorferry {
namespace {

inline void quantizeBlockFromFloats(uint8_t* __restrict data, uint8_t* __restrict scale, const float* __restrict values,
                                    ScaleRule rule) {
  int32_t largest = 0;
  // As signed integers, magnitudes are in the order of their values, NaN above all.
  for (unsigned i = 0; i < mxBlock; i++) {
    const auto magnitude = static_cast<int32_t>(bitsOf(values[i]) & 0x7fffffffu);
    largest = magnitude > largest ? magnitude : largest;
  }
  const uint32_t code = scaleOf(static_cast<uint32_t>(largest), rule);
  *scale = static_cast<uint8_t>(code);
  if (code == nanScale) {
    std::memset(data, 0x7f, mxBlock);
    return;
  }
  const float multiplier = multiplierOf(code, rule);
  for (unsigned i = 0; i < mxBlock; i++) data[i] = static_cast<uint8_t>(encodeFloat8E4M3(values[i] * multiplier));
}

inline void quantizeFloats(uint8_t* data, uint8_t* scales, const uint8_t* source, size_t blocks, ScaleRule rule) {
  for (size_t block = 0; block < blocks; block++) {
    alignas(64) float values[mxBlock];
    std::memcpy(values, source + block * sizeof values, sizeof values);
    quantizeBlockFromFloats(data + block * mxBlock, scales + block, values, rule);
  }
}

/** Bytes between what is read and what is asked for. */
inline constexpr size_t fetchAhead = 2048;

typedef int16_t EightLanes __attribute__((vector_size(16)));

inline EightLanes larger(EightLanes a, EightLanes b) { return a > b ? a : b; }

/** The largest of 16-bit numbers in a register, none of them negative. */
inline int16_t largestOf(Lanes lanes) {
  EightLanes parts[sizeof(Lanes) / sizeof(EightLanes)];
  std::memcpy(parts, &lanes, sizeof lanes);
  for (size_t count = sizeof parts / sizeof parts[0]; count > 1; count /= 2)
    for (size_t i = 0; i < count / 2; i++) parts[i] = larger(parts[i], parts[i + count / 2]);
  EightLanes most = parts[0];
#ifdef __SSE4_1__
  // The processor finds the least of unsigned numbers at once.
  return static_cast<int16_t>(~_mm_cvtsi128_si32(_mm_minpos_epu16(reinterpret_cast<__m128i>(~most))));
#else
  most = larger(most, __builtin_shufflevector(most, most, 4, 5, 6, 7, 0, 1, 2, 3));
  most = larger(most, __builtin_shufflevector(most, most, 2, 3, 0, 1, 6, 7, 4, 5));
  most = larger(most, __builtin_shufflevector(most, most, 1, 0, 3, 2, 5, 4, 7, 6));
  return most[0];
#endif
}

template <ScaleRule rule>
void scalesOf(uint8_t* __restrict scales, const uint32_t* __restrict largest, size_t blocks) {
  for (size_t block = 0; block < blocks; block++) scales[block] = static_cast<uint8_t>(scaleOf(largest[block], rule));
}

inline void scalesBy(ScaleRule rule, uint8_t* scales, const uint32_t* largest, size_t blocks) {
  switch (rule) {
    case ScaleRule::OcpFloor:
      return scalesOf<ScaleRule::OcpFloor>(scales, largest, blocks);
    case ScaleRule::RoundUp:
      return scalesOf<ScaleRule::RoundUp>(scales, largest, blocks);
    case ScaleRule::RoundUpTransformerEngine:
      return scalesOf<ScaleRule::RoundUpTransformerEngine>(scales, largest, blocks);
  }
}

inline bool isAny(Lanes lanes) {
  uint64_t words[sizeof(Lanes) / sizeof(uint64_t)], all = 0;
  std::memcpy(words, &lanes, sizeof lanes);
  for (const uint64_t word : words) all |= word;
  return all != 0;
}

/**
 * One block by its scale. Elements that become subnormal numbers take half of the work and are rare: without
 * `withSubnormals` they come out wrong, and `below` tells that there were some.
 */
template <bool withSubnormals>
inline void convertShifted(uint8_t* to, const uint8_t* from, uint32_t scale, Lanes& below) {
  const Lanes magnitudeMask = Lanes{} + static_cast<int16_t>(0x7fff);
  const Lanes shift = Lanes{} + static_cast<int16_t>((127 - static_cast<int>(scale)) * 128);
  for (size_t part = 0; part < mxBlock / laneCount; part++) {
    Lanes codes;
    std::memcpy(&codes, from + part * sizeof(Lanes), sizeof(Lanes));
    const Lanes moved = (codes & magnitudeMask) + shift, sign = codes & static_cast<int16_t>(~0x7fff);
    if constexpr (withSubnormals) {
      const ByteLanes bytes = bfloat16ToFloat8E4M3((moved > Lanes{} ? moved : Lanes{}) | sign);
      std::memcpy(to + part * laneCount, &bytes, laneCount);
    } else {
      const Lanes least = Lanes{} + static_cast<int16_t>(121 << 7), nothing = Lanes{} + static_cast<int16_t>(0x3a80);
      const Lanes most = Lanes{} + static_cast<int16_t>(0x43e0);  // 448
      below |= (moved < least) & (moved > nothing);
      const Lanes magnitude = moved < most ? moved : most;
      const Lanes normal = ((magnitude + static_cast<int16_t>(7) + ((magnitude >> 4) & static_cast<int16_t>(1))) >> 4) -
                           static_cast<int16_t>(120 << 3);
      const Lanes result = (moved < least ? Lanes{} : normal) | ((sign >> 8) & static_cast<int16_t>(0x80));
      const ByteLanes bytes = lowerBytes(reinterpret_cast<LaneBytes>(result), std::make_index_sequence<laneCount>{});
      std::memcpy(to + part * laneCount, &bytes, laneCount);
    }
  }
}

/**
 * In 16-bit lanes: a multiplication by a power of two is an addition to the exponent. Holds for scales from 16 on, where
 * elements below the normal numbers round to zero in any case; other blocks, which are tiny, go through float32. Blocks are
 * taken in groups, so that scales are found side by side and no block waits for the one before.
 */
inline void quantizeBFloat16s(uint8_t* data, uint8_t* scales, const uint8_t* source, size_t blocks, ScaleRule rule) {
  constexpr size_t parts = mxBlock / laneCount, groupBlocks = 32, blockBytes = mxBlock * sizeof(int16_t);
  constexpr uint32_t leastScale = 16;
  const Lanes magnitudeMask = Lanes{} + static_cast<int16_t>(0x7fff);
  for (size_t first = 0; first < blocks; first += groupBlocks) {
    const size_t count = blocks - first < groupBlocks ? blocks - first : groupBlocks;
    alignas(64) uint32_t largest[groupBlocks];
    for (size_t block = 0; block < count; block++) {
      Lanes top{};
      __builtin_prefetch(source + (first + block) * blockBytes + fetchAhead);
      for (size_t part = 0; part < parts; part++) {
        Lanes codes;
        std::memcpy(&codes, source + (first + block) * blockBytes + part * sizeof(Lanes), sizeof(Lanes));
        const Lanes magnitude = codes & magnitudeMask;
        top = magnitude > top ? magnitude : top;
      }
      largest[block] = static_cast<uint32_t>(largestOf(top)) << 16;
    }
    scalesBy(rule, scales + first, largest, count);
    Lanes below{};
    for (size_t block = first; block < first + count; block++) {
      const uint8_t* from = source + block * blockBytes;
      uint8_t* to = data + block * mxBlock;
      const uint32_t code = scales[block];
      if (code < leastScale || code >= 254u) {
        alignas(64) float values[mxBlock];
        for (unsigned i = 0; i < mxBlock; i++) {
          uint16_t element;
          std::memcpy(&element, from + i * sizeof element, sizeof element);
          values[i] = floatOf(static_cast<uint32_t>(element) << 16);
        }
        quantizeBlockFromFloats(to, scales + block, values, rule);
        continue;
      }
      convertShifted<false>(to, from, code, below);
    }
    if (!isAny(below)) continue;
    for (size_t block = first; block < first + count; block++)
      if (scales[block] >= leastScale && scales[block] < 254u)
        convertShifted<true>(data + block * mxBlock, source + block * blockBytes, scales[block], below);
  }
}

inline void dequantizeFloats(float* __restrict values, const uint8_t* data, const uint8_t* scales, size_t blocks) {
  for (size_t block = 0; block < blocks; block++) {
    const float factor = decodeFloat8E8M0(scales[block]);
    for (unsigned i = 0; i < mxBlock; i++)
      values[block * mxBlock + i] = quiet(scaledFloat8(data[block * mxBlock + i], factor));
  }
}

}  // namespace
}  // namespace tensorferry
