// SPDX-License-Identifier: Apache-2.0
/*
 * What the rules of quantized forms are named, and the numbers that they round to: source types, powers of two by their byte,
 * float4_e2m1. Pure; any thread, hosts and devices. Internal linkage as in casts.h, and for the same reason.
 *
 * Invariant: each function rounds once, as numbers.ts of @tensorferry/model does; that one defines the bits.
 */
#pragma once

#include "casts.h"
#include "dtype.h"

namespace tensorferry {

/** How codes and scales are laid out. In the order in which TypeScript numbers them. */
enum class QuantizeForm : uint8_t { Mxfp8, Fp8, Mxfp4, Nvfp4 };
inline constexpr unsigned quantizeFormCount = 4;

/** Rules of all forms, form by form, in the order in which TypeScript numbers them. */
enum class QuantizeRule : uint8_t {
  Mxfp8OcpFloor,
  Mxfp8RoundUp,
  Mxfp8RoundUpTransformerEngine,
  Mxfp8CompressedTensors,
  Mxfp8Modelopt,
  Mxfp8VllmTorch,
  Mxfp8TritonUp,
  Mxfp8TritonDown,
  Fp8Deepgemm,
  Fp8DeepgemmCuda,
  Fp8DeepgemmPower,
  Fp8DeepgemmPowerCuda,
  Fp8VllmPower,
  Fp8DeepseekV3,
  Fp8DeepseekV3Power,
  Fp8SlimeRuntime,
  Fp8SlimeOffline,
  Fp8SlimeOfflineCuda,
  Fp8MilesOffline,
  Fp8Transformers,
  Fp8TransformersPower,
  Fp8TransformerEngine,
  Fp8TransformerEnginePower,
  Fp8CompressedTensors,
  Mxfp4CompressedTensors,
  Mxfp4Modelopt,
  Mxfp4TritonHfUp,
  Mxfp4TritonHfDown,
  Mxfp4TritonUp,
  Mxfp4TritonDown,
  Mxfp4Deepgemm,
  Mxfp4TransformerEngine,
  Nvfp4Modelopt,
  Nvfp4ModeloptCuda,
  Nvfp4CompressedTensors,
  Nvfp4TransformerEngine1x16,
  Nvfp4TransformerEngine16x16,
  Nvfp4TransformerEngine4Over6,
  Nvfp4Vllm,
};
inline constexpr unsigned quantizeRuleCount = 39;

/** Numbers of a form's first rule, and of the first that is none of its. */
inline constexpr TENSORFERRY_SHARED QuantizeForm formOf(QuantizeRule rule) noexcept {
  return rule < QuantizeRule::Fp8Deepgemm              ? QuantizeForm::Mxfp8
         : rule < QuantizeRule::Mxfp4CompressedTensors ? QuantizeForm::Fp8
         : rule < QuantizeRule::Nvfp4Modelopt          ? QuantizeForm::Mxfp4
                                                       : QuantizeForm::Nvfp4;
}

/** Whether two elements share a byte of data, the first in its low half. */
inline constexpr TENSORFERRY_SHARED bool isPacked(QuantizeForm form) noexcept {
  return form == QuantizeForm::Mxfp4 || form == QuantizeForm::Nvfp4;
}

/** Elements of a row that share a stored scale; 0 where blocks say it. */
inline constexpr TENSORFERRY_SHARED unsigned groupOf(QuantizeForm form) noexcept {
  return form == QuantizeForm::Fp8 ? 0 : form == QuantizeForm::Nvfp4 ? 16 : 32;
}

namespace {

inline constexpr float largestFloat32 = 0x1.fffffep127f;

/** The type that values had before they were quantized: one that is known to the compiler, or one that only a table tells. */
template <DType type>
struct KnownSource {
  static constexpr TENSORFERRY_SHARED DType dtype() { return type; }
};
struct StatedSource {
  DType type;
  TENSORFERRY_SHARED DType dtype() const { return type; }
};

/** What one operation in the source's type gives after its float32 arithmetic. */
template <typename Source>
inline TENSORFERRY_SHARED float roundedTo(Source source, float value) {
  if (source.dtype() == DType::BFloat16) return floatOf(encodeBFloat16(value) << 16);
  if (source.dtype() == DType::Float16) return Float16::decode(Float16::encode(value));
  return value;
}

/** The distance from 1 to the next number of the type. */
template <typename Source>
inline TENSORFERRY_SHARED float epsilonOf(Source source) {
  return source.dtype() == DType::BFloat16 ? 0x1p-7f : source.dtype() == DType::Float16 ? 0x1p-10f : 0x1p-23f;
}

template <typename Source>
inline TENSORFERRY_SHARED float leastNormalOf(Source source) {
  return source.dtype() == DType::Float16 ? 0x1p-14f : 0x1p-126f;
}

template <typename Source>
inline TENSORFERRY_SHARED float largestNumberOf(Source source) {
  return source.dtype() == DType::BFloat16 ? 0x1.fep127f : source.dtype() == DType::Float16 ? 65504.0f : largestFloat32;
}

/** The larger and the smaller one; a NaN in the first stays. */
inline TENSORFERRY_SHARED float atLeast(float value, float floor) { return floor > value ? floor : value; }
inline TENSORFERRY_SHARED float atMost(float value, float top) { return value > top ? top : value; }
inline TENSORFERRY_SHARED int32_t atLeast(int32_t value, int32_t floor) { return value > floor ? value : floor; }
inline TENSORFERRY_SHARED int32_t atMost(int32_t value, int32_t top) { return value < top ? value : top; }

inline TENSORFERRY_SHARED bool isFinite(float value) { return (bitsOf(value) & 0x7f800000u) != 0x7f800000u; }

/** The float32 of 2^(byte - 127) for a byte from 0 to 254; infinity for 255. */
inline TENSORFERRY_SHARED float powerOfByte(int32_t byte) {
  return floatOf(byte == 0 ? 0x00400000u : static_cast<uint32_t>(byte) << 23);
}
/** 2^(127 - byte) for a byte from 0 to 254: what the above is divided by. A power of two has an exact one. */
inline TENSORFERRY_SHARED float inversePowerOfByte(int32_t byte) {
  return floatOf(byte == 254 ? 0x00400000u : static_cast<uint32_t>(254 - byte) << 23);
}

/** The exponent byte of a magnitude: that of the power of two below. */
inline TENSORFERRY_SHARED int32_t exponentByte(float value) { return static_cast<int32_t>(bitsOf(value) >> 23 & 0xff); }

/** The same raised to the next power of two by the bits; 255 and 256 stand for what is not finite. */
inline TENSORFERRY_SHARED int32_t raisedByte(float value) {
  return exponentByte(value) + ((bitsOf(value) & 0x7fffffu) != 0 ? 1 : 0);
}

/**
 * The exponent byte raised by a logarithm that was rounded to float32, which is how many references do it: just above a
 * power of two that logarithm is a whole number, so that so many units of the mantissa are missed. What is at most 2^-127
 * gives 0; infinity gives 255, and so does NaN.
 */
inline TENSORFERRY_SHARED int32_t logByte(float value) {
  const int32_t bits = static_cast<int32_t>(bitsOf(value) & 0x7fffffffu);
  // A subnormal number from 2^-127 on has its leading bit moved into the place of the exponent's last one.
  const bool isSubnormal = bits < 0x800000;
  const int32_t exponent = isSubnormal ? 0 : bits >> 23;
  const int32_t mantissa = isSubnormal ? 2 * bits - 0x800000 : bits & 0x7fffff;
  // Numbers as near to the exponent lie as far apart as the larger ones of their binade.
  const int32_t power = exponent - 127, away = power < 0 ? -1 - power : power;
  const int32_t missed =
      (away >= 4 ? 1 : 0) + (away >= 8 ? 1 : 0) + (away >= 16 ? 3 : 0) + (away >= 32 ? 6 : 0) + (away >= 64 ? 11 : 0);
  return exponent + (exponent < 255 && mantissa > missed ? 1 : 0);
}

/** What becomes of a value in the middle of two numbers of float4_e2m1. */
enum class Ties : uint8_t { Even, Down, Up };

/** The code 0 to 7 of a magnitude by its bits, saturating at 6; NaN has 7. */
template <Ties ties>
inline TENSORFERRY_SHARED uint32_t magnitudeOfFloat4(uint32_t bits) {
  const int32_t whole = static_cast<int32_t>(bits & 0x7fffffffu);
  const int32_t magnitude = whole < 0x40c00000 ? whole : 0x40c00000;  // 6, the largest value
  const int32_t half = ties == Ties::Even   ? 0x1fffff + ((magnitude >> 22) & 1)
                       : ties == Ties::Down ? 0x1fffff
                                            : 0x200000;
  const int32_t normal = ((magnitude + half) >> 22) - 252;
  // Below 1 there are zero and a half: the middles are 0.25 and 0.75.
  const int32_t first = ties == Ties::Up ? 0x3e7fffff : 0x3e800000,
                second = ties == Ties::Down ? 0x3f400000 : 0x3f3fffff;
  const int32_t subnormal = (magnitude > first ? 1 : 0) + (magnitude > second ? 1 : 0);
  return static_cast<uint32_t>(magnitude < 0x3f800000 ? subnormal : normal);
}

/** The value of a code of float4_e2m1, in the low four bits. */
inline TENSORFERRY_SHARED float decodeFloat4(uint32_t code) {
  const float magnitude = floatOf((code & 7u) << 22) * 0x1p126f;
  return floatOf(bitsOf(magnitude) | (code & 8u) << 28);
}

}  // namespace
}  // namespace tensorferry
