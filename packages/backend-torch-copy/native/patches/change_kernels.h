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

#include <tensorferry/memory/stream.h>

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

/**
 * Writes the indices of dense elements that differ, in order; `at` has room for all and for `findSlack` more. Gives their
 * number. How many of a line differ is hard to predict, so the first of them are written whether they are there or not.
 */
template <size_t size>
size_t findChanges(uint32_t* at, const uint8_t* a, const uint8_t* b, size_t count) {
  constexpr size_t lineElements = cacheLine / size;
  size_t found = 0, i = 0;
  const auto take = [&](uint64_t elements) {
    const auto many = static_cast<size_t>(__builtin_popcountll(elements));
    const auto write = [&](size_t from, size_t to) {
      for (size_t k = from; k < to; k++, elements &= elements - 1) {
        // The last bit stands for an index that counts for nothing.
        const int bit = __builtin_ctzll(elements | 1ull << 63);
        at[found + k] = static_cast<uint32_t>(i + static_cast<size_t>(bit) / size);
      }
    };
    write(0, 4);
    if (many > 4) write(4, findSlack);
    if (many > findSlack) write(findSlack, many);
    found += many;
  };
  constexpr size_t lines = 4;
  for (; i + lines * lineElements <= count;) {
    uint64_t differing[lines], any = 0;
    for (size_t line = 0; line < lines; line++) {
      const size_t offset = (i + line * lineElements) * size;
      any |= differing[line] = differingElements<size>(differingBytes(a + offset, b + offset));
    }
    if (any == 0) {
      i += lines * lineElements;
      continue;
    }
    for (size_t line = 0; line < lines; line++, i += lineElements) take(differing[line]);
  }
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
