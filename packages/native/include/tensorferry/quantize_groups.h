// SPDX-License-Identifier: Apache-2.0
/*
 * Rules of NVFP4: a global scale, and under it the scale of a group of 16 elements. Pure; any thread, hosts and devices.
 * Internal linkage as in casts.h, and for the same reason.
 *
 * Invariant: bits are those of nvfp4Rules.ts of @tensorferry/model, which tells whose they are. Where those refuse a NaN that
 * the reference has no code for, its code is 0.
 */
#pragma once

#include "quantize_blocks.h"

namespace tensorferry {

/** What the global scale settles for all groups. What the numbers beside `stored` are is the rule's business. */
struct GlobalScaling {
  float stored;
  float first, second;
};

namespace {

/** The global scale that stands for the largest magnitude of all that share it. */
template <typename Source>
inline TENSORFERRY_SHARED float globalOf(QuantizeRule rule, float amax, Source source) {
  switch (rule) {
    case QuantizeRule::Nvfp4Modelopt:
      return amax / 2688.0f;
    case QuantizeRule::Nvfp4ModeloptCuda:
      return amax * (1.0f / 2688.0f);
    case QuantizeRule::Nvfp4CompressedTensors: {
      const float inverse = roundedTo(source, 1.0f / atLeast(roundedTo(source, amax), leastNormalOf(source)));
      const float global = roundedTo(source, inverse * 2688.0f);
      return isFinite(global) ? global : 1.0f;
    }
    case QuantizeRule::Nvfp4Vllm:
      return 1.0f / (1.0f / atLeast(amax, 1e-8f) * 2688.0f);
    default:
      return amax;
  }
}

/** From a stored global scale; vLLM's does not say enough, see `globalFromMaximum`. */
inline TENSORFERRY_SHARED GlobalScaling globalFromStored(QuantizeRule rule, float stored) {
  switch (rule) {
    case QuantizeRule::Nvfp4Modelopt:
    case QuantizeRule::Nvfp4ModeloptCuda:
      return {stored, 6.0f * stored, stored};
    case QuantizeRule::Nvfp4CompressedTensors:
      return {stored, stored, stored};
    case QuantizeRule::Nvfp4Vllm:
      return {stored, 1.0f / stored, stored};
    default: {
      const float most = atMost(2688.0f / stored, largestFloat32), encode = most == 0 ? 1.0f : most;
      const float multiplier = rule == QuantizeRule::Nvfp4TransformerEngine4Over6 ? encode : encode * (1.0f / 6.0f);
      return {stored, multiplier, 1.0f / encode};
    }
  }
}

/** From the largest magnitude of all that share the global scale. */
template <typename Source>
inline TENSORFERRY_SHARED GlobalScaling globalFromMaximum(QuantizeRule rule, float amax, Source source) {
  const GlobalScaling made = globalFromStored(rule, globalOf(rule, amax, source));
  if (rule != QuantizeRule::Nvfp4Vllm) return made;
  return {made.stored, 1.0f / atLeast(amax, 1e-8f) * 2688.0f, made.stored};
}

/** Not for negative zero. */
inline TENSORFERRY_SHARED BlockScaling scaledByTransformerEngine(float scale, float decode) {
  const uint32_t code = encodeFloat8E4M3(scale);
  return {code, atMost(1.0f / (decodeFloat8E4M3(code) * decode), largestFloat32)};
}

/** What a group would be scaled by if it filled the codes to 4 and not to 6. */
inline TENSORFERRY_SHARED BlockScaling otherScaling(float largest, const GlobalScaling& global) {
  return scaledByTransformerEngine(largest / 6.0f * global.first * 1.5f, global.second);
}

/** Of one group. `largest` is NaN where any element is. */
template <QuantizeRule rule, typename Source>
inline TENSORFERRY_SHARED BlockScaling groupScaling(float largest, const GlobalScaling& global, Source source) {
  if constexpr (rule == QuantizeRule::Nvfp4Modelopt || rule == QuantizeRule::Nvfp4ModeloptCuda) {
    const float quotient = largest / global.first;
    const uint32_t code = encodeFloat8E4M3(quotient == 0 ? 1.0f : atLeast(quotient, 0x1p-9f));
    return {code, decodeFloat8E4M3(code) * global.second};
  } else if constexpr (rule == QuantizeRule::Nvfp4CompressedTensors) {
    const uint32_t found = encodeFloat8E4M3(global.first * roundedTo(source, largest / 6.0f));
    const uint32_t code = found == 0 ? 0x20u : found;
    return {code, decodeFloat8E4M3(code) / global.first};
  } else if constexpr (rule == QuantizeRule::Nvfp4TransformerEngine1x16 ||
                       rule == QuantizeRule::Nvfp4TransformerEngine16x16) {
    return scaledByTransformerEngine(largest * global.first, global.second);
  } else if constexpr (rule == QuantizeRule::Nvfp4TransformerEngine4Over6) {
    return scaledByTransformerEngine(largest / 6.0f * global.first, global.second);
  } else {
    static_assert(rule == QuantizeRule::Nvfp4Vllm, "every rule is here");
    const uint32_t code = encodeFloat8E4M3(global.first * (largest * (1.0f / 6.0f)));
    return {code, code == 0 ? 1e-8f : 1.0f / (decodeFloat8E4M3(code) * global.second)};
  }
}

/** The value of a number of float4_e2m1 under the value of its group's scale and the stored global scale. */
inline TENSORFERRY_SHARED float readGroup(QuantizeRule rule, float number, float scale, float global) {
  switch (rule) {
    case QuantizeRule::Nvfp4Modelopt:
    case QuantizeRule::Nvfp4ModeloptCuda:
      // ModelOpt's table has no minus zero.
      return (number + 0.0f) * (scale * global);
    case QuantizeRule::Nvfp4CompressedTensors:
      return number * (scale / global);
    case QuantizeRule::Nvfp4Vllm:
      return number * (scale * global);
    case QuantizeRule::Nvfp4TransformerEngine4Over6:
      return number * scale * global / 2688.0f;
    default:
      return number * scale * (global / 2688.0f);
  }
}

}  // namespace
}  // namespace tensorferry
