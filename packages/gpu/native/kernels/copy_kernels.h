// SPDX-License-Identifier: Apache-2.0
/*
 * Copies and fills as they are: runs of bytes by teams of threads, and pieces of up to 16 bytes wherever they lie.
 *
 * Invariant: only bytes of the regions are read and written, also where a 16-byte access is put together from two.
 */
#pragma once

#include "device.h"
#include "locate.h"
#include "parameters.h"

namespace tensorferry::gpu {
namespace {

/**
 * Copies vectors that are aligned on both sides. Threads that have fewer left read the last one again: loads that depend on
 * nothing are under way together.
 */
TENSORFERRY_DEVICE void copyVectors(uint64_t to, uint64_t from, uint32_t count, uint32_t lane) {
  TENSORFERRY_KEEP_LOOP
  for (uint32_t at = lane; at < count; at += inFlight * teamThreads) {
    Vector values[inFlight];
    TENSORFERRY_UNROLL
    for (uint32_t k = 0; k < inFlight; k++)
      values[k] = load<Vector>(from + sizeof(Vector) * least(at + k * teamThreads, count - 1));
    const uint64_t into = to + sizeof(Vector) * at;
    TENSORFERRY_UNROLL
    for (uint32_t k = 0; k < inFlight; k++)
      if (at + k * teamThreads < count) store<Vector>(into + k * sizeof(Vector) * teamThreads, values[k]);
  }
}

/** 32 bits from the middle of two neighbours. */
TENSORFERRY_DEVICE uint32_t funnel(uint32_t low, uint32_t high, uint32_t bits) {
#ifdef TENSORFERRY_ON_DEVICE
  return __funnelshift_r(low, high, bits);
#else
  return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) >> bits);
#endif
}

/** Bytes `shift` to `shift + 15` of two neighbours. */
TENSORFERRY_DEVICE Vector middleOf(const Vector& low, const Vector& high, uint32_t shift) {
  uint32_t a = low.x, b = low.y, c = low.z, d = low.w, e = high.x, f = high.y;
  if ((shift & 8) != 0) {
    a = c;
    b = d;
    c = e;
    d = f;
    e = high.z;
    f = high.w;
  }
  if ((shift & 4) != 0) {
    a = b;
    b = c;
    c = d;
    d = e;
    e = f;
  }
  const uint32_t bits = 8 * (shift & 3);
  return {funnel(a, b, bits), funnel(b, c, bits), funnel(c, d, bits), funnel(d, e, bits)};
}

/** Copies vectors that are aligned at the destination; `from` is aligned and the first byte lies `shift` bytes further. */
TENSORFERRY_DEVICE void copyShifted(uint64_t to, uint64_t from, uint32_t shift, uint32_t count, uint32_t lane) {
  constexpr uint32_t pairs = inFlight / 2;
  TENSORFERRY_KEEP_LOOP
  for (uint32_t at = lane; at < count; at += pairs * teamThreads) {
    Vector low[pairs], high[pairs];
    TENSORFERRY_UNROLL
    for (uint32_t k = 0; k < pairs; k++) {
      const uint64_t source = from + sizeof(Vector) * least(at + k * teamThreads, count - 1);
      low[k] = load<Vector>(source);
      high[k] = load<Vector>(source + sizeof(Vector));
    }
    const uint64_t into = to + sizeof(Vector) * at;
    TENSORFERRY_UNROLL
    for (uint32_t k = 0; k < pairs; k++) {
      const Vector value = middleOf(low[k], high[k], shift);
      if (at + k * teamThreads < count) store<Vector>(into + k * sizeof(Vector) * teamThreads, value);
    }
  }
}

/** Copies at most a part of a run. At most 31 bytes at either end go one by one, a thread each. */
TENSORFERRY_DEVICE void copyBytes(uint64_t to, uint64_t from, uint32_t length, uint32_t lane) {
  uint32_t head = (0 - static_cast<uint32_t>(to)) & 15;
  const uint32_t shift = static_cast<uint32_t>(from + head) & 15;
  if (shift > head) head += 16;  // else the first aligned access would begin before the run
  if (head > length) head = length;
  const uint32_t rest = length - head;
  uint32_t vectors = rest / 16;
  if (shift == 0) {
    copyVectors(to + head, from + head, vectors, lane);
  } else {
    vectors = rest + shift < 16 ? 0 : (rest + shift - 16) / 16;
    copyShifted(to + head, from + head - shift, shift, vectors, lane);
  }
  const uint32_t tail = head + 16 * vectors;
  if (lane < head) store<uint8_t>(to + lane, load<uint8_t>(from + lane));
  if (lane < length - tail) store<uint8_t>(to + tail + lane, load<uint8_t>(from + tail + lane));
}

TENSORFERRY_DEVICE void fillBytes(uint64_t to, uint32_t pattern, uint32_t length, uint32_t lane) {
  uint32_t head = (0 - static_cast<uint32_t>(to)) & 15;
  if (head > length) head = length;
  const uint32_t vectors = (length - head) / 16, tail = head + 16 * vectors;
  TENSORFERRY_KEEP_LOOP
  for (uint32_t at = lane; at < vectors; at += teamThreads)
    store<Vector>(to + head + 16 * at, {pattern, pattern, pattern, pattern});
  if (lane < head) store<uint8_t>(to + lane, static_cast<uint8_t>(pattern));
  if (lane < length - tail) store<uint8_t>(to + tail + lane, static_cast<uint8_t>(pattern));
}

