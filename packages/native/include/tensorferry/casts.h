// SPDX-License-Identifier: Apache-2.0
/*
 * Conversions of single elements, as bits. Owns every rounding rule; all functions are pure and may run on any thread.
 *
 * Rules: narrow floats go through float32 and round to nearest, ties to even. float16, bfloat16 and float8_e5m2 overflow
 * to infinity; float8_e4m3fn has none and saturates at 448; float8_e8m0fnu keeps only a rounded exponent. Float to
 * integer truncates and keeps the low bits; NaN and infinity give 0. Every NaN that a conversion makes is the
 * positive quiet NaN without payload, so that all machines give the same bits.
 * The same source is compiled for hosts and devices, so that all give the same bits. A compiler must neither contract
 * additions into fused ones (`-ffp-contract=off`, `--fmad=false`) nor flush subnormal numbers.
 * Written without branches, and with signed comparisons (vectors of unsigned numbers have none on many processors), where
 * the compiler can then use vector instructions. Everything has internal linkage: the kernels are compiled per instruction
 * set, and a shared inline function would be kept from only one of those copies.
 */
#pragma once

#include "integers.h"

#ifndef TENSORFERRY_RUNTIME_COMPILED
#include <utility>
#endif

namespace tensorferry {
namespace {

#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__) || defined(TENSORFERRY_RUNTIME_COMPILED)
inline TENSORFERRY_SHARED uint32_t bitsOf(float value) { return __float_as_uint(value); }
inline TENSORFERRY_SHARED uint64_t bitsOf(double value) { return static_cast<uint64_t>(__double_as_longlong(value)); }
inline TENSORFERRY_SHARED float floatOf(uint32_t bits) { return __uint_as_float(bits); }
inline TENSORFERRY_SHARED double doubleOf(uint64_t bits) { return __longlong_as_double(static_cast<long long>(bits)); }
inline TENSORFERRY_SHARED float absolute(float value) { return fabsf(value); }
inline TENSORFERRY_SHARED double absolute(double value) { return fabs(value); }
#else
inline TENSORFERRY_SHARED uint32_t bitsOf(float value) { return __builtin_bit_cast(uint32_t, value); }
inline TENSORFERRY_SHARED uint64_t bitsOf(double value) { return __builtin_bit_cast(uint64_t, value); }
inline TENSORFERRY_SHARED float floatOf(uint32_t bits) { return __builtin_bit_cast(float, bits); }
inline TENSORFERRY_SHARED double doubleOf(uint64_t bits) { return __builtin_bit_cast(double, bits); }
inline TENSORFERRY_SHARED float absolute(float value) { return __builtin_fabsf(value); }
inline TENSORFERRY_SHARED double absolute(double value) { return __builtin_fabs(value); }
#endif
inline TENSORFERRY_SHARED float quiet(float value) { return value != value ? floatOf(0x7fc00000u) : value; }
inline TENSORFERRY_SHARED double quiet(double value) {
  return value != value ? doubleOf(0x7ff8000000000000ull) : value;
}

/** A small float with infinities: sign, `Exponent` bits, `Mantissa` bits; the bias is the usual one. */
template <unsigned Exponent, unsigned Mantissa>
struct SmallFloat {
  static constexpr uint32_t bias = (1u << (Exponent - 1)) - 1;
  static constexpr uint32_t infinity = ((1u << Exponent) - 1) << Mantissa;
  static constexpr uint32_t nan = infinity | (1u << (Mantissa - 1));
  static constexpr uint32_t signShift = 31 - Exponent - Mantissa;
  static constexpr uint32_t shift = 23 - Mantissa;

