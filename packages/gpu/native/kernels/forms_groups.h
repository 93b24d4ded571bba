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

TENSORFERRY_DEVICE GroupPlace groupAt(uint64_t table, const FormRecord& head, uint32_t index) {
  const uint32_t there = index < head.count ? index : 0;
  const uint32_t line = divide(there, head.byCells.multiplier, head.byCells.shift), number = there - line * head.cells;
  const uint32_t matrix = divide(line, head.byRows.multiplier, head.byRows.shift), row = line - matrix * head.rows;
  const uint32_t block = divide(number, head.byCellsOfBlock.multiplier, head.byCellsOfBlock.shift);
  FormCell cell{head.plain + offsetOf(row, head.plainRow) + offsetOf(number * groupColumns, head.plainStep),
                head.codes + offsetOf(row, head.codesRow) + codeOffset(head, number * groupColumns),
                head.scales + offsetOf(head.firstRow + row, head.scalesRow) + offsetOf(block, head.scalesStep),
                0,
                0,
                false};
  addMatrix(table, head, matrix, cell);
  return {cell.plain, cell.codes, cell.scale, index < head.count, number == block * head.cellsOfBlock};
}

/** Vectors that a group of this type has. */
template <DType type>
inline constexpr uint32_t vectorsOfGroup = type == DType::Float32 ? groupVectors : groupVectors / 2;

template <DType type>
TENSORFERRY_DEVICE void loadGroup(Vector (&held)[groupVectors], uint64_t plain, bool isThere) {
  TENSORFERRY_UNROLL
  for (uint32_t i = 0; i < groupVectors; i++) {
    held[i] = Vector{0, 0, 0, 0};
    if (i < vectorsOfGroup<type> && isThere) held[i] = loadPassing<Vector>(plain + i * sizeof(Vector));
  }
}

template <DType type>
TENSORFERRY_DEVICE uint32_t largestOfGroup(const Vector (&held)[groupVectors]) {
  Largest<type> largest;
  TENSORFERRY_UNROLL
  for (uint32_t i = 0; i < vectorsOfGroup<type>; i++) largest.add(held[i]);
  return largest.bits();
}

