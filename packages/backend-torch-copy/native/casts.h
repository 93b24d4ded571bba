/*
 * Conversions of single elements, as bits. Owns every rounding rule; all functions are pure and may run on any thread.
 *
 * Rules: narrow floats go through float32 and round to nearest, ties to even. float16, bfloat16 and float8_e5m2 overflow
 * to infinity; float8_e4m3fn has none and saturates at 448; float8_e8m0fnu keeps only a rounded exponent. Float to
 * integer truncates and keeps the low bits; NaN and infinity give 0. Every NaN that a conversion makes is the
 * positive quiet NaN without payload, so that all machines give the same bits.
 * Written without branches where the compiler can then use vector instructions. Everything has internal linkage: the
 * kernels are compiled per instruction set, and a shared inline function would be kept from only one of those copies.
 */
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace tensorferry {
namespace {

inline uint32_t bitsOf(float value) { return std::bit_cast<uint32_t>(value); }
inline float floatOf(uint32_t bits) { return std::bit_cast<float>(bits); }
inline float quiet(float value) { return value != value ? floatOf(0x7fc00000u) : value; }
inline double quiet(double value) { return value != value ? std::bit_cast<double>(0x7ff8000000000000ull) : value; }

/** A small float with infinities: sign, `Exponent` bits, `Mantissa` bits; the bias is the usual one. */
template <unsigned Exponent, unsigned Mantissa>
struct SmallFloat {
  static constexpr uint32_t bias = (1u << (Exponent - 1)) - 1;
  static constexpr uint32_t infinity = ((1u << Exponent) - 1) << Mantissa;
  static constexpr uint32_t nan = infinity | (1u << (Mantissa - 1));
  static constexpr uint32_t signShift = 31 - Exponent - Mantissa;
  static constexpr uint32_t shift = 23 - Mantissa;

  static uint32_t encode(float value) {
    const uint32_t bits = bitsOf(value), magnitude = bits & 0x7fffffffu, sign = (bits >> signShift) & (1u << (Exponent + Mantissa));
    const uint32_t rounded = (magnitude + (1u << (shift - 1)) - 1 + ((magnitude >> shift) & 1)) >> shift;
    const uint32_t wide = rounded - ((127 - bias) << Mantissa);
    const uint32_t normal = wide < infinity ? wide : infinity;
    // Adding this power of two makes the processor round a subnormal result at the right bit.
    const uint32_t magic = (127 - bias + 1 + shift) << 23;
    const uint32_t subnormal = bitsOf(floatOf(magnitude) + floatOf(magic)) - magic;
    const uint32_t finite = magnitude < ((127 - bias + 1) << 23) ? subnormal : normal;
    return magnitude > 0x7f800000u ? nan : finite | sign;
  }

  static float decode(uint32_t code) {
    const uint32_t magnitude = code & (infinity | ((1u << Mantissa) - 1)), sign = (code << signShift) & 0x80000000u;
    const float finite = floatOf(magnitude << shift) * floatOf((254 - bias) << 23);
    const uint32_t special = magnitude == infinity ? 0x7f800000u | sign : 0x7fc00000u;
    return floatOf(magnitude < infinity ? bitsOf(finite) | sign : special);
  }
};

using Float16 = SmallFloat<5, 10>;
using Float8E5M2 = SmallFloat<5, 2>;

inline uint32_t encodeBFloat16(float value) {
  const uint32_t bits = bitsOf(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
  return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded;
}
inline float decodeBFloat16(uint32_t code) { return quiet(floatOf(code << 16)); }

inline uint32_t encodeFloat8E4M3(float value) {
  const uint32_t bits = bitsOf(value), whole = bits & 0x7fffffffu, sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = whole < 0x43e00000u ? whole : 0x43e00000u;  // 448, the largest value
  const uint32_t normal = ((magnitude + 0x7ffffu + ((magnitude >> 20) & 1)) >> 20) - (120u << 3);
  const uint32_t subnormal = bitsOf(floatOf(magnitude) + 16384.0f) - bitsOf(16384.0f);
  const uint32_t finite = magnitude < (121u << 23) ? subnormal : normal;
  return whole > 0x7f800000u ? 0x7fu : finite | sign;
}
inline float decodeFloat8E4M3(uint32_t code) {
  const uint32_t magnitude = code & 0x7fu, sign = (code << 24) & 0x80000000u;
  const float finite = floatOf(magnitude << 20) * floatOf(247u << 23);
  return floatOf(magnitude == 0x7fu ? 0x7fc00000u : bitsOf(finite) | sign);
}

/** Rounds at one and a half; a subnormal input of exactly 2^-127 is not raised. */
inline uint32_t encodeFloat8E8M0(float value) {
  const uint32_t magnitude = bitsOf(value) & 0x7fffffffu, exponent = magnitude >> 23, mantissa = magnitude & 0x7fffffu;
  const uint32_t threshold = exponent > 0 ? 0x3fffffu : 0x400000u;
  const uint32_t raised = exponent + (mantissa > threshold ? 1u : 0u);
  return raised < 255u ? raised : 255u;
}
inline float decodeFloat8E8M0(uint32_t code) {
  const uint32_t bits = code == 0 ? 0x00400000u : code << 23;
  return floatOf(code == 255 ? 0x7fc00000u : bits);
}

/** The low 64 bits of the truncated value; 0 for NaN and infinity. */
inline uint64_t low64(double value) {
  if (std::fabs(value) < 0x1p63) return static_cast<uint64_t>(static_cast<int64_t>(value));
  const uint64_t bits = std::bit_cast<uint64_t>(value), exponent = (bits >> 52) & 0x7ff;
  if (exponent >= 1023 + 52 + 64) return 0;
  const uint64_t magnitude = ((bits & 0xfffffffffffffull) | 0x10000000000000ull) << (exponent - 1023 - 52);
  return bits >> 63 ? 0 - magnitude : magnitude;
}

template <typename Integer>
Integer truncate(double value) {
  return static_cast<Integer>(low64(value));
}

}  // namespace
}  // namespace tensorferry
