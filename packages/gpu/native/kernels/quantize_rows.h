// SPDX-License-Identifier: Apache-2.0
/*
 * Block scaling of dense rows: 32 threads take 32 neighbouring blocks together, so that every access of theirs is to one
 * range of memory. A thread holds 16 bytes of the plain side at a time, and those that share a block are neighbours; all that
 * it reads of the 32 blocks is under way before the first is used.
 *
 * Invariants: the bits are those of mxfp8.h and casts.h, as on hosts. Rows lie anywhere: where their addresses are no
 * multiples of what a thread takes at once, it reads the aligned vectors around that and writes smaller pieces. Threads
 * exchange the largest magnitude of a block, and nothing else.
 */
#pragma once

#include <tensorferry/elements.h>
#include <tensorferry/mxfp8.h>

#include "copy_kernels.h"
#include "device.h"
#include "elements_of_four.h"
#include "locate.h"
#include "parameters.h"

namespace tensorferry::gpu {
namespace {

/** Where a row of blocks begins, and how many of them are there: 32, but for the end of a row. */
struct BlockRow {
  uint64_t plain, data, scales;
  int64_t scaleStep;
  uint32_t blocks;
  /** Bytes that may be accessed at once. */
  uint32_t plainWidth, dataWidth;
};

/** A vector at any address. A device reads all of the aligned vectors that have a byte of it. */
TENSORFERRY_DEVICE Vector loadAnywhere(uint64_t address) {
#ifdef TENSORFERRY_ON_DEVICE
  const uint32_t shift = static_cast<uint32_t>(address) % sizeof(Vector);
  const Vector low = load<Vector>(address - shift);
  return shift == 0 ? low : middleOf(low, load<Vector>(address - shift + sizeof(Vector)), shift);
#else
  Vector vector;
  std::memcpy(&vector, reinterpret_cast<const void*>(address), sizeof vector);
  return vector;
#endif
}

/** Four or eight bytes at an address that is a multiple of `width` only. */
template <typename T>
TENSORFERRY_DEVICE T loadPieces(uint64_t address, uint32_t width) {
  if (width >= sizeof(T)) return loadPassing<T>(address);
  T bits = 0;
  if (width == 4) {
    TENSORFERRY_UNROLL
    for (uint32_t i = 0; i < sizeof(T); i += 4) bits |= static_cast<T>(load<uint32_t>(address + i)) << (8 * i);
    return bits;
  }
  TENSORFERRY_UNROLL
  for (uint32_t i = 0; i < sizeof(T); i++) bits |= static_cast<T>(load<uint8_t>(address + i)) << (8 * i);
  return bits;
}

template <typename T>
TENSORFERRY_DEVICE void storePieces(uint64_t address, T bits, uint32_t width) {
  if (width >= sizeof(T)) return storePassing(address, bits);
  if (width >= 2) {
    TENSORFERRY_UNROLL
    for (uint32_t i = 0; i < sizeof(T); i += 2) store<uint16_t>(address + i, static_cast<uint16_t>(bits >> (8 * i)));
    return;
  }
  TENSORFERRY_UNROLL
  for (uint32_t i = 0; i < sizeof(T); i++) store<uint8_t>(address + i, static_cast<uint8_t>(bits >> (8 * i)));
}

/** The words of a vector. Those of four bytes go one by one where the address allows it. */
TENSORFERRY_DEVICE void storeVector(uint64_t address, const Vector& vector, uint32_t width) {
  if (width == sizeof(Vector)) return storePassing(address, vector);
  storePieces<uint32_t>(address, vector.x, width);
  storePieces<uint32_t>(address + 4, vector.y, width);
  storePieces<uint32_t>(address + 8, vector.z, width);
  storePieces<uint32_t>(address + 12, vector.w, width);
}

/** How the threads of a team share blocks of one plain type. */
template <DType type>
struct Sharing {
  static constexpr uint32_t size = type == DType::Float32 ? 4 : 2;
  /** Elements that a thread holds at a time, and what their data are accessed as. */
  static constexpr uint32_t held = sizeof(Vector) / size;
  using Data = typename BitsOfSize<held>::type;
  /** Threads that share a block. The team takes the 32 blocks in as many rounds. */
  static constexpr uint32_t threads = mxBlock / held, rounds = threads, blocksOfRound = teamThreads / threads;
  static_assert(rounds * blocksOfRound == blocksOfTeam, "every thread writes one scale");
};

/** Two float8_e4m3fn, the first in the low byte. Processors that convert by themselves give the same bits. */
TENSORFERRY_DEVICE uint32_t encodePair(float first, float second) {
#ifdef TENSORFERRY_CONVERTS_FLOAT8
  unsigned short pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(second), "f"(first));
  return pair;
#else
  return encodeFloat8E4M3(first) | encodeFloat8E4M3(second) << 8;
#endif
}

/** The values of the two float8_e4m3fn in the low bytes. */
TENSORFERRY_DEVICE void decodePair(uint32_t pair, float& first, float& second) {
#ifdef TENSORFERRY_CONVERTS_FLOAT8
  asm("{\n\t.reg .b32 both;\n\t.reg .b16 low, high;\n\t"
      "cvt.rn.f16x2.e4m3x2 both, %2;\n\tmov.b32 {low, high}, both;\n\t"
      "cvt.f32.f16 %0, low;\n\tcvt.f32.f16 %1, high;\n\t}"
      : "=f"(first), "=f"(second)
      : "h"(static_cast<unsigned short>(pair)));
#else
  first = decodeFloat8E4M3(pair & 0xffu);
  second = decodeFloat8E4M3((pair >> 8) & 0xffu);
#endif
}

/** The largest magnitude of the words added so far, without converting any: two elements of 16 bits at a time. */
template <DType type>
struct Largest {
  uint32_t found = 0, lower = 0;

