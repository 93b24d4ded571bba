// SPDX-License-Identifier: Apache-2.0
/*
 * Rules that scale a block by its largest magnitude alone: FP8 and the MX forms. Pure; any thread, hosts and devices.
 * Internal linkage as in casts.h, and for the same reason.
 *
 * Invariant: bits are those of fp8Rules.ts, mxfp8Rules.ts and mxfp4Rules.ts of @tensorferry/model, which tell whose they are.
 * Blocks that those refuse because a reference leaves them undefined have the scale byte 255 and the codes of NaN: 0 of
 * float4_e2m1, 0x7f of float8_e4m3fn.
 */
#pragma once

#include "mxfp8.h"
#include "quantize_numbers.h"

namespace tensorferry {

/** What is stored for a block, and what its values are multiplied or divided by, as `encodingOf` the rule says. */
struct BlockScaling {
  /** FP8: the bits of a float32. MX: the byte s of 2^(s - 127). NVFP4: a code of float8_e4m3fn. */
  uint32_t stored;
  float factor;
};

namespace {

inline TENSORFERRY_SHARED float quietNaN() { return floatOf(0x7fc00000u); }

// FP8

inline TENSORFERRY_SHARED BlockScaling scaledBy(float scale, float factor) { return {bitsOf(quiet(scale)), factor}; }
inline TENSORFERRY_SHARED BlockScaling multipliedBy(float scale) { return scaledBy(scale, 1.0f / scale); }
inline TENSORFERRY_SHARED BlockScaling dividedBy(float scale) { return scaledBy(scale, scale); }

/** The next power of two by the bits; what is not finite gives 2^127. */
inline TENSORFERRY_SHARED float raised(float scale) { return powerOfByte(atMost(atLeast(raisedByte(scale), 1), 254)); }

/** The next power of two by a logarithm; what is not finite stays so. Not for less than 2^-126. */
inline TENSORFERRY_SHARED float raisedByLog(float scale) {
  return scale != scale ? quietNaN() : powerOfByte(logByte(scale));
}

inline TENSORFERRY_SHARED float transformersFactor(float amax) { return amax > 0 ? 1.0f / amax * 448.0f : 1.0f; }

template <typename Source>
inline TENSORFERRY_SHARED float transformerEngineFactor(float amax, Source source) {
  const float factor = 448.0f / amax;
  return amax == 0 ? 1.0f : bitsOf(factor) == 0x7f800000u ? largestNumberOf(source) : factor;
}

/** Of one FP8 block. `amax` is NaN where any element is. */
template <QuantizeRule rule, typename Source>
inline TENSORFERRY_SHARED BlockScaling fp8Scaling(float amax, Source source) {
  constexpr float deepgemmFloor = 1e-4f;
  if constexpr (rule == QuantizeRule::Fp8Deepgemm) {
    return multipliedBy(atLeast(amax, deepgemmFloor) / 448.0f);
  } else if constexpr (rule == QuantizeRule::Fp8DeepgemmCuda) {
    return multipliedBy(atLeast(amax, deepgemmFloor) * reciprocalOfLargest());
  } else if constexpr (rule == QuantizeRule::Fp8DeepgemmPower) {
    return multipliedBy(raised(atLeast(amax, deepgemmFloor) / 448.0f));
  } else if constexpr (rule == QuantizeRule::Fp8DeepgemmPowerCuda) {
    return multipliedBy(raised(atLeast(amax, deepgemmFloor) * reciprocalOfLargest()));
  } else if constexpr (rule == QuantizeRule::Fp8VllmPower) {
    return multipliedBy(raisedByLog(atLeast(amax, deepgemmFloor) / 448.0f));
  } else if constexpr (rule == QuantizeRule::Fp8DeepseekV3) {
    return dividedBy(atLeast(amax, deepgemmFloor) / 448.0f);
  } else if constexpr (rule == QuantizeRule::Fp8DeepseekV3Power) {
    return dividedBy(raisedByLog(atLeast(amax, deepgemmFloor) / 448.0f));
  } else if constexpr (rule == QuantizeRule::Fp8SlimeRuntime) {
    return multipliedBy(atLeast(amax, 1e-10f) / 448.0f);
  } else if constexpr (rule == QuantizeRule::Fp8SlimeOffline) {
    return dividedBy(atLeast(amax, roundedTo(source, 1e-12f)) / 448.0f);
  } else if constexpr (rule == QuantizeRule::Fp8SlimeOfflineCuda) {
    return dividedBy(atLeast(amax, roundedTo(source, 1e-12f)) * reciprocalOfLargest());
  } else if constexpr (rule == QuantizeRule::Fp8MilesOffline) {
    return dividedBy(amax / 448.0f);
  } else if constexpr (rule == QuantizeRule::Fp8Transformers) {
    const float factor = transformersFactor(amax);
    return scaledBy(1.0f / factor, factor);
  } else if constexpr (rule == QuantizeRule::Fp8TransformersPower) {
    const float scale = raisedByLog(atLeast(1.0f / transformersFactor(amax), 0x1p-126f));
    return multipliedBy(isFinite(scale) ? scale : quietNaN());
  } else if constexpr (rule == QuantizeRule::Fp8TransformerEngine) {
    const float factor = transformerEngineFactor(amax, source);
    return scaledBy(1.0f / factor, factor);
  } else if constexpr (rule == QuantizeRule::Fp8TransformerEnginePower) {
    const float factor = transformerEngineFactor(amax, source);
    const float power = factor != factor ? 0.5f : floatOf(bitsOf(factor) & 0x7f800000u);
    return scaledBy(1.0f / power, power);
  } else {
    static_assert(rule == QuantizeRule::Fp8CompressedTensors, "every rule is here");
    const float quotient = roundedTo(source, amax / 448.0f);
    return dividedBy(quotient == 0 ? epsilonOf(source) : quotient);
  }
}

// MX

/** A block by its byte, whose power of two has an exact inverse. */
inline TENSORFERRY_SHARED BlockScaling scaledByPower(int32_t byte) {
  return {static_cast<uint32_t>(byte), inversePowerOfByte(byte)};
}

/** A block whose elements are all those of NaN. */
inline TENSORFERRY_SHARED BlockScaling scaledToNaN(uint32_t byte) { return {byte, quietNaN()}; }

/** The rules that device kernels have had before the others. */
inline TENSORFERRY_SHARED BlockScaling scaledByRule(float amax, ScaleRule rule) {
  const uint32_t byte = scaleOf(bitsOf(amax), rule);
  return byte == nanScale ? scaledToNaN(byte) : BlockScaling{byte, multiplierOf(byte, rule)};
}

/**
 * compressed-tensors: a quarter is added to the mantissa in the bits of the source's type, so that the exponent is one higher
 * from 1.75 on; `below` is how many powers of two the largest code is above 1.
 */
template <typename Source>
inline TENSORFERRY_SHARED BlockScaling scaledByQuarter(float amax, int32_t below, Source source) {
  const bool isHalf = source.dtype() == DType::Float16;
  // The smallest scale of float16 is zero, and 1 takes its place.
  const int32_t byte = static_cast<int32_t>((bitsOf(amax) + 0x200000u) >> 23), least = isHalf ? 127 : 0;
  const int32_t subnormal = amax * 0x1p24f >= 768.0f ? 127 - 14 - below : least;
  const int32_t normal = byte == 0 ? least : atLeast(byte - below, 0);
  const int32_t made = isHalf && amax < 0x1p-14f ? subnormal : normal;
  // Infinities and NaN have 255 and more.
  return byte > (isHalf ? 127 + 15 : 254) ? scaledToNaN(nanScale) : scaledByPower(made);
}

/** Triton: byte 0 stands for zero here, whose reciprocal is taken as zero, and 255 for infinity. */
inline TENSORFERRY_SHARED BlockScaling scaledByTriton(int32_t byte) {
  const bool isZero = byte == 0 || byte == 255;
  return {static_cast<uint32_t>(byte), isZero ? 0.0f : inversePowerOfByte(isZero ? 1 : byte)};
}

/** Of one block of 32 elements of an MX form. `amax` is NaN where any element is. */
template <QuantizeRule rule, typename Source>
inline TENSORFERRY_SHARED BlockScaling mxScaling(float amax, Source source) {
  if constexpr (rule == QuantizeRule::Mxfp8OcpFloor) {
    return scaledByRule(amax, ScaleRule::OcpFloor);
  } else if constexpr (rule == QuantizeRule::Mxfp8RoundUp) {
    return scaledByRule(amax, ScaleRule::RoundUp);
  } else if constexpr (rule == QuantizeRule::Mxfp8RoundUpTransformerEngine) {
    return scaledByRule(amax, ScaleRule::RoundUpTransformerEngine);
  } else if constexpr (rule == QuantizeRule::Mxfp8CompressedTensors) {
    return scaledByQuarter(amax, 8, source);
  } else if constexpr (rule == QuantizeRule::Mxfp8Modelopt) {
    return scaledByPower(amax != amax ? 0 : atMost(logByte(amax / 448.0f), 254));
  } else if constexpr (rule == QuantizeRule::Mxfp8VllmTorch) {
    if (amax != amax) return scaledToNaN(0);
    return scaledByPower(atMost(logByte(atLeast(amax, 0x1p-126f) / 448.0f), 254));
  } else if constexpr (rule == QuantizeRule::Mxfp8TritonUp) {
    return scaledByTriton(raisedByte(amax / 448.0f) & 0xff);
  } else if constexpr (rule == QuantizeRule::Mxfp8TritonDown) {
    return scaledByTriton(exponentByte(amax / 256.0f));
  } else if constexpr (rule == QuantizeRule::Mxfp4CompressedTensors) {
    return scaledByQuarter(amax, 2, source);
  } else if constexpr (rule == QuantizeRule::Mxfp4Modelopt) {
    // Over what is not finite all values are zero or NaN, which have one code.
    const BlockScaling made = scaledByPower(atMost(logByte(amax / 6.0f), 254));
    return isFinite(amax) ? made : BlockScaling{0, 0.0f};
  } else if constexpr (rule == QuantizeRule::Mxfp4TritonHfUp || rule == QuantizeRule::Mxfp4TritonUp) {
    return scaledByTriton(raisedByte(amax / 6.0f) & 0xff);
  } else if constexpr (rule == QuantizeRule::Mxfp4TritonHfDown) {
    return scaledByTriton(exponentByte(amax / 6.0f));
  } else if constexpr (rule == QuantizeRule::Mxfp4TritonDown) {
    return scaledByTriton(exponentByte(amax / 4.0f));
  } else if constexpr (rule == QuantizeRule::Mxfp4Deepgemm) {
    return scaledByPower(atMost(atLeast(raisedByte(atLeast(amax, 1e-4f) / 6.0f), 1), 254));
  } else {
    static_assert(rule == QuantizeRule::Mxfp4TransformerEngine, "every rule is here");
    return amax != amax ? scaledToNaN(nanScale) : scaledByPower(atMost(logByte(amax / 6.0f), 254));
  }
}

}  // namespace
}  // namespace tensorferry