  static TENSORFERRY_SHARED uint32_t encode(float value) {
    const uint32_t bits = bitsOf(value), sign = (bits >> signShift) & (1u << (Exponent + Mantissa));
    const int32_t magnitude = static_cast<int32_t>(bits & 0x7fffffffu);
    // A NaN may wrap around here; its result is not taken.
    const uint32_t rounded = (bitsOf(absolute(value)) + (1u << (shift - 1)) - 1 + ((magnitude >> shift) & 1)) >> shift;
    const int32_t wide = static_cast<int32_t>(rounded - ((127 - bias) << Mantissa));
    const int32_t normal = wide < static_cast<int32_t>(infinity) ? wide : static_cast<int32_t>(infinity);
    // Adding this power of two makes the processor round a subnormal result at the right bit.
    const uint32_t magic = (127 - bias + 1 + shift) << 23;
    const int32_t subnormal =
        static_cast<int32_t>(bitsOf(floatOf(static_cast<uint32_t>(magnitude)) + floatOf(magic)) - magic);
    const int32_t finite = magnitude < static_cast<int32_t>((127 - bias + 1) << 23) ? subnormal : normal;
    return magnitude > 0x7f800000 ? nan : static_cast<uint32_t>(finite) | sign;
  }

  static TENSORFERRY_SHARED float decode(uint32_t code) {
    const uint32_t magnitude = code & (infinity | ((1u << Mantissa) - 1)), sign = (code << signShift) & 0x80000000u;
    const float finite = floatOf(magnitude << shift) * floatOf((254 - bias) << 23);
    const uint32_t special = magnitude == infinity ? 0x7f800000u | sign : 0x7fc00000u;
    return floatOf(magnitude < infinity ? bitsOf(finite) | sign : special);
  }
};

using Float16 = SmallFloat<5, 10>;
using Float8E5M2 = SmallFloat<5, 2>;

inline TENSORFERRY_SHARED uint32_t encodeBFloat16(float value) {
  const uint32_t bits = bitsOf(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
  return static_cast<int32_t>(bits & 0x7fffffffu) > 0x7f800000 ? 0x7fc0u : rounded;
}
inline TENSORFERRY_SHARED float decodeBFloat16(uint32_t code) { return quiet(floatOf(code << 16)); }

/** Compilers know the instructions for compute capability 8.9 since version 12.1 only. They give the same bits. */
#if defined(__CUDA_ARCH__) && \
    (__CUDA_ARCH__ >= 900 || (__CUDA_ARCH__ >= 890 && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1201))
#define TENSORFERRY_CONVERTS_FLOAT8 1
#endif

inline TENSORFERRY_SHARED uint32_t encodeFloat8E4M3(float value) {
#ifdef TENSORFERRY_CONVERTS_FLOAT8
  unsigned short pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
  return pair;
#else
  const uint32_t bits = bitsOf(value), sign = (bits >> 24) & 0x80u;
  const int32_t whole = static_cast<int32_t>(bits & 0x7fffffffu);
  const int32_t magnitude = whole < 0x43e00000 ? whole : 0x43e00000;  // 448, the largest value
  const int32_t normal = ((magnitude + 0x7ffff + ((magnitude >> 20) & 1)) >> 20) - (120 << 3);
  const int32_t subnormal =
      static_cast<int32_t>(bitsOf(floatOf(static_cast<uint32_t>(magnitude)) + 16384.0f) - bitsOf(16384.0f));
  const int32_t finite = magnitude < (121 << 23) ? subnormal : normal;
  return whole > 0x7f800000 ? 0x7fu : static_cast<uint32_t>(finite) | sign;
#endif
}
inline TENSORFERRY_SHARED float decodeFloat8E4M3(uint32_t code) {
#ifdef TENSORFERRY_CONVERTS_FLOAT8
  float value;
  asm("{\n\t.reg .b32 both;\n\t.reg .b16 low, high;\n\t"
      "cvt.rn.f16x2.e4m3x2 both, %1;\n\tmov.b32 {low, high}, both;\n\tcvt.f32.f16 %0, low;\n\t}"
      : "=f"(value)
      : "h"(static_cast<unsigned short>(code)));
  return quiet(value);
#else
  const uint32_t magnitude = code & 0x7fu, sign = (code << 24) & 0x80000000u;
  const float finite = floatOf(magnitude << 20) * floatOf(247u << 23);
  return floatOf(magnitude == 0x7fu ? 0x7fc00000u : bitsOf(finite) | sign);
#endif
}

/** Rounds at one and a half; a subnormal input of exactly 2^-127 is not raised. */
inline TENSORFERRY_SHARED uint32_t encodeFloat8E8M0(float value) {
  const uint32_t magnitude = bitsOf(value) & 0x7fffffffu, exponent = magnitude >> 23, mantissa = magnitude & 0x7fffffu;
  const uint32_t threshold = exponent > 0 ? 0x3fffffu : 0x400000u;
  const uint32_t raised = exponent + (mantissa > threshold ? 1u : 0u);
  return raised < 255u ? raised : 255u;
}
inline TENSORFERRY_SHARED float decodeFloat8E8M0(uint32_t code) {
  const uint32_t bits = code == 0 ? 0x00400000u : code << 23;
  return floatOf(code == 255 ? 0x7fc00000u : bits);
}

/** The low 64 bits of the truncated value; 0 for NaN and infinity. */
inline TENSORFERRY_SHARED uint64_t low64(double value) {
  if (absolute(value) < 0x1p63) return static_cast<uint64_t>(static_cast<int64_t>(value));
  const uint64_t bits = bitsOf(value), exponent = (bits >> 52) & 0x7ff;
  if (exponent >= 1023 + 52 + 64) return 0;
  const uint64_t magnitude = ((bits & 0xfffffffffffffull) | 0x10000000000000ull) << (exponent - 1023 - 52);
  return bits >> 63 ? 0 - magnitude : magnitude;
}

template <typename Integer>
TENSORFERRY_SHARED Integer truncate(double value) {
  return static_cast<Integer>(low64(value));
}

#if !defined(__CUDACC__) && !defined(__HIP__) && !defined(TENSORFERRY_RUNTIME_COMPILED)

#if defined(__AVX512BW__)
inline constexpr size_t vectorBytes = 64;
#elif defined(__AVX2__)
inline constexpr size_t vectorBytes = 32;
#else
inline constexpr size_t vectorBytes = 16;
#endif
/** 16-bit numbers that fill a register of the processor. */
typedef int16_t Lanes __attribute__((vector_size(vectorBytes)));
typedef uint8_t LaneBytes __attribute__((vector_size(vectorBytes)));
inline constexpr size_t laneCount = vectorBytes / sizeof(int16_t);
typedef uint8_t ByteLanes __attribute__((vector_size(laneCount)));

template <size_t... i>
ByteLanes lowerBytes(LaneBytes bytes, std::index_sequence<i...>) {
  return __builtin_shufflevector(bytes, bytes, 2 * i...);
}

/** The same as by way of float32, in 16 bits: below the least normal number, steps of 2^-9 are counted. */
inline ByteLanes bfloat16ToFloat8E4M3(Lanes code) {
  const Lanes whole = code & static_cast<int16_t>(0x7fff), most = Lanes{} + static_cast<int16_t>(0x43e0);  // 448
  const Lanes magnitude = whole < most ? whole : most;
  const Lanes normal = ((magnitude + static_cast<int16_t>(7) + ((magnitude >> 4) & static_cast<int16_t>(1))) >> 4) -
                       static_cast<int16_t>(120 << 3);
  // Halfway between two steps the even one is taken, so that every other threshold is passed only beyond it.
  constexpr int16_t thresholds[] = {0x3a80, 0x3b3f, 0x3ba0, 0x3bdf, 0x3c10, 0x3c2f, 0x3c50, 0x3c6f};
  Lanes subnormal{};
  for (const int16_t threshold : thresholds) subnormal -= magnitude > threshold;  // true is -1
  const Lanes finite = magnitude < static_cast<int16_t>(121 << 7) ? subnormal : normal;
  const Lanes sign = (code >> 8) & static_cast<int16_t>(0x80);
  const Lanes nan = Lanes{} + static_cast<int16_t>(0x7f);
  const Lanes result = whole > static_cast<int16_t>(0x7f80) ? nan : finite | sign;
  return lowerBytes(reinterpret_cast<LaneBytes>(result), std::make_index_sequence<laneCount>{});
}

#endif

}  // namespace
}  // namespace tensorferry
