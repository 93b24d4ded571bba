// SPDX-License-Identifier: Apache-2.0
/*
 * Block scaling: the scale of a block of 32 elements and the factor for its elements, as bits. Pure; any thread, hosts and
 * devices. Internal linkage as in casts.h, and for the same reason.
 *
 * A scale byte s stands for 2^(s - 127), 255 for NaN. Elements are multiplied by 2^(127 - s) in float32, which is exact
 * where it matters, and encoded as float8_e4m3fn.
 */
#pragma once

#include "casts.h"

namespace tensorferry {

inline constexpr unsigned mxBlock = 32;

/** In the order in which TypeScript numbers them. */
enum class ScaleRule : uint8_t { OcpFloor, RoundUp, RoundUpTransformerEngine };
inline constexpr unsigned scaleRuleCount = 3;

namespace {

inline constexpr uint32_t nanScale = 255;

/** float32(1/448). */
inline TENSORFERRY_SHARED float reciprocalOfLargest() { return floatOf(0x3b124925u); }

/** Rounded up to a power of two, as an exponent byte. */
inline TENSORFERRY_SHARED uint32_t ceilingExponent(uint32_t bits) {
  const int32_t exponent = static_cast<int32_t>(bits >> 23), mantissa = static_cast<int32_t>(bits & 0x7fffffu);
  const int32_t threshold = exponent > 0 ? 0 : 0x400000;
  return static_cast<uint32_t>(exponent + (mantissa > threshold ? 1 : 0));
}

/** The scale byte by the bits of the block's largest magnitude, of a NaN where any element is. Without branches on it. */
inline TENSORFERRY_SHARED uint32_t scaleOf(uint32_t largest, ScaleRule rule) {
  const int32_t whole = static_cast<int32_t>(largest);
  const int32_t floored = (whole >> 23) - 8, floor = floored > 0 ? floored : 0;
  const uint32_t finite = rule == ScaleRule::OcpFloor
                              ? static_cast<uint32_t>(floor)
                              : ceilingExponent(bitsOf(floatOf(largest) * reciprocalOfLargest()));
  const uint32_t infinite = rule == ScaleRule::RoundUpTransformerEngine ? 254u : nanScale;
  return whole < 0x7f800000 ? finite : whole == 0x7f800000 ? infinite : nanScale;
}

/** 2^(127 - s); not for the NaN scale. */
inline TENSORFERRY_SHARED float multiplierOf(uint32_t scale, ScaleRule rule) {
  if (rule == ScaleRule::RoundUpTransformerEngine && scale == 0) return 1.0f;
  return floatOf(scale == 254u ? 0x00400000u : (254u - scale) << 23);
}

/** The value of an element; `factor` is the decoded scale. */
inline TENSORFERRY_SHARED float scaledFloat8(uint32_t code, float factor) { return decodeFloat8E4M3(code) * factor; }

}  // namespace
}  // namespace tensorferry
