// SPDX-License-Identifier: Apache-2.0
/*
 * Reductions: each thread takes groups of elements through all operands, in their order, and rounds once at the end.
 *
 * Invariant: the same operands give the same bits as the host's reduction, however the work is spread.
 */
#pragma once

#include "device.h"
#include "elements_of_four.h"
#include "locate.h"
#include "parameters.h"

namespace tensorferry::gpu {
namespace {

/** Address of one tensor's element or group. `tensor` is where its address and steps lie. */
TENSORFERRY_DEVICE uint64_t placeOf(uint64_t tensor, uint64_t dimensions, uint32_t count, uint32_t index) {
  uint64_t address = load<uint64_t>(tensor);
  TENSORFERRY_KEEP_LOOP
  for (uint32_t d = 0; d < count; d++) {
    const uint64_t at = dimensions + d * sizeof(ReduceDimension);
    uint32_t position = index;
    if (d + 1 < count) {
      index = divide(position, load<uint32_t>(at + 8), load<uint32_t>(at + 12));
      position -= index * load<uint32_t>(at);
    }
    address += offsetOf(position, load<int64_t>(tensor + 8 + 8 * d));
  }
  return address;
}

template <typename W>
TENSORFERRY_DEVICE void combineFour(ReduceOp op, W (&sum)[four], const W (&values)[four]) {
  switch (op) {
#define COMBINE(OP)                                                                           \
  case ReduceOp::OP:                                                                          \
    TENSORFERRY_UNROLL                                                                        \
    for (uint32_t k = 0; k < four; k++) sum[k] = combine<ReduceOp::OP, W>(sum[k], values[k]); \
    return;
    COMBINE(Sum)
    COMBINE(Average)
    COMBINE(Maximum)
    COMBINE(Minimum)
    COMBINE(Product)
#undef COMBINE
  }
}

/** Four values as elements of a type whose wide form theirs is: much less code than all casts. */
TENSORFERRY_DEVICE void encode(uint32_t type, uint32_t (&words)[8], const float (&values)[four]) {
  Halfway halfway = {};
  TENSORFERRY_UNROLL
  for (uint32_t k = 0; k < four; k++) halfway.narrow[k] = values[k];
  goTheRest(type, words, halfway);
}
TENSORFERRY_DEVICE void encode(uint32_t, uint32_t (&words)[8], const double (&values)[four]) {
  TENSORFERRY_UNROLL
  for (uint32_t k = 0; k < four; k++) setElement<8>(words, k, bitsOf(Element<DType::Float64>::encode(values[k])));
}
TENSORFERRY_DEVICE void encode(uint32_t type, uint32_t (&words)[8], const int64_t (&values)[four]) {
  Halfway halfway = {};
  TENSORFERRY_UNROLL
  for (uint32_t k = 0; k < four; k++)
    halfway.whole[k] = static_cast<DType>(type) == DType::Bool ? values[k] != 0 : static_cast<uint64_t>(values[k]);
  TENSORFERRY_FOR_SIZE(bytesOf(type), keepLowBits, words, halfway.whole)
}
TENSORFERRY_DEVICE void encode(uint32_t, uint32_t (&words)[8], const uint64_t (&values)[four]) {
  TENSORFERRY_UNROLL
  for (uint32_t k = 0; k < four; k++) setElement<8>(words, k, values[k]);
}

template <uint32_t size>
TENSORFERRY_DEVICE void loadOne(uint32_t (&words)[8], uint64_t address, uint32_t width) {
  setElement<size>(words, 0, loadElement<size>(address, width));
}
template <uint32_t size>
TENSORFERRY_DEVICE void storeOne(uint64_t address, uint32_t width, const uint32_t (&words)[8]) {
  storeElement<size>(address, width, elementOf<size>(words, 0));
}

/** One reduction, accumulated as `W`. Where elements are single, three of four lie idle. */
template <typename W>
TENSORFERRY_DEVICE void reduceAs(uint64_t record, const Place& place) {
  const ReduceRecord head = view<ReduceRecord>(record);
  const ReduceOp op = static_cast<ReduceOp>(head.op);
  const uint32_t type = head.type, size = bytesOf(type), width = head.width, dimensionCount = head.dimensionCount;
  const uint64_t dimensions = record + sizeof(ReduceRecord),
                 tensors = dimensions + dimensionCount * sizeof(ReduceDimension);
  const uint64_t tensorBytes = 8 + 8 * dimensionCount;
  const bool inGroups = head.group == four;
  TENSORFERRY_KEEP_LOOP
  for (uint64_t at = static_cast<uint64_t>(place.block) * blockThreads + place.thread; at < head.count;
       at += static_cast<uint64_t>(place.blocks) * blockThreads) {
    const uint32_t index = static_cast<uint32_t>(at);
    W sum[four] = {};
    uint64_t tensor = tensors;
    uint32_t words[8] = {};
    TENSORFERRY_KEEP_LOOP
    for (uint32_t t = 0; t < head.operands; t++) {
      tensor += tensorBytes;
      const uint64_t address = placeOf(tensor, dimensions, dimensionCount, index);
      if (inGroups) {
        TENSORFERRY_FOR_SIZE(size, loadFour, words, address, width)
      } else {
        TENSORFERRY_FOR_SIZE(size, loadOne, words, address, width)
      }
      W values[four];
      decode(type, values, words);
      if (t == 0) {
        TENSORFERRY_UNROLL
        for (uint32_t k = 0; k < four; k++) sum[k] = values[k];
      } else {
        combineFour(op, sum, values);
      }
    }
    if (op == ReduceOp::Average) {
      if constexpr (static_cast<W>(0.5) == 0) {  // the sum has the width of the type, not of the accumulator
        encode(type, words, sum);
        decode(type, sum, words);
      }
      TENSORFERRY_UNROLL
      for (uint32_t k = 0; k < four; k++) sum[k] = sum[k] / static_cast<W>(head.operands);
    }
    encode(type, words, sum);
    const uint64_t address = placeOf(tensors, dimensions, dimensionCount, index);
    if (inGroups) {
      TENSORFERRY_FOR_SIZE(size, storeFour, address, width, words)
    } else {
      TENSORFERRY_FOR_SIZE(size, storeOne, address, width, words)
    }
  }
}

TENSORFERRY_DEVICE void reduceRecord(uint64_t record, const Place& place) {
  switch (wideOf(view<ReduceRecord>(record).type)) {
    case Wide::Float32:
      return reduceAs<float>(record, place);
    case Wide::Float64:
      return reduceAs<double>(record, place);
    case Wide::Int64:
      return reduceAs<int64_t>(record, place);
    case Wide::UInt64:
      return reduceAs<uint64_t>(record, place);
  }
}

}  // namespace
}  // namespace tensorferry::gpu
