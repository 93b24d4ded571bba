// SPDX-License-Identifier: Apache-2.0
/*
 * Every rule of quantized forms: from the largest magnitude of a block to what is stored, from a value to its code, and back.
 * Pure; any thread, hosts and devices. Internal linkage as in casts.h, and for the same reason.
 *
 * Invariant: a code depends on its value, on what its block is scaled by and on the rule alone. Compilers must neither
 * contract operations nor replace divisions: bits are those of @tensorferry/model.
 */
#pragma once

#include "quantize_blocks.h"
#include "quantize_groups.h"

namespace tensorferry {

/** How a value becomes a code: what many rules share. */
enum class Encoding : uint8_t {
  /** float8_e4m3fn of a product or quotient, rounded to the source's type before or not. */
  Float8Product,
  Float8RoundedProduct,
  Float8Quotient,
  Float8RoundedQuotient,
  /** float4_e2m1, ties to even; a sign for what is below zero; NaN has 0, or 7. */
  Float4Product,
  Float4RoundedProduct,
  Float4Quotient,
  Float4QuotientOrSeven,
  /** float4_e2m1 with the sign bit of the value, NaN included; ties to even, or away from zero. */
  Float4SignEven,
  Float4SignUp,
  /** float4_e2m1, ties toward zero: only what is above zero has no sign; or no zero has one. */
  Float4NotAbove,
  Float4NoMinusZero,
};
inline constexpr unsigned encodingCount = 12;

inline constexpr TENSORFERRY_SHARED Encoding encodingOf(QuantizeRule rule) noexcept {
  switch (rule) {
    case QuantizeRule::Mxfp8CompressedTensors:
      return Encoding::Float8RoundedProduct;
    case QuantizeRule::Fp8DeepseekV3:
    case QuantizeRule::Fp8DeepseekV3Power:
    case QuantizeRule::Fp8SlimeOffline:
    case QuantizeRule::Fp8SlimeOfflineCuda:
    case QuantizeRule::Fp8MilesOffline:
      return Encoding::Float8Quotient;
    case QuantizeRule::Fp8CompressedTensors:
      return Encoding::Float8RoundedQuotient;
    case QuantizeRule::Mxfp4CompressedTensors:
      return Encoding::Float4RoundedProduct;
    case QuantizeRule::Mxfp4Modelopt:
      return Encoding::Float4NotAbove;
    case QuantizeRule::Mxfp4TritonHfUp:
    case QuantizeRule::Mxfp4TritonHfDown:
      return Encoding::Float4SignUp;
    case QuantizeRule::Mxfp4TritonUp:
    case QuantizeRule::Mxfp4TritonDown:
      return Encoding::Float4SignEven;
    case QuantizeRule::Mxfp4Deepgemm:
      return Encoding::Float4NoMinusZero;
    case QuantizeRule::Nvfp4Modelopt:
    case QuantizeRule::Nvfp4ModeloptCuda:
      return Encoding::Float4QuotientOrSeven;
    case QuantizeRule::Nvfp4CompressedTensors:
      return Encoding::Float4Quotient;
    case QuantizeRule::Mxfp4TransformerEngine:
    case QuantizeRule::Nvfp4TransformerEngine1x16:
    case QuantizeRule::Nvfp4TransformerEngine16x16:
    case QuantizeRule::Nvfp4TransformerEngine4Over6:
    case QuantizeRule::Nvfp4Vllm:
      return Encoding::Float4Product;
    default:
      return Encoding::Float8Product;
  }
}

inline constexpr TENSORFERRY_SHARED bool isFloat8(Encoding encoding) noexcept {
  return encoding <= Encoding::Float8RoundedQuotient;
}
inline constexpr TENSORFERRY_SHARED bool isQuotient(Encoding encoding) noexcept {
  return encoding == Encoding::Float8Quotient || encoding == Encoding::Float8RoundedQuotient ||
         encoding == Encoding::Float4Quotient || encoding == Encoding::Float4QuotientOrSeven;
}
inline constexpr TENSORFERRY_SHARED bool isRounded(Encoding encoding) noexcept {
  return encoding == Encoding::Float8RoundedProduct || encoding == Encoding::Float8RoundedQuotient ||
         encoding == Encoding::Float4RoundedProduct;
}

namespace {

/** The code of float4_e2m1 for what a value is under its scale. */
template <Encoding encoding>
inline TENSORFERRY_SHARED uint32_t encodeFloat4(float value, float scaled) {
  constexpr bool isUp = encoding == Encoding::Float4SignUp;
  constexpr bool isDown = encoding == Encoding::Float4NotAbove || encoding == Encoding::Float4NoMinusZero;
  const bool isNaN = scaled != scaled;
  const uint32_t magnitude = magnitudeOfFloat4<isUp ? Ties::Up : isDown ? Ties::Down : Ties::Even>(bitsOf(scaled));
  if constexpr (encoding == Encoding::Float4SignEven || encoding == Encoding::Float4SignUp) {
    // A NaN that comes of infinity over infinity is negative, as x86 makes it.
    const uint32_t sign = (bitsOf(value) >> 28) & 8u;
    return magnitude | (isNaN && value == value ? 8u : sign);
  } else if constexpr (encoding == Encoding::Float4NotAbove) {
    return isNaN ? 8u : magnitude | (scaled > 0 ? 0u : 8u);
  } else if constexpr (encoding == Encoding::Float4NoMinusZero) {
    return isNaN ? 0u : magnitude | (magnitude != 0 && scaled < 0 ? 8u : 0u);
  } else {
    return isNaN ? (encoding == Encoding::Float4QuotientOrSeven ? 7u : 0u) : magnitude | (scaled < 0 ? 8u : 0u);
  }
}

/** The code of a value; `factor` is that of its block's scaling. */
template <Encoding encoding, typename Source>
inline TENSORFERRY_SHARED uint32_t codeOf(float value, float factor, Source source) {
  float scaled = isQuotient(encoding) ? value / factor : value * factor;
  if constexpr (isRounded(encoding)) scaled = roundedTo(source, scaled);
  if constexpr (isFloat8(encoding)) {
    return encodeFloat8E4M3(scaled);
  } else {
    return encodeFloat4<encoding>(value, scaled);
  }
}

/** What a block is scaled by. `global` matters for NVFP4 only. */
template <QuantizeRule rule, typename Source>
inline TENSORFERRY_SHARED BlockScaling scalingOf(float amax, const GlobalScaling& global, Source source) {
  if constexpr (formOf(rule) == QuantizeForm::Fp8) {
    return fp8Scaling<rule>(amax, source);
  } else if constexpr (formOf(rule) == QuantizeForm::Nvfp4) {
    return groupScaling<rule>(amax, global, source);
  } else {
    return mxScaling<rule>(amax, source);
  }
}

/** The sum of errors under a scaling from left to right: what the 4over6 rule chooses by. `valueAt` gives float32 values. */
template <typename ValueAt>
inline TENSORFERRY_SHARED float errorOf(const BlockScaling& scaling, float global, uint32_t count,
                                        const ValueAt& valueAt) {
  constexpr QuantizeRule rule = QuantizeRule::Nvfp4TransformerEngine4Over6;
  const float scale = decodeFloat8E4M3(scaling.stored);
  float sum = 0;
  for (uint32_t i = 0; i < count; i++) {
    const float value = valueAt(i);
    const uint32_t code = codeOf<encodingOf(rule)>(value, scaling.factor, KnownSource<DType::Float32>{});
    sum = sum + absolute(readGroup(rule, decodeFloat4(code), scale, global) - value);
  }
  return sum;
}

/** The value of a number under the stored scale of its block, as float32: a byte of MX, a code of NVFP4. */
inline TENSORFERRY_SHARED float readScaled(QuantizeRule rule, float number, uint32_t stored, float global) {
  switch (formOf(rule)) {
    case QuantizeForm::Fp8:
      return number * floatOf(stored);
    case QuantizeForm::Nvfp4:
      return readGroup(rule, number, decodeFloat8E4M3(stored), global);
    default:
      return number * decodeFloat8E8M0(stored);
  }
}

/** One CALL for each rule of a form, a macro that is given its name; and for those of all forms. */
#define TENSORFERRY_FOR_EACH_MXFP8_RULE(CALL) \
  CALL(Mxfp8OcpFloor)                         \
  CALL(Mxfp8RoundUp)                          \
  CALL(Mxfp8RoundUpTransformerEngine)         \
  CALL(Mxfp8CompressedTensors)                \
  CALL(Mxfp8Modelopt)                         \
  CALL(Mxfp8VllmTorch)                        \
  CALL(Mxfp8TritonUp)                         \
  CALL(Mxfp8TritonDown)

#define TENSORFERRY_FOR_EACH_FP8_RULE(CALL) \
  CALL(Fp8Deepgemm)                         \
  CALL(Fp8DeepgemmCuda)                     \
  CALL(Fp8DeepgemmPower)                    \
  CALL(Fp8DeepgemmPowerCuda)                \
  CALL(Fp8VllmPower)                        \
  CALL(Fp8DeepseekV3)                       \
  CALL(Fp8DeepseekV3Power)                  \
  CALL(Fp8SlimeRuntime)                     \
  CALL(Fp8SlimeOffline)                     \
  CALL(Fp8SlimeOfflineCuda)                 \
  CALL(Fp8MilesOffline)                     \
  CALL(Fp8Transformers)                     \
  CALL(Fp8TransformersPower)                \
  CALL(Fp8TransformerEngine)                \
  CALL(Fp8TransformerEnginePower)           \
  CALL(Fp8CompressedTensors)

#define TENSORFERRY_FOR_EACH_MXFP4_RULE(CALL) \
  CALL(Mxfp4CompressedTensors)                \
  CALL(Mxfp4Modelopt)                         \
  CALL(Mxfp4TritonHfUp)                       \
  CALL(Mxfp4TritonHfDown)                     \
  CALL(Mxfp4TritonUp)                         \
  CALL(Mxfp4TritonDown)                       \
  CALL(Mxfp4Deepgemm)                         \
  CALL(Mxfp4TransformerEngine)

#define TENSORFERRY_FOR_EACH_NVFP4_RULE(CALL) \
  CALL(Nvfp4Modelopt)                         \
  CALL(Nvfp4ModeloptCuda)                     \
  CALL(Nvfp4CompressedTensors)                \
  CALL(Nvfp4TransformerEngine1x16)            \
  CALL(Nvfp4TransformerEngine16x16)           \
  CALL(Nvfp4TransformerEngine4Over6)          \
  CALL(Nvfp4Vllm)

#define TENSORFERRY_FOR_EACH_RULE(CALL) \
  TENSORFERRY_FOR_EACH_MXFP8_RULE(CALL) \
  TENSORFERRY_FOR_EACH_FP8_RULE(CALL)   \
  TENSORFERRY_FOR_EACH_MXFP4_RULE(CALL) \
  TENSORFERRY_FOR_EACH_NVFP4_RULE(CALL)

/** The scaling of one block by a rule that only a table tells. */
template <typename Source>
inline TENSORFERRY_SHARED BlockScaling scalingBy(QuantizeRule rule, float amax, const GlobalScaling& global,
                                                 Source source) {
  switch (rule) {
#define TENSORFERRY_SCALING(NAME) \
  case QuantizeRule::NAME:        \
    return scalingOf<QuantizeRule::NAME>(amax, global, source);
    TENSORFERRY_FOR_EACH_RULE(TENSORFERRY_SCALING)
#undef TENSORFERRY_SCALING
  }
  return {};
}

}  // namespace
}  // namespace tensorferry