  TENSORFERRY_DEVICE void add(uint32_t word) {
    if constexpr (type != DType::Float32) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 860
      // NaN stays, and signs are nobody's. In the order of bits, float16 are as bfloat16 are.
      asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(found) : "r"(found), "r"(word));
      return;
#endif
      // The lower element only decides between equal upper ones.
      const uint32_t low = word << 17;
      lower = low > lower ? low : lower;
    }
    const uint32_t upper = word & 0x7fffffffu;
    found = upper > found ? upper : found;
  }

  TENSORFERRY_DEVICE void add(const Vector& vector) {
    add(vector.x);
    add(vector.y);
    add(vector.z);
    add(vector.w);
  }

  /** As bits of the type. */
  TENSORFERRY_DEVICE uint32_t bits() const {
    if constexpr (type == DType::Float32) return found;
    const uint32_t high = (found >> 16) & 0x7fffu;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 860
    const uint32_t low = found & 0x7fffu;
#else
    const uint32_t low = lower >> 17;
#endif
    return high > low ? high : low;
  }
};

template <DType type>
TENSORFERRY_DEVICE uint32_t largestOfVector(const Vector& vector) {
  Largest<type> largest;
  largest.add(vector);
  return largest.bits();
}

/** Of a NaN in 16 bits only that it is one is kept. */
template <DType type>
TENSORFERRY_DEVICE uint32_t bitsOfMagnitude(uint32_t magnitude) {
  if constexpr (type == DType::Float32) return magnitude;
  if constexpr (type == DType::BFloat16) return magnitude << 16;
  return bitsOf(Float16::decode(magnitude));
}

/** The two values in a word of 16-bit elements. A NaN may come out as another one: no block with a NaN keeps its elements. */
template <DType type>
TENSORFERRY_DEVICE void valuesOfWord(uint32_t word, float& first, float& second) {
  if constexpr (type == DType::BFloat16) {
    first = floatOf(word << 16);
    second = floatOf(word & 0xffff0000u);
  } else {
    first = Float16::decode(word & 0xffffu);
    second = Float16::decode(word >> 16);
  }
}

/** The first four elements as data, or the second four. */
template <DType type>
TENSORFERRY_DEVICE uint32_t encodeWord(const Vector& vector, uint32_t which, float multiplier) {
  float values[4];
  if constexpr (type == DType::Float32) {
    values[0] = floatOf(vector.x);
    values[1] = floatOf(vector.y);
    values[2] = floatOf(vector.z);
    values[3] = floatOf(vector.w);
  } else {
    valuesOfWord<type>(which == 0 ? vector.x : vector.z, values[0], values[1]);
    valuesOfWord<type>(which == 0 ? vector.y : vector.w, values[2], values[3]);
  }
  return encodePair(values[0] * multiplier, values[1] * multiplier) |
         encodePair(values[2] * multiplier, values[3] * multiplier) << 16;
}

