// SPDX-License-Identifier: Apache-2.0
/*
 * The inner loops of searches for changed elements: 64 bytes of two tensors at a time, a bit for each byte that differs.
 * Included by kernels.cc, once per instruction set; everything has internal linkage.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "../stream.h"

namespace tensorferry {
namespace {

#if defined(__AVX512BW__)

inline uint64_t differingBytes(const uint8_t* a, const uint8_t* b) {
  return _mm512_cmpneq_epi8_mask(_mm512_loadu_si512(a), _mm512_loadu_si512(b));
}

#elif defined(__AVX2__)

inline uint64_t differingBytes(const uint8_t* a, const uint8_t* b) {
  const auto half = [](const uint8_t* x, const uint8_t* y) {
    const __m256i equal = _mm256_cmpeq_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)),
                                            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(y)));
    return ~static_cast<uint32_t>(_mm256_movemask_epi8(equal));
  };
  return static_cast<uint64_t>(half(a + 32, b + 32)) << 32 | half(a, b);
}

#elif defined(__SSE2__)

inline uint64_t differingBytes(const uint8_t* a, const uint8_t* b) {
  uint64_t found = 0;
  for (size_t at = 0; at < cacheLine; at += sizeof(__m128i)) {
    const __m128i equal = _mm_cmpeq_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a + at)),
                                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(b + at)));
    found |= static_cast<uint64_t>(~static_cast<uint32_t>(_mm_movemask_epi8(equal)) & 0xffffu) << at;
  }
  return found;
}

#else

inline uint64_t differingBytes(const uint8_t* a, const uint8_t* b) {
  if (std::memcmp(a, b, cacheLine) == 0) return 0;
  uint64_t found = 0;
  for (size_t at = 0; at < cacheLine; at++) found |= static_cast<uint64_t>(a[at] != b[at]) << at;
  return found;
}

#endif

/** From a bit per byte to one per element, at its first byte. */
template <size_t size>
uint64_t differingElements(uint64_t bytes) {
  if constexpr (size >= 2) bytes |= bytes >> 1;
  if constexpr (size >= 4) bytes |= bytes >> 2;
  if constexpr (size >= 8) bytes |= bytes >> 4;
  constexpr uint64_t firsts = size == 1   ? ~0ull
                              : size == 2 ? 0x5555555555555555ull
                              : size == 4 ? 0x1111111111111111ull
                                          : 0x0101010101010101ull;
  return bytes & firsts;
}

/** Writes the indices of dense elements that differ, in order; `at` has room for all. Gives their number. */
template <size_t size>
size_t findChanges(uint32_t* at, const uint8_t* a, const uint8_t* b, size_t count) {
  constexpr size_t lineElements = cacheLine / size;
  size_t found = 0, i = 0;
  const auto take = [&](uint64_t elements) {
    for (; elements != 0; elements &= elements - 1)
      at[found++] = static_cast<uint32_t>(i + static_cast<size_t>(__builtin_ctzll(elements)) / size);
  };
  for (; i + lineElements <= count; i += lineElements)
    take(differingElements<size>(differingBytes(a + i * size, b + i * size)));
  if (i < count) {
    uint8_t lastA[cacheLine] = {}, lastB[cacheLine] = {};
    std::memcpy(lastA, a + i * size, (count - i) * size);
    std::memcpy(lastB, b + i * size, (count - i) * size);
    take(differingElements<size>(differingBytes(lastA, lastB)));
  }
  return found;
}

}  // namespace
}  // namespace tensorferry