/** Of the threads that share a block. */
template <DType type>
TENSORFERRY_DEVICE uint32_t largestOfSharers(uint32_t sharers, const GroupPlace& place, uint32_t index, uint32_t own) {
  const auto ofOther = [&](uint32_t neighbour) {
    const int64_t from = static_cast<int64_t>(neighbour) - static_cast<int64_t>(index % sharers);
    Vector held[groupVectors];
    loadGroup<type>(
        held, place.plain + static_cast<uint64_t>(from * static_cast<int64_t>(vectorsOfGroup<type> * sizeof(Vector))),
        place.isThere);
    return largestOfGroup<type>(held);
  };
  switch (sharers) {
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
 * Eight codes of float4_e2m1, ties to even, with a sign for what is below zero; for less than 7, and not for minus zero. Each
 * number is added to the power of two above it by which it rounds to its code: steps are a half below 2, then 1, then 2.
 * Exponent and steps of that sum make the code, and sums of four codes do not meet.
 */
TENSORFERRY_DEVICE uint32_t packEight(const float (&scaled)[8]) {
  uint32_t codes[2] = {0u - 298u * 0x1111u, 0u - 298u * 0x1111u};
  TENSORFERRY_UNROLL
  for (uint32_t i = 0; i < 8; i++) {
    const float magnitude = absolute(scaled[i]);
    const float power = floatOf(bitsOf(greater(magnitude, 1.0f)) & 0x7f800000u);
    const uint32_t sum = bitsOf(multiplyAdd(power, 0x1p22f, magnitude)), place = 4 * (i % 4);
    codes[i / 4] += (sum << place) + (sum >> (22 - place));
  }
  const uint32_t even = highBytes(bitsOf(scaled[0]), bitsOf(scaled[2]), bitsOf(scaled[4]), bitsOf(scaled[6]));
  const uint32_t odd = highBytes(bitsOf(scaled[1]), bitsOf(scaled[3]), bitsOf(scaled[5]), bitsOf(scaled[7]));
  return lowHalves(codes[0], codes[1]) | ((even >> 4) & 0x08080808u) | (odd & 0x80808080u);
}

/** Sixteen codes of four bits. Products and quotients of minus zero are zero here. */
template <DType type, bool isProduct>
TENSORFERRY_DEVICE uint64_t packGroup(const Vector (&held)[groupVectors], const Quotients& over) {
  uint32_t parts[2];
  TENSORFERRY_UNROLL
  for (uint32_t part = 0; part < 2; part++) {
    float values[8];
    TENSORFERRY_UNROLL
    for (uint32_t half = 0; half < 2; half++) {
      float four[4];
      groupValues<type>(held, 8 * part + 4 * half, four);
      TENSORFERRY_UNROLL
      for (uint32_t i = 0; i < 4; i++)
        values[4 * half + i] = isProduct ? multiplyAdd(four[i], over.by, 0.0f) : quotientOf<type>(four[i], over);
    }
    parts[part] = packEight(values);
  }
  return static_cast<uint64_t>(parts[1]) << 32 | parts[0];
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

/** Sixteen codes of float8_e4m3fn. */
template <DType type, bool isProduct>
TENSORFERRY_DEVICE Vector encodeGroup(const Vector (&held)[groupVectors], const Quotients& over) {
  uint32_t words[4];
  TENSORFERRY_UNROLL
  for (uint32_t part = 0; part < 4; part++) {
    float values[4];
    groupValues<type>(held, 4 * part, values);
    TENSORFERRY_UNROLL
    for (uint32_t i = 0; i < 4; i++)
      values[i] = isProduct ? values[i] * over.by : signedQuotientOf<type>(values[i], over);
    words[part] = encodePair(values[0], values[1]) | encodePair(values[2], values[3]) << 16;
  }
  return {words[0], words[1], words[2], words[3]};
}

/** One by one, and read again. */
template <DType type>
TENSORFERRY_DEVICE void storeGroupSlowly(const GroupPlace& place, Encoding encoding, float factor) {
  constexpr uint32_t size = type == DType::Float32 ? 4 : 2;
  const uint32_t bits = isFloat8(encoding) ? 8 : 4, perWord = 32 / bits;
  uint32_t word = 0;
  TENSORFERRY_KEEP_LOOP
  for (uint32_t i = 0; i < groupColumns; i++) {
    const float value = loadPlain(static_cast<uint32_t>(type), place.plain + i * size, size);
    const uint32_t code = codeBy(encoding, value, factor, KnownSource<type>{});
    word |= code << (bits * (i % perWord));
    if (i % perWord != perWord - 1) continue;
    store<uint32_t>(place.codes + i / perWord * 4, word);
    word = 0;
  }
}

template <DType type>
TENSORFERRY_DEVICE void storeGroup(const Vector (&held)[groupVectors], const GroupPlace& place, Encoding encoding,
                                   float amax, float factor) {
  if (encoding == Encoding::Float8Product) {
    storePassing(place.codes, encodeGroup<type, true>(held, {factor, 0.0f}));
  } else if (encoding == Encoding::Float8Quotient && (type == DType::Float32 || isCorrected<type>(factor))) {
    storePassing(place.codes, encodeGroup<type, false>(held, {factor, 1.0f / factor}));
  } else if (isPlainFactor<type>(encoding, amax, factor)) {
    const uint64_t codes = encoding == Encoding::Float4Product ? packGroup<type, true>(held, {factor, 0.0f})
                                                               : packGroup<type, false>(held, {factor, 1.0f / factor});
    storePassing(place.codes, codes);
  } else {
    storeGroupSlowly<type>(place, encoding, factor);
  }
}

/** What a thread does with its group. All threads of a team come here together. */
template <DType type>
TENSORFERRY_DEVICE void convertGroup(const Vector (&held)[groupVectors], const FormRecord& head,
                                     const GroupPlace& place, uint32_t sharers, uint32_t index,
                                     const GlobalScaling& global) {
  const auto rule = static_cast<QuantizeRule>(head.rule);
  const uint32_t largest = largestOfSharers<type>(sharers, place, index, largestOfGroup<type>(held));
  if (!place.isThere) return;
  const float amax = floatOf(bitsOfMagnitude<type>(largest));
  const BlockScaling scaling = scalingBy(rule, amax, global, KnownSource<type>{});
  storeGroup<type>(held, place, encodingOf(rule), amax, scaling.factor);
  if (!place.ownsScale) return;
  if (formOf(rule) == QuantizeForm::Fp8) return storeScale(head, place.scale, scaling.stored);
  store<uint8_t>(place.scale, static_cast<uint8_t>(scaling.stored));
}

/** Where a group of a tensor without gaps lies. */
template <DType type>
TENSORFERRY_DEVICE GroupPlace flatGroupAt(const FormRecord& head, uint32_t sharers, uint32_t index) {
  const uint32_t there = index < head.count ? index : 0;
  const uint32_t sharing = sharers == 8 ? 3 : sharers / 2, block = there >> sharing;
  const uint32_t codeBytes = isPacked(formOf(static_cast<QuantizeRule>(head.rule))) ? groupColumns / 2 : groupColumns;
  return {head.plain + static_cast<uint64_t>(there) * (vectorsOfGroup<type> * sizeof(Vector)),
          head.codes + static_cast<uint64_t>(there) * codeBytes, head.scales + offsetOf(block, head.scalesStep),
          index < head.count, there == block << sharing};
}

/**
 * Groups of a tensor without gaps. A thread asks for its next group before it looks at the one that it has. Compiled for 1
 * of `sharers` too.
 */
template <DType type>
TENSORFERRY_DEVICE void runFlatGroups(const FormRecord& head, uint32_t sharers, const Place& place,
                                      const GlobalScaling& global) {
  const uint32_t lane = place.thread % teamThreads, step = place.blocks * formThreads;
  const auto load = [&](Vector(&held)[groupVectors], uint64_t index) {
    loadGroup<type>(held, head.plain + index * (vectorsOfGroup<type> * sizeof(Vector)), index < head.count);
  };
  uint64_t at = static_cast<uint64_t>(place.block) * formThreads + place.thread;
  if (at - lane >= head.count) return;
  // Elements of 32 bits fill the registers as it is.
  constexpr bool looksAhead = type != DType::Float32;
  Vector held[groupVectors];
  if constexpr (looksAhead) load(held, at);
  TENSORFERRY_KEEP_LOOP
  for (;;) {
    const uint64_t next = at + step;
    Vector following[groupVectors];
    if constexpr (looksAhead) {
      load(following, next);
    } else {
      load(held, at);
    }
    const auto index = static_cast<uint32_t>(at);
    convertGroup<type>(held, head, flatGroupAt<type>(head, sharers, index), sharers, index, global);
    if (next - lane >= head.count) return;
    at = next;
    if constexpr (looksAhead) {
      TENSORFERRY_UNROLL
      for (uint32_t i = 0; i < groupVectors; i++) held[i] = following[i];
    }
  }
}

/** What a kept global scale settles, every thread finds for itself: one launch less. */
TENSORFERRY_DEVICE GlobalScaling globalOfGroups(uint64_t table, const FormRecord& head) {
  const auto rule = static_cast<QuantizeRule>(head.rule);
  if (head.keepsGlobal == 0 || formOf(rule) != QuantizeForm::Nvfp4) return settledGlobal(table, head);
  return globalFromStored(rule, floatOf(loadElement<4>(head.global, 1)));
}

template <DType type>
TENSORFERRY_DEVICE void runGroupsOf(const FormParameter& parameter, const Place& place) {
  const FormRecord& head = parameter.record;
  const GlobalScaling global = globalOfGroups(parameter.table, head);
  if (head.isFlat != 0 && head.cellsOfBlock == 1) return runFlatGroups<type>(head, 1, place, global);
  if (head.isFlat != 0) return runFlatGroups<type>(head, head.cellsOfBlock, place, global);
  const uint32_t lane = place.thread % teamThreads;
  TENSORFERRY_KEEP_LOOP
  for (uint64_t at = static_cast<uint64_t>(place.block) * formThreads + place.thread; at - lane < head.count;
       at += static_cast<uint64_t>(place.blocks) * formThreads) {
    const auto index = static_cast<uint32_t>(at);
    const GroupPlace own = groupAt(parameter.table, head, index);
    Vector held[groupVectors];
    loadGroup<type>(held, own.plain, own.isThere);
    convertGroup<type>(held, head, own, head.cellsOfBlock, index, global);
  }
}

TENSORFERRY_DEVICE void runGroups(const FormParameter& parameter, const Place& place) {
  TENSORFERRY_FOR_PLAIN_TYPE(parameter.record.plainType, runGroupsOf, parameter, place)
}

}  // namespace
}  // namespace tensorferry::gpu
