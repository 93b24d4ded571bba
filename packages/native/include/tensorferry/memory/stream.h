// SPDX-License-Identifier: Apache-2.0
/*
 * Stores past the caches. For writing more than the caches hold: an ordinary store first reads the line that it replaces,
 * and drives out what is still wanted. Any thread.
 *
 * Invariant: `finishStreaming` makes everything stored before it visible; without it a store may come late.
 * Everything has internal linkage: kernels are compiled per instruction set (see casts.h).
 */
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace tensorferry {
namespace {

inline constexpr size_t cacheLine = 64;

/** Bytes until the next cache line begins. */
inline size_t bytesToLine(const uint8_t* at) {
  return (cacheLine - reinterpret_cast<uintptr_t>(at) % cacheLine) % cacheLine;
}

#ifdef __SSE2__

/** 64 bytes; the destination is a multiple of that. */
inline void streamLine(uint8_t* destination, const uint8_t* source) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(destination), _mm512_loadu_si512(source));
#elif defined(__AVX2__)
  for (size_t at = 0; at < cacheLine; at += sizeof(__m256i))
    _mm256_stream_si256(reinterpret_cast<__m256i*>(destination + at),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + at)));
#else
  for (size_t at = 0; at < cacheLine; at += sizeof(__m128i))
    _mm_stream_si128(reinterpret_cast<__m128i*>(destination + at),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + at)));
#endif
}

/** Copies dense bytes. */
inline void streamBytes(uint8_t* destination, const uint8_t* source, size_t length) {
  const size_t head = std::min(length, bytesToLine(destination));
  std::memcpy(destination, source, head);
  size_t at = head;
  for (; at + cacheLine <= length; at += cacheLine) streamLine(destination + at, source + at);
  std::memcpy(destination + at, source + at, length - at);
}

inline void finishStreaming() { _mm_sfence(); }

#else

inline void streamLine(uint8_t* destination, const uint8_t* source) { std::memcpy(destination, source, cacheLine); }
inline void streamBytes(uint8_t* destination, const uint8_t* source, size_t length) {
  std::memcpy(destination, source, length);
}
inline void finishStreaming() {}

#endif

}  // namespace
}  // namespace tensorferry