template <DType type>
TENSORFERRY_DEVICE void quantizeRow(const BlockRow& row, ScaleRule rule, uint32_t thread) {
  using Share = Sharing<type>;
  const uint32_t ownBlock = thread / Share::threads, ownPart = thread % Share::threads;
  Vector held[Share::rounds];
  if (row.plainWidth == sizeof(Vector)) {
    TENSORFERRY_UNROLL
    for (uint32_t round = 0; round < Share::rounds; round++) {
      held[round] = Vector{0, 0, 0, 0};
      if (round * Share::blocksOfRound + ownBlock < row.blocks)
        held[round] = loadPassing<Vector>(row.plain + (round * teamThreads + thread) * sizeof(Vector));
    }
  } else {
    TENSORFERRY_UNROLL
    for (uint32_t round = 0; round < Share::rounds; round++) {
      held[round] = Vector{0, 0, 0, 0};
      if (round * Share::blocksOfRound + ownBlock < row.blocks)
        held[round] = loadAnywhere(row.plain + (round * teamThreads + thread) * sizeof(Vector));
    }
  }
  uint32_t ownScale = 0;
  TENSORFERRY_UNROLL
  for (uint32_t round = 0; round < Share::rounds; round++) {
    const uint32_t block = round * Share::blocksOfRound + ownBlock;
    const auto partAt = [&](uint32_t part) {
      return block < row.blocks ? largestOfVector<type>(
                                      loadAnywhere(row.plain + block * mxBlock * Share::size + part * sizeof(Vector)))
                                : 0;
    };
    const uint32_t largest = largestAmong<Share::threads>(largestOfVector<type>(held[round]), partAt);
    const uint32_t scale = scaleOf(bitsOfMagnitude<type>(largest), rule);
    const bool isNaN = scale == nanScale;
    const float multiplier = isNaN ? 1.0f : multiplierOf(scale, rule);
    ownScale = ownPart == round ? scale : ownScale;
    typename Share::Data data = encodeWord<type>(held[round], 0, multiplier);
    if constexpr (Share::held == 8) data |= static_cast<uint64_t>(encodeWord<type>(held[round], 1, multiplier)) << 32;
    if (isNaN) data = static_cast<typename Share::Data>(0x7f7f7f7f7f7f7f7full);
    if (block < row.blocks) storePieces(row.data + (round * teamThreads + thread) * Share::held, data, row.dataWidth);
  }
  // Every thread writes one scale: together they are neighbours.
  const uint32_t block = ownPart * Share::blocksOfRound + ownBlock;
  if (block < row.blocks) store<uint8_t>(row.scales + offsetOf(block, row.scaleStep), static_cast<uint8_t>(ownScale));
}

/** Two elements of 16 bits as a word, or one of 32 bits. */
template <DType type>
TENSORFERRY_DEVICE uint32_t plainWord(const float* values) {
  if constexpr (type == DType::Float32) return bitsOf(quiet(values[0]));
  return static_cast<uint32_t>(Element<type>::encode(values[0])) |
         static_cast<uint32_t>(Element<type>::encode(values[1])) << 16;
}

/** The same, for what is not NaN. */
template <DType type>
TENSORFERRY_DEVICE uint32_t plainWordOfNumbers(const float* values) {
  if constexpr (type == DType::Float32) return bitsOf(values[0]);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  uint32_t word;
  if constexpr (type == DType::BFloat16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(values[1]), "f"(values[0]));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(values[1]), "f"(values[0]));
  }
  return word;
#else
  return plainWord<type>(values);
#endif
}

