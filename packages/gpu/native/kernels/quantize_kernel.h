// SPDX-License-Identifier: Apache-2.0
/*
 * Block scaling: dense rows by teams of threads (quantize_rows.h), all else by one thread for each block of 32 elements.
 *
 * Invariant: the bits are those of mxfp8.h and casts.h, as on hosts.
 */
#pragma once

#include <tensorferry/mxfp8.h>

#include "device.h"
#include "elements_of_four.h"
#include "locate.h"
#include "parameters.h"
#include "quantize_rows.h"

namespace tensorferry::gpu {
namespace {

/** Where the parts of an index lie, and its position in the innermost dimension. */
struct BlockPlace {
  uint64_t plain, data, scale;
  uint32_t position;
};

TENSORFERRY_DEVICE BlockPlace placeOfBlock(uint64_t record, const QuantizeRecord& head, uint32_t index) {
  BlockPlace place{head.plain, head.data, head.scales, 0};
  TENSORFERRY_KEEP_LOOP
  for (uint32_t d = 0; d < head.dimensionCount; d++) {
    const uint64_t at = record + sizeof(QuantizeRecord) + d * sizeof(QuantizeDimension);
    uint32_t position = index;
    if (d + 1u < head.dimensionCount) {
      index = divide(position, load<uint32_t>(at + 8), load<uint32_t>(at + 12));
      position -= index * load<uint32_t>(at);
    }
    if (d == 0) place.position = position;
    place.plain += offsetOf(position, load<int64_t>(at + 16));
    place.data += offsetOf(position, load<int64_t>(at + 24));
    place.scale += offsetOf(position, load<int64_t>(at + 32));
  }
  return place;
}

/** Four elements from position `first` of a block on, wherever they lie. */
template <uint32_t size>
TENSORFERRY_DEVICE void gatherFour(uint32_t (&words)[8], uint64_t block, uint32_t first, int64_t step, uint32_t width) {
  const uint64_t address = block + offsetOf(first, step);
  if (step == size) return loadFour<size>(words, address, width);
  TENSORFERRY_UNROLL
  for (uint32_t k = 0; k < four; k++) setElement<size>(words, k, loadElement<size>(address + offsetOf(k, step), width));
}

template <uint32_t size>
TENSORFERRY_DEVICE void scatterFour(const uint32_t (&words)[8], uint64_t block, uint32_t first, int64_t step,
                                    uint32_t width) {
  const uint64_t address = block + offsetOf(first, step);
  if (step == size) return storeFour<size>(address, width, words);
  TENSORFERRY_UNROLL
  for (uint32_t k = 0; k < four; k++) storeElement<size>(address + offsetOf(k, step), width, elementOf<size>(words, k));
}

template <DType type>
TENSORFERRY_DEVICE float valueOf(const uint32_t (&words)[8], uint32_t k) {
  if constexpr (type == DType::Float32) {
    return floatOf(words[k]);
  } else {
    return Element<type>::decode(elementOf<2>(words, k));
  }
}

/** Reads a block twice, which is in the caches then, so that it need not be held. */
template <DType type>
TENSORFERRY_DEVICE void quantizeBlock(const QuantizeRecord& head, const BlockPlace& place) {
  constexpr uint32_t size = Sharing<type>::size;
  const ScaleRule rule = static_cast<ScaleRule>(head.rule);
  uint32_t words[8], largest = 0;
  TENSORFERRY_KEEP_LOOP
  for (uint32_t first = 0; first < mxBlock; first += four) {
    gatherFour<size>(words, place.plain, first, head.plainStep, head.plainWidth);
    TENSORFERRY_UNROLL
    for (uint32_t k = 0; k < four; k++) {
      const uint32_t magnitude = bitsOf(valueOf<type>(words, k)) & 0x7fffffffu;
      largest = magnitude > largest ? magnitude : largest;
    }
  }
  const uint32_t scale = scaleOf(largest, rule);
  const float multiplier = scale == nanScale ? 1.0f : multiplierOf(scale, rule);
  TENSORFERRY_KEEP_LOOP
  for (uint32_t first = 0; first < mxBlock; first += four) {
    gatherFour<size>(words, place.plain, first, head.plainStep, head.plainWidth);
    uint32_t data[8] = {};
    TENSORFERRY_UNROLL
    for (uint32_t k = 0; k < four; k++) data[0] |= encodeFloat8E4M3(valueOf<type>(words, k) * multiplier) << (8 * k);
    if (scale == nanScale) data[0] = 0x7f7f7f7fu;
    scatterFour<1>(data, place.data, first, head.dataStep, head.dataWidth);
  }
  store<uint8_t>(place.scale, static_cast<uint8_t>(scale));
}

template <DType type>
TENSORFERRY_DEVICE void dequantizeBlock(const QuantizeRecord& head, const BlockPlace& place) {
  constexpr uint32_t size = Sharing<type>::size;
  const float factor = decodeFloat8E8M0(load<uint8_t>(place.scale));
  TENSORFERRY_KEEP_LOOP
  for (uint32_t first = 0; first < mxBlock; first += four) {
    uint32_t data[8], words[8];
    gatherFour<1>(data, place.data, first, head.dataStep, head.dataWidth);
    TENSORFERRY_UNROLL
    for (uint32_t k = 0; k < four; k++) {
      const float value = quiet(scaledFloat8((data[0] >> (8 * k)) & 0xffu, factor));
      if constexpr (size == 4) {
        words[k] = bitsOf(value);
      } else {
        setElement<2>(words, k, Element<type>::encode(value));
      }
    }
    scatterFour<size>(words, place.plain, first, head.plainStep, head.plainWidth);
  }
}

template <DType type>
TENSORFERRY_DEVICE void scaleOne(const QuantizeRecord& head, const BlockPlace& place) {
  if (head.isQuantization != 0) {
    quantizeBlock<type>(head, place);
  } else {
    dequantizeBlock<type>(head, place);
  }
}

/** `thread` within its team. */
template <DType type>
TENSORFERRY_DEVICE void scaleRow(const QuantizeRecord& head, const BlockRow& row, uint32_t thread) {
  if (head.isQuantization != 0) {
    quantizeRow<type>(row, static_cast<ScaleRule>(head.rule), thread);
  } else {
    dequantizeRow<type>(row, thread);
  }
}

TENSORFERRY_DEVICE void scaleRows(uint64_t record, const QuantizeRecord& head, const Place& place) {
  constexpr uint32_t teams = blockThreads / teamThreads;
  const uint32_t last = load<uint32_t>(record + sizeof(QuantizeRecord)) - 1;
  TENSORFERRY_KEEP_LOOP
  for (uint32_t at = place.block * teams + place.thread / teamThreads; at < head.count; at += place.blocks * teams) {
    const BlockPlace begin = placeOfBlock(record, head, at);
    const BlockRow row{begin.plain,
                       begin.data,
                       begin.scale,
                       head.scaleStep,
                       begin.position == last ? head.lastBlocks : blocksOfTeam,
                       head.plainWidth,
                       head.dataWidth};
    TENSORFERRY_FOR_PLAIN_TYPE(head.type, scaleRow, head, row, place.thread % teamThreads)
  }
}

TENSORFERRY_DEVICE void runQuantize(const QuantizeParameter& parameter, const Place& place) {
  TENSORFERRY_KEEP_LOOP
  for (uint32_t r = 0; r < parameter.records; r++) {
    const uint64_t record = parameter.table + 8ull * r * parameter.recordWords;
    const QuantizeRecord& head = view<QuantizeRecord>(record);
    if (head.lastBlocks > 0) {
      scaleRows(record, head, place);
      continue;
    }
    TENSORFERRY_KEEP_LOOP
    for (uint64_t at = static_cast<uint64_t>(place.block) * blockThreads + place.thread; at < head.count;
         at += static_cast<uint64_t>(place.blocks) * blockThreads) {
      const BlockPlace block = placeOfBlock(record, head, static_cast<uint32_t>(at));
      TENSORFERRY_FOR_PLAIN_TYPE(head.type, scaleOne, head, block)
    }
  }
}

}  // namespace
}  // namespace tensorferry::gpu
