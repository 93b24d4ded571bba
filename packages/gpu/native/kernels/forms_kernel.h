// SPDX-License-Identifier: Apache-2.0
/*
 * Quantized forms by any rule, wherever tensors lie: a thread takes a cell, at most 32 columns of one row and one block.
 * Blocks of many rows and dense rows of narrow blocks have faster ways (forms_tiles.h, forms_groups.h).
 *
 * Invariant: the bits are those of quantize_rules.h, as on hosts. Maxima are raised by atomic operations, whose order does
 * not matter.
 */
#pragma once

#include "forms_groups.h"
#include "forms_tiles.h"
#include "forms_values.h"

namespace tensorferry::gpu {
namespace {

/** The bits of the largest magnitude of whole vectors, as float32. */
template <DType type>
TENSORFERRY_DEVICE void largestOfVectors(uint64_t plain, uint32_t bytes, uint32_t& bits) {
  Largest<type> largest;
  TENSORFERRY_KEEP_LOOP
  for (uint32_t at = 0; at < bytes; at += sizeof(Vector)) largest.add(load<Vector>(plain + at));
  bits = bitsOfMagnitude<type>(largest.bits());
}

/** The bits of the largest magnitude of a cell as float32. */
TENSORFERRY_DEVICE uint32_t largestOfCell(const FormRecord& head, const FormCell& cell) {
  uint32_t largest = 0;
  const uint32_t size = isWideType(head.plainType) ? 4 : 2, bytes = cell.columns * size;
  if (head.plainStep == size && bytes % sizeof(Vector) == 0 && cell.plain % sizeof(Vector) == 0) {
    TENSORFERRY_FOR_PLAIN_TYPE(head.plainType, largestOfVectors, cell.plain, bytes, largest)
    return largest;
  }
  TENSORFERRY_KEEP_LOOP
  for (uint32_t i = 0; i < cell.columns; i++) {
    const float value = loadPlain(head.plainType, cell.plain + offsetOf(i, head.plainStep), head.plainWidth);
    const uint32_t magnitude = bitsOf(value) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

TENSORFERRY_DEVICE void searchCell(const FormRecord& head, const FormCell& cell) {
  const uint32_t largest = largestOfCell(head, cell);
  const uint32_t quiet = largest > 0x7f800000u ? 0x7fc00000u : largest;
  // Most cells have nothing to add, and find that out without waiting for others.
  if (quiet > load<uint32_t>(cell.maximum)) raise(cell.maximum, quiet);
}

/** Steps at the end of the search: what the stored or found maximum settles. */
TENSORFERRY_DEVICE void prepareGlobal(uint64_t table, const FormRecord& head) {
  const auto rule = static_cast<QuantizeRule>(head.rule);
  const StatedSource source{static_cast<DType>(head.plainType)};
  const uint64_t maximum = head.areMaximaInTable != 0 ? table + head.maxima : head.maxima;
  const GlobalScaling made = head.keepsGlobal != 0
                                 ? globalFromStored(rule, floatOf(loadElement<4>(head.global, 1)))
                                 : globalFromMaximum(rule, absolute(floatOf(loadElement<4>(maximum, 1))), source);
  const uint64_t at = table + head.settled;
  store<float>(at, made.stored);
  store<float>(at + 4, made.first);
  store<float>(at + 8, made.second);
  if (head.keepsGlobal == 0) storeElement<4>(head.global, 1, bitsOf(quiet(made.stored)));
}

/** The errors that the 4over6 rule chooses by. */
TENSORFERRY_DEVICE float errorOfCell(const FormRecord& head, const FormCell& cell, const BlockScaling& scaling,
                                     float global) {
  return errorOf(scaling, global, cell.columns, [&](uint32_t i) {
    return loadPlain(head.plainType, cell.plain + offsetOf(i, head.plainStep), head.plainWidth);
  });
}

TENSORFERRY_DEVICE void convertCell(uint64_t table, const FormRecord& head, const FormCell& cell) {
  const auto rule = static_cast<QuantizeRule>(head.rule);
  const StatedSource source{static_cast<DType>(head.plainType)};
  const GlobalScaling global = settledGlobal(table, head);
  const uint32_t found =
      head.hasMaxima != 0 ? loadElement<4>(cell.maximum, cell.maximum % 4 == 0 ? 4 : 1) : largestOfCell(head, cell);
  const float largest = floatOf(found & 0x7fffffffu);
  BlockScaling scaling = scalingBy(rule, largest, global, source);
  if (rule == QuantizeRule::Nvfp4TransformerEngine4Over6) {
    const BlockScaling other = otherScaling(largest, global);
    if (errorOfCell(head, cell, other, global.stored) < errorOfCell(head, cell, scaling, global.stored))
      scaling = other;
  }
  const Encoding encoding = encodingOf(rule);
  const bool halves = !isFloat8(encoding);
  uint32_t before = 0;
  TENSORFERRY_KEEP_LOOP
  for (uint32_t i = 0; i < cell.columns; i++) {
    const float value = loadPlain(head.plainType, cell.plain + offsetOf(i, head.plainStep), head.plainWidth);
    const uint32_t code = codeBy(encoding, value, scaling.factor, source);
    if (!halves) {
      store<uint8_t>(cell.codes + offsetOf(i, head.codesStep), static_cast<uint8_t>(code));
    } else if (i % 2 == 0) {
      before = code;
    } else {
      store<uint8_t>(cell.codes + offsetOf(i / 2, head.codesStep), static_cast<uint8_t>(before | code << 4));
    }
  }
  if (cell.ownsScale) storeScale(head, cell.scale, scaling.stored);
}

template <DType type>
TENSORFERRY_DEVICE void storePlain(uint64_t address, uint32_t width, float value) {
  if constexpr (type == DType::Float32) {
    storeElement<4>(address, width, bitsOf(quiet(value)));
  } else {
    storeElement<2>(address, width, Element<type>::encode(value));
  }
}

template <DType type>
TENSORFERRY_DEVICE void readCell(const FormRecord& head, const FormCell& cell, float global) {
  const auto rule = static_cast<QuantizeRule>(head.rule);
  const bool halves = isPacked(formOf(rule));
  const uint32_t scale = loadScale(head, cell.scale);
  TENSORFERRY_KEEP_LOOP
  for (uint32_t i = 0; i < cell.columns; i++) {
    const uint32_t byte = load<uint8_t>(cell.codes + offsetOf(halves ? i / 2 : i, head.codesStep));
    const float number = halves ? decodeFloat4(i % 2 == 0 ? byte : byte >> 4) : decodeFloat8E4M3(byte);
    storePlain<type>(cell.plain + offsetOf(i, head.plainStep), head.plainWidth,
                     readScaled(rule, number, scale, global));
  }
}

TENSORFERRY_DEVICE void runCell(uint64_t table, const FormRecord& head, uint32_t index) {
  const FormCell cell = cellAt(table, head, index);
  if (cell.columns == 0) return;
  if (head.step == FormStep::Search) return searchCell(head, cell);
  if (head.step == FormStep::Convert) return convertCell(table, head, cell);
  const float global = head.global == 0 ? 0.0f : floatOf(loadElement<4>(head.global, 1));
  TENSORFERRY_FOR_PLAIN_TYPE(head.plainType, readCell, head, cell, global)
}

TENSORFERRY_DEVICE void runForms(const FormParameter& parameter, const Place& place) {
  const FormRecord& head = parameter.record;
  TENSORFERRY_KEEP_LOOP
  for (uint64_t at = static_cast<uint64_t>(place.block) * blockThreads + place.thread; at < head.count;
       at += static_cast<uint64_t>(place.blocks) * blockThreads) {
    const auto index = static_cast<uint32_t>(at);
    if (head.step == FormStep::Clear) {
      store<uint32_t>(parameter.table + head.maxima + 4ull * index, 0);
    } else if (head.step == FormStep::Prepare) {
      prepareGlobal(parameter.table, head);
    } else {
      runCell(parameter.table, head, index);
    }
  }
}

}  // namespace
}  // namespace tensorferry::gpu