/** Whether one of four codes of float8_e4m3fn is that of NaN. */
TENSORFERRY_DEVICE bool hasNaN(uint32_t codes) { return (((codes & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u) != 0; }

template <DType type>
TENSORFERRY_DEVICE Vector decodeVector(typename Sharing<type>::Data codes, uint32_t scale) {
  using Share = Sharing<type>;
  const float factor = decodeFloat8E8M0(scale);
  float values[Share::held];
  TENSORFERRY_UNROLL
  for (uint32_t i = 0; i < Share::held; i += 2) {
    decodePair(static_cast<uint32_t>(codes >> (8 * i)), values[i], values[i + 1]);
    values[i] *= factor;
    values[i + 1] *= factor;
  }
  constexpr uint32_t perWord = 4 / Share::size;
  const bool isNumbers = scale != nanScale && !hasNaN(static_cast<uint32_t>(codes)) &&
                         (Share::held == 4 || !hasNaN(static_cast<uint32_t>(static_cast<uint64_t>(codes) >> 32)));
  if (isNumbers)
    return {plainWordOfNumbers<type>(values), plainWordOfNumbers<type>(values + perWord),
            plainWordOfNumbers<type>(values + 2 * perWord), plainWordOfNumbers<type>(values + 3 * perWord)};
  return {plainWord<type>(values), plainWord<type>(values + perWord), plainWord<type>(values + 2 * perWord),
          plainWord<type>(values + 3 * perWord)};
}

#ifdef TENSORFERRY_ON_DEVICE
/** Bytes `from` to before `to` of a vector, in pieces of two bytes where `width` allows it. */
TENSORFERRY_DEVICE void storePart(uint64_t address, const Vector& vector, uint32_t from, uint32_t to, uint32_t width) {
  const uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
  TENSORFERRY_UNROLL
  for (uint32_t i = 0; i < sizeof(Vector); i += 2) {
    const uint32_t half = words[i / 4] >> (8 * (i % 4));
    if (width >= 2) {
      if (i >= from && i < to) store<uint16_t>(address + i, static_cast<uint16_t>(half));
      continue;
    }
    if (i >= from && i < to) store<uint8_t>(address + i, static_cast<uint8_t>(half));
    if (i + 1 >= from && i + 1 < to) store<uint8_t>(address + i + 1, static_cast<uint8_t>(half >> 8));
  }
}

/**
 * Stores a row of vectors that begins `shift` bytes behind a multiple of 16. A thread stores the aligned vector that begins
 * with the end of its neighbour's; only at both ends of the row there are parts of vectors. `before` is the thread's own of
 * the round before, `index` its place among the row's `count` vectors.
 */
TENSORFERRY_DEVICE void storeShifted(uint64_t address, const Vector& own, const Vector& before, uint32_t thread,
                                     uint32_t index, uint32_t count, uint32_t width) {
  const Vector neighbour{
      ofThreadBefore<teamThreads>(own.x, before.x, thread), ofThreadBefore<teamThreads>(own.y, before.y, thread),
      ofThreadBefore<teamThreads>(own.z, before.z, thread), ofThreadBefore<teamThreads>(own.w, before.w, thread)};
  if (index >= count) return;
  const uint32_t shift = static_cast<uint32_t>(address) % sizeof(Vector), rest = sizeof(Vector) - shift;
  if (index == 0) {
    storePart(address, own, 0, rest, width);
  } else {
    storePassing(address - shift, middleOf(neighbour, own, rest));
  }
  if (index + 1 == count) storePart(address, own, rest, sizeof(Vector), width);
}
#endif

template <DType type>
TENSORFERRY_DEVICE void dequantizeRow(const BlockRow& row, uint32_t thread) {
  using Share = Sharing<type>;
  const uint32_t ownBlock = thread / Share::threads;
  typename Share::Data held[Share::rounds];
  uint32_t scales[Share::rounds];
  TENSORFERRY_UNROLL
  for (uint32_t round = 0; round < Share::rounds; round++) {
    const uint32_t block = round * Share::blocksOfRound + ownBlock;
    held[round] = 0;
    scales[round] = 0;
    if (block >= row.blocks) continue;
    held[round] =
        loadPieces<typename Share::Data>(row.data + (round * teamThreads + thread) * Share::held, row.dataWidth);
    scales[round] = load<uint8_t>(row.scales + offsetOf(block, row.scaleStep));
  }
  [[maybe_unused]] Vector before{0, 0, 0, 0};
  TENSORFERRY_UNROLL
  for (uint32_t round = 0; round < Share::rounds; round++) {
    const uint32_t index = round * teamThreads + thread;
    const uint64_t address = row.plain + index * sizeof(Vector);
    const Vector vector = decodeVector<type>(held[round], scales[round]);
#ifdef TENSORFERRY_ON_DEVICE
    if (row.plainWidth < sizeof(Vector)) {
      storeShifted(address, vector, before, thread, index, row.blocks * Share::threads, row.plainWidth);
      before = vector;
      continue;
    }
#endif
    if (round * Share::blocksOfRound + ownBlock < row.blocks) storeVector(address, vector, row.plainWidth);
  }
}

}  // namespace
}  // namespace tensorferry::gpu
