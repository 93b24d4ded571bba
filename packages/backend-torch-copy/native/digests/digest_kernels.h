// SPDX-License-Identifier: Apache-2.0
/*
 * The inner loop of digests: whole blocks of 128 words. Products of 32 with 32 bits are made for two words of each 64 bits in
 * turn, with both parts of the factors of both halves. Included by kernels.cc, once per instruction set; everything has
 * internal linkage.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <immintrin.h>
#endif

#include <tensorferry/digest.h>

namespace tensorferry {
namespace {

constexpr size_t digestPairs = digestBlockWords / 2;

/** Bytes ahead that are asked for: the arithmetic alone keeps too few reads under way. */
constexpr size_t digestAhead = 1024;

/** Factors of even and odd words, each as it is and with its high part below. */
struct PairFactors {
  alignas(64) uint64_t of[digestHalves][2][2][digestPairs];
  constexpr PairFactors() : of() {
    for (uint32_t half = 0; half < digestHalves; half++)
      for (uint32_t word = 0; word < digestBlockWords; word++) {
        const uint64_t factor = digestWordFactor(half, word);
        of[half][word % 2][0][word / 2] = factor;
        of[half][word % 2][1][word / 2] = factor >> 32;
      }
  }
};
constexpr PairFactors pairFactors;

#if defined(__AVX512DQ__)

struct WideLanes {
  using Vector = __m512i;
  static constexpr size_t count = 8;
  static Vector zero() { return _mm512_setzero_si512(); }
  static Vector all(uint64_t value) { return _mm512_set1_epi64(static_cast<long long>(value)); }
  static Vector load(const void* at) { return _mm512_loadu_si512(at); }
  static Vector turned(Vector v) { return _mm512_ternarylogic_epi64(v, v, v, 0x55); }
  static Vector add(Vector a, Vector b) { return _mm512_add_epi64(a, b); }
  static Vector up(Vector v) { return _mm512_slli_epi64(v, 32); }
  static Vector down(Vector v) { return _mm512_srli_epi64(v, 32); }
  static Vector low(Vector a, Vector b) { return _mm512_mul_epu32(a, b); }
};

#elif defined(__AVX2__)

struct WideLanes {
  using Vector = __m256i;
  static constexpr size_t count = 4;
  static Vector zero() { return _mm256_setzero_si256(); }
  static Vector all(uint64_t value) { return _mm256_set1_epi64x(static_cast<long long>(value)); }
  static Vector load(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }
  static Vector turned(Vector v) { return _mm256_xor_si256(v, _mm256_set1_epi32(-1)); }
  static Vector add(Vector a, Vector b) { return _mm256_add_epi64(a, b); }
  static Vector up(Vector v) { return _mm256_slli_epi64(v, 32); }
  static Vector down(Vector v) { return _mm256_srli_epi64(v, 32); }
  static Vector low(Vector a, Vector b) { return _mm256_mul_epu32(a, b); }
};

#elif defined(__SSE2__)

struct WideLanes {
  using Vector = __m128i;
  static constexpr size_t count = 2;
  static Vector zero() { return _mm_setzero_si128(); }
  static Vector all(uint64_t value) { return _mm_set1_epi64x(static_cast<long long>(value)); }
  static Vector load(const void* at) { return _mm_loadu_si128(static_cast<const __m128i*>(at)); }
  static Vector turned(Vector v) { return _mm_xor_si128(v, _mm_set1_epi32(-1)); }
  static Vector add(Vector a, Vector b) { return _mm_add_epi64(a, b); }
  static Vector up(Vector v) { return _mm_slli_epi64(v, 32); }
  static Vector down(Vector v) { return _mm_srli_epi64(v, 32); }
  static Vector low(Vector a, Vector b) { return _mm_mul_epu32(a, b); }
};

#else

struct WideLanes {
  using Vector = uint64_t;
  static constexpr size_t count = 1;
  static Vector zero() { return 0; }
  static Vector all(uint64_t value) { return value; }
  static Vector load(const void* at) {
    Vector value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  static Vector turned(Vector v) { return ~v; }
  static Vector add(Vector a, Vector b) { return a + b; }
  static Vector up(Vector v) { return v << 32; }
  static Vector down(Vector v) { return v >> 32; }
  static Vector low(Vector a, Vector b) { return (a & 0xffffffff) * (b & 0xffffffff); }
};

#endif

/** Adds blocks that follow one another to both halves of a digest. */
void digestBlocks(uint64_t* halves, const uint8_t* source, uint64_t block, size_t blocks) {
  using L = WideLanes;
  using Vector = typename L::Vector;
  Vector sums[digestHalves] = {L::zero(), L::zero()};
  for (size_t b = 0; b < blocks; b++, source += digestBlockBytes) {
    Vector low[digestHalves] = {L::zero(), L::zero()}, high[digestHalves] = {L::zero(), L::zero()};
#pragma GCC unroll 8
    for (size_t pair = 0; pair < digestPairs; pair += L::count) {
      __builtin_prefetch(source + 8 * pair + digestAhead);
      const Vector even = L::turned(L::load(source + 8 * pair)), odd = L::down(even);
      for (size_t half = 0; half < digestHalves; half++) {
        const auto& factors = pairFactors.of[half];
        low[half] = L::add(low[half], L::low(even, L::load(&factors[0][0][pair])));
        high[half] = L::add(high[half], L::low(even, L::load(&factors[0][1][pair])));
        low[half] = L::add(low[half], L::low(odd, L::load(&factors[1][0][pair])));
        high[half] = L::add(high[half], L::low(odd, L::load(&factors[1][1][pair])));
      }
    }
    for (size_t half = 0; half < digestHalves; half++) {
      const Vector sum = L::add(low[half], L::up(high[half]));
      const Vector factor = L::all(digestBlockFactor(static_cast<uint32_t>(half), block + b));
      const Vector across = L::add(L::low(L::down(sum), factor), L::low(sum, L::down(factor)));
      sums[half] = L::add(sums[half], L::add(L::low(sum, factor), L::up(across)));
    }
  }
  for (size_t half = 0; half < digestHalves; half++) {
    uint64_t lanes[L::count];
    std::memcpy(lanes, &sums[half], sizeof lanes);
    for (const uint64_t lane : lanes) halves[half] += lane;
  }
}

}  // namespace
}  // namespace tensorferry
