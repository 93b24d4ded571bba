/*
 * Stores past the caches. For writing more than the caches hold: an ordinary store first reads the line that it replaces,
 * and drives out what is still wanted. Any thread.
 *
 * Invariant: `finishStreaming` makes everything stored before it visible; without it a store may come late.
 */
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace tensorferry {

inline constexpr size_t cacheLine = 64;

#ifdef __SSE2__

namespace streaming {
/** 64 bytes; the destination is a multiple of 16. */
inline void storeLine(uint8_t* destination, const uint8_t* source) {
  for (size_t at = 0; at < cacheLine; at += sizeof(__m128i))
    _mm_stream_si128(reinterpret_cast<__m128i*>(destination + at),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + at)));
}
}  // namespace streaming

/** Copies dense bytes. */
inline void streamBytes(uint8_t* destination, const uint8_t* source, size_t length) {
  const size_t head = std::min(length, (cacheLine - reinterpret_cast<uintptr_t>(destination) % cacheLine) % cacheLine);
  std::memcpy(destination, source, head);
  size_t at = head;
  for (; at + cacheLine <= length; at += cacheLine) streaming::storeLine(destination + at, source + at);
  std::memcpy(destination + at, source + at, length - at);
}

inline void finishStreaming() { _mm_sfence(); }

#else

inline void streamBytes(uint8_t* destination, const uint8_t* source, size_t length) {
  std::memcpy(destination, source, length);
}
inline void finishStreaming() {}

#endif

}  // namespace tensorferry
