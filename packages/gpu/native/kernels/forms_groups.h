// SPDX-License-Identifier: Apache-2.0
/*
 * Quantized forms of dense rows whose blocks are 16 columns, or a few times that: a thread takes 16 neighbours, and threads
 * that share a block are neighbours.
 *
 * Invariants: the bits are those of quantize_rules.h, as on hosts. Plain rows lie at multiples of 16 bytes, rows of codes at
 * multiples of what a thread writes. Threads exchange the largest magnitude of a block, and nothing else.
 */
#pragma once

#include "forms_tiles.h"

namespace tensorferry::gpu {
namespace {

/** Vectors of a group at most; elements of 16 bits have half of them. */
inline constexpr uint32_t groupVectors = groupColumns * sizeof(float) / sizeof(Vector);

/** Where a group lies, and what is known of its block. */
struct GroupPlace {
  uint64_t plain, codes, scale;
  bool isThere, ownsScale;
};

TENSORFERRY_DEVICE GroupPlace groupAt(uint64_t record, const FormRecord& head, uint32_t index) {
  const uint32_t there = index < head.count ? index : 0;
  if (head.isFlat != 0) {
    const uint32_t block = divide(there, head.byCellsOfBlock.multiplier, head.byCellsOfBlock.shift);
    const uint32_t bytes = groupColumns * (isWideType(head.plainType) ? 4 : 2);
    const uint32_t codes = isPacked(formOf(static_cast<QuantizeRule>(head.rule))) ? groupColumns / 2 : groupColumns;
    return {head.plain + static_cast<uint64_t>(there) * bytes, head.codes + static_cast<uint64_t>(there) * codes,
            head.scales + offsetOf(block, head.scalesStep), index < head.count, there == block * head.cellsOfBlock};
  }
  const uint32_t line = divide(there, head.byCells.multiplier, head.byCells.shift), number = there - line * head.cells;
  const uint32_t matrix = divide(line, head.byRows.multiplier, head.byRows.shift), row = line - matrix * head.rows;
  const uint32_t block = divide(number, head.byCellsOfBlock.multiplier, head.byCellsOfBlock.shift);
  FormCell cell{head.plain + offsetOf(row, head.plainRow) + offsetOf(number * groupColumns, head.plainStep),
                head.codes + offsetOf(row, head.codesRow) + codeOffset(head, number * groupColumns),
                head.scales + offsetOf(head.firstRow + row, head.scalesRow) + offsetOf(block, head.scalesStep),
                0,
                0,
                false};
  addMatrix(record, head, matrix, cell);
  return {cell.plain, cell.codes, cell.scale, index < head.count, number == block * head.cellsOfBlock};
}

TENSORFERRY_DEVICE void loadGroup(Vector (&held)[groupVectors], uint64_t plain, bool isThere, bool isWide) {
  TENSORFERRY_UNROLL
  for (uint32_t i = 0; i < groupVectors; i++) {
    held[i] = Vector{0, 0, 0, 0};
    if (isThere && (isWide || i < groupVectors / 2)) held[i] = loadPassing<Vector>(plain + i * sizeof(Vector));
  }
}

TENSORFERRY_DEVICE uint32_t largestOfGroup(const Vector (&held)[groupVectors], bool isWide) {
  uint32_t largest = 0;
  TENSORFERRY_UNROLL
  for (uint32_t i = 0; i < groupVectors; i++) largest = largestWith(largest, held[i], isWide);
  return largest;
}

/** Of the threads that share a block. */
TENSORFERRY_DEVICE uint32_t largestOfSharers(const FormRecord& head, const GroupPlace& place, uint32_t index,
                                             uint32_t own) {
  const bool isWide = isWideType(head.plainType);
  const auto ofOther = [&](uint32_t neighbour) {
    const int64_t from = static_cast<int64_t>(neighbour) - static_cast<int64_t>(index % head.cellsOfBlock);
    Vector held[groupVectors];
    loadGroup(held, place.plain + static_cast<uint64_t>(from * static_cast<int64_t>(groupColumns * (isWide ? 4 : 2))),
              place.isThere, isWide);
    return largestOfGroup(held, isWide);
  };
  switch (head.cellsOfBlock) {
    case 2:
      return largestAmong<2>(own, ofOther);
    case 4:
      return largestAmong<4>(own, ofOther);
    case 8:
      return largestAmong<8>(own, ofOther);
    default:
      return own;
  }
}

/** Four values of a group. */
template <DType type>
TENSORFERRY_DEVICE void groupValues(const Vector (&held)[groupVectors], uint32_t first, float (&values)[4]) {
  if constexpr (type == DType::Float32) {
    const Vector& vector = held[first / 4];
    values[0] = floatOf(vector.x);
    values[1] = floatOf(vector.y);
    values[2] = floatOf(vector.z);
    values[3] = floatOf(vector.w);
  } else {
    const Vector& vector = held[first / 8];
    valuesOfWord<type>(first % 8 == 0 ? vector.x : vector.z, values[0], values[1]);
    valuesOfWord<type>(first % 8 == 0 ? vector.y : vector.w, values[2], values[3]);
  }
}

/**
 * Four codes of float4_e2m1 in 16 bits, ties to even, with a sign for what is below zero; for less than 7. Each number is added
 * to the power of two above it by which it rounds to its code: steps are a half below 2, then 1, then 2. Exponent and
 * steps of that sum make the code, and sums of four codes do not meet.
 */
TENSORFERRY_DEVICE uint32_t packFour(const float (&scaled)[4]) {
  uint32_t codes = 0u - 298u * 0x1111u, signs = 0;
  TENSORFERRY_UNROLL
  for (uint32_t i = 0; i < 4; i++) {
    const float magnitude = absolute(scaled[i]);
    const float power = floatOf(bitsOf(greater(magnitude, 1.0f)) & 0x7f800000u);
    const uint32_t sum = bitsOf(multiplyAdd(power, 0x1p22f, magnitude));
    codes += (sum << (4 * i)) + (sum >> (22 - 4 * i));
    signs |= (bitsOf(scaled[i]) >> (28 - 4 * i)) & (8u << (4 * i));
  }
  return (codes & 0xffffu) | signs;
}

/** Sixteen codes of four bits. Products and quotients of minus zero are zero here. */
template <DType type, bool isProduct>
TENSORFERRY_DEVICE uint64_t packGroup(const Vector (&held)[groupVectors], const Quotients& over) {
  uint32_t parts[4];
  TENSORFERRY_UNROLL
  for (uint32_t part = 0; part < 4; part++) {
    float values[4];
    groupValues<type>(held, 4 * part, values);
    TENSORFERRY_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
      if constexpr (isProduct) {
        values[i] = multiplyAdd(values[i], over.by, 0.0f);
      } else if constexpr (type == DType::Float32) {
        values[i] = values[i] / over.by + 0.0f;
      } else {
        values[i] = quotientOf<type>(values[i], over);
      }
    }
    parts[part] = packFour(values);
  }
  return static_cast<uint64_t>(parts[2] | parts[3] << 16) << 32 | (parts[0] | parts[1] << 16);
}

/**
 * Whether products or quotients that are too small for float32 come out as zero only where the rule has zero, none is too
 * large to be corrected, and none rounds beyond the largest code.
 */
template <DType type>
TENSORFERRY_DEVICE bool isPlainFactor(Encoding encoding, float amax, float factor) {
  if (encoding == Encoding::Float4Product)
    return factor >= (type == DType::Float32 ? 1.0f : 0x1p-16f) && factor <= largestFloat32 && amax * factor < 6.5f;
  if (encoding != Encoding::Float4Quotient && encoding != Encoding::Float4QuotientOrSeven) return false;
  const bool isPlain =
      type == DType::Float32 ? factor > 0 && factor <= largestFloat32 : isCorrected<type>(factor) && amax <= 0x1p60f;
  return isPlain && amax < 6.5f * factor;
}

/** One by one, and read again. */
TENSORFERRY_DEVICE void storeGroupSlowly(const FormRecord& head, const GroupPlace& place, Encoding encoding,
                                         float factor) {
  const uint32_t bits = isFloat8(encoding) ? 8 : 4, perWord = 32 / bits, size = isWideType(head.plainType) ? 4 : 2;
  uint32_t word = 0;
  TENSORFERRY_KEEP_LOOP
  for (uint32_t i = 0; i < groupColumns; i++) {
    const float value = loadPlain(head.plainType, place.plain + i * size, size);
    const uint32_t code = codeBy(encoding, value, factor, StatedSource{static_cast<DType>(head.plainType)});
    word |= code << (bits * (i % perWord));
    if (i % perWord != perWord - 1) continue;
    store<uint32_t>(place.codes + i / perWord * 4, word);
    word = 0;
  }
}

template <DType type>
TENSORFERRY_DEVICE void storeGroup(const Vector (&held)[groupVectors], const FormRecord& head, const GroupPlace& place,
                                   float amax, float factor) {
  const Encoding encoding = encodingOf(static_cast<QuantizeRule>(head.rule));
  if (encoding == Encoding::Float8Product) {
    uint32_t words[4];
    TENSORFERRY_UNROLL
    for (uint32_t part = 0; part < 4; part++) {
      float values[4];
      groupValues<type>(held, 4 * part, values);
      words[part] =
          encodePair(values[0] * factor, values[1] * factor) | encodePair(values[2] * factor, values[3] * factor) << 16;
    }
    storePassing(place.codes, Vector{words[0], words[1], words[2], words[3]});
  } else if (isPlainFactor<type>(encoding, amax, factor)) {
    const uint64_t codes = encoding == Encoding::Float4Product ? packGroup<type, true>(held, {factor, 0.0f})
                                                               : packGroup<type, false>(held, {factor, 1.0f / factor});
    storePassing(place.codes, codes);
  } else {
    storeGroupSlowly(head, place, encoding, factor);
  }
}

/** All threads of a team come here together. */
TENSORFERRY_DEVICE void runGroup(uint64_t record, const FormRecord& head, uint32_t index, const GlobalScaling& global) {
  const bool isWide = isWideType(head.plainType);
  const GroupPlace place = groupAt(record, head, index);
  Vector held[groupVectors];
  loadGroup(held, place.plain, place.isThere, isWide);
  const uint32_t largest = largestOfSharers(head, place, index, largestOfGroup(held, isWide));
  if (!place.isThere) return;
  const float amax = magnitudeOf(head.plainType, largest);
  const BlockScaling scaling =
      scalingBy(static_cast<QuantizeRule>(head.rule), amax, global, StatedSource{static_cast<DType>(head.plainType)});
  TENSORFERRY_FOR_PLAIN_TYPE(head.plainType, storeGroup, held, head, place, amax, scaling.factor)
  if (place.ownsScale) storeScale(head, place.scale, scaling.stored);
}

TENSORFERRY_DEVICE void runGroups(uint64_t table, uint64_t record, const FormRecord& head, const Place& place) {
  const GlobalScaling global = settledGlobal(table, head);
  const uint32_t lane = place.thread % teamThreads;
  TENSORFERRY_KEEP_LOOP
  for (uint64_t at = static_cast<uint64_t>(place.block) * blockThreads + place.thread; at - lane < head.count;
       at += static_cast<uint64_t>(place.blocks) * blockThreads)
    runGroup(record, head, static_cast<uint32_t>(at), global);
}

}  // namespace
}  // namespace tensorferry::gpu
