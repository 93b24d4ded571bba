/*
 * Block scaling: a thread takes one block of 32 elements from memory to data and a scale, or back. All of a block's loads
 * are under way before the first is used.
 *
 * Invariant: the bits are those of mxfp8.h and casts.h, as on hosts.
 */
#pragma once

#include <tensorferry/mxfp8.h>

#include "device.h"
#include "elements_of_four.h"
#include "locate.h"
#include "parameters.h"

namespace tensorferry::gpu {
namespace {

inline constexpr uint32_t blockWords = mxBlock / 4;

/** Where a block's three parts lie. */
struct BlockPlace {
  uint64_t plain, data, scale;
};

TENSORFERRY_DEVICE BlockPlace placeOfBlock(uint64_t record, const QuantizeRecord& head, uint32_t index) {
  BlockPlace place{head.plain, head.data, head.scales};
  TENSORFERRY_KEEP_LOOP
  for (uint32_t d = 0; d < head.dimensionCount; d++) {
    const uint64_t at = record + sizeof(QuantizeRecord) + d * sizeof(QuantizeDimension);
    uint32_t position = index;
    if (d + 1u < head.dimensionCount) {
      index = divide(position, load<uint32_t>(at + 8), load<uint32_t>(at + 12));
      position -= index * load<uint32_t>(at);
    }
    place.plain += offsetOf(position, load<int64_t>(at + 16));
    place.data += offsetOf(position, load<int64_t>(at + 24));
    place.scale += offsetOf(position, load<int64_t>(at + 32));
  }
  return place;
}

/** Elements of 16 bits, two to a word, or of 32 bits. */
template <uint32_t size>
TENSORFERRY_DEVICE void loadBlock(uint32_t (&words)[mxBlock], uint64_t address, int64_t step, uint32_t width) {
  constexpr uint32_t count = mxBlock * size / 4;
  if (step == size && width == 16) {
    TENSORFERRY_UNROLL
    for (uint32_t i = 0; i < count; i += 4) {
      const Vector vector = load<Vector>(address + 4 * i);
      words[i] = vector.x;
      words[i + 1] = vector.y;
      words[i + 2] = vector.z;
      words[i + 3] = vector.w;
    }
    return;
  }
  TENSORFERRY_UNROLL
  for (uint32_t i = 0; i < count; i++) {
    constexpr uint32_t perWord = 4 / size;
    uint32_t word = 0;
    TENSORFERRY_UNROLL
    for (uint32_t k = 0; k < perWord; k++)
      word |= static_cast<uint32_t>(loadElement<size>(address + offsetOf(i * perWord + k, step), width)) << (8 * size * k % 32);
    words[i] = word;
  }
}

template <uint32_t size>
TENSORFERRY_DEVICE void storeBlock(uint64_t address, int64_t step, uint32_t width, const uint32_t (&words)[mxBlock]) {
  constexpr uint32_t count = mxBlock * size / 4;
  if (step == size && width == 16) {
    TENSORFERRY_UNROLL
    for (uint32_t i = 0; i < count; i += 4)
      store<Vector>(address + 4 * i, {words[i], words[i + 1], words[i + 2], words[i + 3]});
    return;
  }
  using Bits = typename BitsOfSize<size>::type;
  TENSORFERRY_UNROLL
  for (uint32_t i = 0; i < count; i++) {
    constexpr uint32_t perWord = 4 / size;
    TENSORFERRY_UNROLL
    for (uint32_t k = 0; k < perWord; k++)
      storeElement<size>(address + offsetOf(i * perWord + k, step), width, static_cast<Bits>(words[i] >> (8 * size * k % 32)));
  }
}

template <DType type>
TENSORFERRY_DEVICE float valueOf(const uint32_t (&words)[mxBlock], uint32_t i) {
  if constexpr (type == DType::Float32) {
    return floatOf(words[i]);
  } else {
    return Element<type>::decode(static_cast<uint16_t>(words[i / 2] >> (16 * (i % 2))));
  }
}

template <DType type>
TENSORFERRY_DEVICE void quantizeBlock(const QuantizeRecord& head, const BlockPlace& place) {
  constexpr uint32_t size = type == DType::Float32 ? 4 : 2;
  uint32_t words[mxBlock];
  loadBlock<size>(words, place.plain, head.plainStep, head.plainWidth);
  const ScaleRule rule = static_cast<ScaleRule>(head.rule);
  uint32_t largest = 0;
  TENSORFERRY_UNROLL
  for (uint32_t i = 0; i < mxBlock; i++) {
    const uint32_t magnitude = bitsOf(valueOf<type>(words, i)) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  const uint32_t scale = scaleOf(largest, rule);
  const float multiplier = scale == nanScale ? 1.0f : multiplierOf(scale, rule);
  uint32_t data[mxBlock];
  TENSORFERRY_UNROLL
  for (uint32_t i = 0; i < blockWords; i++) {
    data[i] = 0;
    TENSORFERRY_UNROLL
    for (uint32_t k = 0; k < 4; k++) data[i] |= encodeFloat8E4M3(valueOf<type>(words, 4 * i + k) * multiplier) << (8 * k);
    if (scale == nanScale) data[i] = 0x7f7f7f7fu;
  }
  storeBlock<1>(place.data, head.dataStep, head.dataWidth, data);
  store<uint8_t>(place.scale, static_cast<uint8_t>(scale));
}

template <DType type>
TENSORFERRY_DEVICE void dequantizeBlock(const QuantizeRecord& head, const BlockPlace& place) {
  constexpr uint32_t size = type == DType::Float32 ? 4 : 2;
  uint32_t data[mxBlock], words[mxBlock];
  loadBlock<1>(data, place.data, head.dataStep, head.dataWidth);
  const float factor = decodeFloat8E8M0(load<uint8_t>(place.scale));
  TENSORFERRY_UNROLL
  for (uint32_t i = 0; i < mxBlock; i++) {
    const float value = quiet(scaledFloat8((data[i / 4] >> (8 * (i % 4))) & 0xffu, factor));
    if constexpr (size == 4) {
      words[i] = bitsOf(value);
    } else {
      const uint32_t bits = static_cast<uint32_t>(Element<type>::encode(value)) << (16 * (i % 2));
      words[i / 2] = i % 2 == 0 ? bits : words[i / 2] | bits;
    }
  }
  storeBlock<size>(place.plain, head.plainStep, head.plainWidth, words);
}

template <DType type>
TENSORFERRY_DEVICE void scaleBlock(const QuantizeRecord& head, const BlockPlace& place) {
  if (head.isQuantization != 0) {
    quantizeBlock<type>(head, place);
  } else {
    dequantizeBlock<type>(head, place);
  }
}

TENSORFERRY_DEVICE void runQuantize(const QuantizeParameter& parameter, const Place& place) {
  TENSORFERRY_KEEP_LOOP
  for (uint32_t r = 0; r < parameter.records; r++) {
    const uint64_t record = parameter.table + 8ull * r * parameter.recordWords;
    const QuantizeRecord& head = view<QuantizeRecord>(record);
    TENSORFERRY_KEEP_LOOP
    for (uint64_t at = static_cast<uint64_t>(place.block) * blockThreads + place.thread; at < head.count;
         at += static_cast<uint64_t>(place.blocks) * blockThreads) {
      const BlockPlace block = placeOfBlock(record, head, static_cast<uint32_t>(at));
      switch (static_cast<DType>(head.type)) {
        case DType::BFloat16:
          scaleBlock<DType::BFloat16>(head, block);
          break;
        case DType::Float16:
          scaleBlock<DType::Float16>(head, block);
          break;
        default:
          scaleBlock<DType::Float32>(head, block);
      }
    }
  }
}

}  // namespace
}  // namespace tensorferry::gpu