/** Copies one part of a record. */
TENSORFERRY_DEVICE void movePart(uint64_t record, uint32_t index, uint32_t lane) {
  const MoveRecord& move = view<MoveRecord>(record);
  const bool isFill = move.isFill != 0;
  const uint64_t length = move.length;
  uint64_t to[1] = {move.destination}, from[1] = {isFill ? 0 : move.source};
  const uint32_t pattern = static_cast<uint32_t>(move.source);
  uint32_t row[1] = {divide(index, move.partsMultiplier, move.partsShift)};
  const uint32_t part = index - row[0] * move.parts;
  locate(record + sizeof(MoveRecord), move.dimensionCount, row, to, from);
  // Parts begin where the destination is well aligned; the first is shorter, and a last one may be empty.
  const uint32_t past = static_cast<uint32_t>(to[0]) % partAlignment;
  const uint64_t end = static_cast<uint64_t>(part + 1) * partBytes - past;
  const uint64_t begin = part == 0 ? 0 : end - partBytes;
  if (begin >= length) return;
  const uint32_t count = static_cast<uint32_t>((end < length ? end : length) - begin);
  if (isFill) {
    fillBytes(to[0] + begin, pattern, count, lane);
  } else {
    copyBytes(to[0] + begin, from[0] + begin, count, lane);
  }
}

/** Teams of a block take the parts of a unit in turn. */
TENSORFERRY_DEVICE void moveRuns(uint64_t table, const UnitRecord& unit, const Place& place) {
  constexpr uint32_t teams = blockThreads / teamThreads;
  const uint32_t lane = place.thread % teamThreads;
  const bool isOnePartEach = unit.records == unit.count;
  uint64_t record = table + 8ull * unit.record;
  uint32_t first = 0;  // number of the record's first part in the unit
  TENSORFERRY_KEEP_LOOP
  for (uint32_t i = place.thread / teamThreads; i < unit.count; i += teams) {
    if (unit.records > 1) {
      TENSORFERRY_KEEP_LOOP
      for (;;) {
        const uint32_t parts = isOnePartEach ? 1 : view<MoveRecord>(record).parts;
        if (i - first < parts) break;
        const uint32_t skipped = isOnePartEach ? i - first : 1;
        first += isOnePartEach ? skipped : parts;
        record += skipped * sizeof(MoveRecord);
      }
    }
    movePart(record, unit.begin + i - first, lane);
  }
}

/** A byte that is repeated in eight. */
template <typename T>
TENSORFERRY_DEVICE T patternOf(uint64_t bytes) {
  return static_cast<T>(bytes);
}
template <>
TENSORFERRY_DEVICE Vector patternOf<Vector>(uint64_t bytes) {
  const uint32_t word = static_cast<uint32_t>(bytes);
  return {word, word, word, word};
}

/** Copies pieces; threads run along the innermost dimension, which is the one in which the destination is densest. */
template <typename T>
TENSORFERRY_DEVICE void movePieces(uint64_t record, const UnitRecord& unit, const Place& place) {
  const MoveRecord& move = view<MoveRecord>(record);
  const uint64_t destination = move.destination, source = move.source;
  const uint32_t dimensionCount = move.dimensionCount;
  const bool isFill = move.isFill != 0;
  const T pattern = patternOf<T>(source);
  TENSORFERRY_KEEP_LOOP
  for (uint32_t i = place.thread; i < unit.count; i += inFlight * blockThreads) {
    uint32_t index[inFlight];
    uint64_t to[inFlight], from[inFlight];
    T values[inFlight];
    TENSORFERRY_UNROLL
    for (uint32_t k = 0; k < inFlight; k++) {
      index[k] = unit.begin + least(i + k * blockThreads, unit.count - 1);
      to[k] = destination;
      from[k] = source;
    }
    locate(record + sizeof(MoveRecord), dimensionCount, index, to, from);
    TENSORFERRY_UNROLL
    for (uint32_t k = 0; k < inFlight; k++) {
      values[k] = pattern;
      if (!isFill) values[k] = load<T>(from[k]);
    }
    TENSORFERRY_UNROLL
    for (uint32_t k = 0; k < inFlight; k++)
      if (i + k * blockThreads < unit.count) store<T>(to[k], values[k]);
  }
}

TENSORFERRY_DEVICE void movePieces(uint64_t record, uint32_t width, const UnitRecord& unit, const Place& place) {
  switch (width) {
    case 1:
      return movePieces<uint8_t>(record, unit, place);
    case 2:
      return movePieces<uint16_t>(record, unit, place);
    case 4:
      return movePieces<uint32_t>(record, unit, place);
    case 8:
      return movePieces<uint64_t>(record, unit, place);
    default:
      return movePieces<Vector>(record, unit, place);
  }
}

}  // namespace
}  // namespace tensorferry::gpu
