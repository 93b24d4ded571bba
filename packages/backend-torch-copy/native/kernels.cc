// SPDX-License-Identifier: Apache-2.0
/*
 * See kernels.h. Compiled once per instruction set, with TENSORFERRY_KERNELS naming the namespace of the copy.
 */
#include "kernels.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <tensorferry/casts.h>
#include <tensorferry/elements.h>
#include <tensorferry/memory/stream.h>

#include "digests/digest_kernels.h"
#include "patches/change_kernels.h"
#include "quantize_kernels.h"
#include "rule_kernels.h"

#ifndef TENSORFERRY_KERNELS
#define TENSORFERRY_KERNELS baseline
#endif
#define TENSORFERRY_TEXT_(name) #name
#define TENSORFERRY_TEXT(name) TENSORFERRY_TEXT_(name)

namespace tensorferry::TENSORFERRY_KERNELS {
namespace {

// memcpy of one element: tensors may lie at any byte, and the compiler turns it into plain moves.
template <typename T>
T read(const uint8_t* address) {
  T value;
  std::memcpy(&value, address, sizeof value);
  return value;
}
template <typename T>
void write(uint8_t* address, T value) {
  std::memcpy(address, &value, sizeof value);
}

template <DType dtype>
void load(void* block, const uint8_t* source, int64_t stride, size_t count) {
  using E = Element<dtype>;
  using Stored = typename E::Stored;
  auto* __restrict out = static_cast<uint8_t*>(block);
  using W = WideOf<wideOf(static_cast<uint8_t>(dtype))>;
  if (stride == static_cast<int64_t>(sizeof(Stored))) {
    for (size_t i = 0; i < count; i++)
      write<W>(out + i * sizeof(W), E::decode(read<Stored>(source + i * sizeof(Stored))));
  } else {
    for (size_t i = 0; i < count; i++)
      write<W>(out + i * sizeof(W), E::decode(read<Stored>(source + static_cast<int64_t>(i) * stride)));
  }
}

template <DType dtype, Wide wide>
void store(uint8_t* destination, int64_t stride, const void* block, size_t count) {
  using E = Element<dtype>;
  using Stored = typename E::Stored;
  using W = WideOf<wide>;
  const auto* __restrict in = static_cast<const uint8_t*>(block);
  if (stride == static_cast<int64_t>(sizeof(Stored))) {
    for (size_t i = 0; i < count; i++)
      write<Stored>(destination + i * sizeof(Stored), E::encode(read<W>(in + i * sizeof(W))));
  } else {
    for (size_t i = 0; i < count; i++)
      write<Stored>(destination + static_cast<int64_t>(i) * stride, E::encode(read<W>(in + i * sizeof(W))));
  }
}

template <DType from, DType to>
void convert(uint8_t* __restrict destination, const uint8_t* __restrict source, size_t count) {
  using From = typename Element<from>::Stored;
  using To = typename Element<to>::Stored;
  for (size_t i = 0; i < count; i++)
    write<To>(destination + i * sizeof(To),
              Element<to>::encode(Element<from>::decode(read<From>(source + i * sizeof(From)))));
}

/** In 16-bit lanes, twice as many as by way of float32. */
template <>
void convert<DType::BFloat16, DType::Float8E4M3>(uint8_t* __restrict destination, const uint8_t* __restrict source,
                                                 size_t count) {
  size_t at = 0;
  for (; at + laneCount <= count; at += laneCount) {
    const ByteLanes bytes = bfloat16ToFloat8E4M3(read<Lanes>(source + at * sizeof(uint16_t)));
    std::memcpy(destination + at, &bytes, laneCount);
  }
  Lanes rest{};
  std::memcpy(&rest, source + at * sizeof(uint16_t), (count - at) * sizeof(uint16_t));
  const ByteLanes bytes = bfloat16ToFloat8E4M3(rest);
  std::memcpy(destination + at, &bytes, count - at);
}

/**
 * One stream of reads per thread does not keep the memory busy, and stores past the caches leave nothing else to do: a few
 * lines at a time are taken in turn from eight places. Places have pages of their own, as processors look ahead by page;
 * those of one run stay close enough to share a large page.
 */
constexpr size_t places = runsInTurn, turnBytes = 4 * cacheLine, placeBytes = 64 << 10,
                 leastPlaceBytes = splitRun / places;

/** Lines that each place gets where so many are left; 0 where they are too few for taking turns. */
template <size_t lineBytes>
constexpr size_t linesOfPlace(size_t linesLeft) {
  const size_t lines = std::min(placeBytes / lineBytes, linesLeft / places);
  return lines < leastPlaceBytes / lineBytes ? 0 : lines;
}

template <DType from, DType to>
size_t convertPast(uint8_t* __restrict destination, const uint8_t* __restrict source, size_t count) {
  using From = typename Element<from>::Stored;
  using To = typename Element<to>::Stored;
  constexpr size_t lineElements = cacheLine / sizeof(To), lineBytes = lineElements * sizeof(From);
  constexpr size_t turnLines = turnBytes / std::max(lineBytes, cacheLine);
  size_t done = 0;
  while (const size_t lines =
             linesOfPlace<std::max(lineBytes, cacheLine)>((count - done) / lineElements) / turnLines * turnLines) {
    for (size_t turn = 0; turn < lines; turn += turnLines) {
      for (size_t place = 0; place < places; place++) {
        const size_t at = done + (place * lines + turn) * lineElements;
        alignas(cacheLine) uint8_t converted[turnLines * cacheLine];
        convert<from, to>(converted, source + at * sizeof(From), turnLines * lineElements);
        uint8_t* out = destination + at * sizeof(To);
        for (size_t line = 0; line < sizeof converted; line += cacheLine) streamLine(out + line, converted + line);
      }
    }
    done += places * lines * lineElements;
  }
  return done;
}

/** Copies so many lines of each place. */
void copyInTurn(uint8_t* const* destinations, const uint8_t* const* sources, size_t lines) {
  for (size_t turn = 0; turn < lines * cacheLine; turn += turnBytes) {
    const size_t end = std::min(lines * cacheLine, turn + turnBytes);
    for (size_t place = 0; place < places; place++)
      for (size_t at = turn; at < end; at += cacheLine) streamLine(destinations[place] + at, sources[place] + at);
  }
}

void copyRunPast(uint8_t* destination, const uint8_t* source, size_t length) {
  size_t at = std::min(length, bytesToLine(destination));
  std::memcpy(destination, source, at);
  while (const size_t lines = linesOfPlace<cacheLine>((length - at) / cacheLine)) {
    uint8_t* to[places];
    const uint8_t* from[places];
    for (size_t place = 0; place < places; place++, at += lines * cacheLine) {
      to[place] = destination + at;
      from[place] = source + at;
    }
    copyInTurn(to, from, lines);
  }
  streamBytes(destination + at, source + at, length - at);
}

void copyRunsPast(uint8_t* const* destinations, const uint8_t* const* sources, size_t length) {
  uint8_t* to[places];
  const uint8_t* from[places];
  size_t heads[places], lines = length / cacheLine;
  for (size_t place = 0; place < places; place++) {
    const size_t head = heads[place] = std::min(length, bytesToLine(destinations[place]));
    std::memcpy(destinations[place], sources[place], head);
    to[place] = destinations[place] + head;
    from[place] = sources[place] + head;
    lines = std::min(lines, (length - head) / cacheLine);
  }
  copyInTurn(to, from, lines);
  for (size_t place = 0; place < places; place++)
    std::memcpy(to[place] + lines * cacheLine, from[place] + lines * cacheLine,
                length - heads[place] - lines * cacheLine);
}

/** Worth a loop of their own: where both steps are cheap, or one was written for the pair. */
constexpr bool hasConverter(DType from, DType to) {
  const auto isPlain = [](DType type) {
    return type == DType::Float32 || type == DType::BFloat16 || type == DType::Float16;
  };
  return (isPlain(from) && isPlain(to)) || (from == DType::BFloat16 && to == DType::Float8E4M3);
}

template <size_t from, size_t to>
constexpr auto converter() -> void (*)(uint8_t*, const uint8_t*, size_t) {
  if constexpr (hasConverter(static_cast<DType>(from), static_cast<DType>(to))) {
    return &convert<static_cast<DType>(from), static_cast<DType>(to)>;
  } else {
    return nullptr;
  }
}

template <size_t from, size_t... to>
constexpr void fillConverters(Kernels& table, std::index_sequence<to...>) {
  ((table.convert[from][to] = converter<from, to>()), ...);
}

template <DType from, DType to>
constexpr void fillConverterPast(Kernels& table) {
  table.convertPast[static_cast<size_t>(from)][static_cast<size_t>(to)] = &convertPast<from, to>;
}

template <ReduceOp op, Wide wide>
void accumulate(void* accumulator, const void* block, size_t count) {
  using W = WideOf<wide>;
  auto* __restrict a = static_cast<W*>(accumulator);
  const auto* __restrict b = static_cast<const W*>(block);
  for (size_t i = 0; i < count; i++) a[i] = combine<op, W>(a[i], b[i]);
}

template <Wide wide>
void divide(void* accumulator, uint64_t divisor, size_t count) {
  using W = WideOf<wide>;
  auto* a = static_cast<W*>(accumulator);
  const W by = static_cast<W>(divisor);
  for (size_t i = 0; i < count; i++) a[i] = a[i] / by;
}

/** A product of two float32 numbers is exact in float64, so that fused sums have the same bits. */
void addProduct(float* __restrict values, const float* __restrict a, size_t stride, const float* __restrict b,
                size_t rank, float scale, size_t count) {
  alignas(64) double sums[blockElements];
  std::memset(sums, 0, count * sizeof(double));
  for (size_t r = 0; r < rank; r++) {
    const double factor = b[r];
    const float* __restrict row = a + r * stride;
    for (size_t i = 0; i < count; i++) sums[i] += factor * static_cast<double>(row[i]);
  }
  for (size_t i = 0; i < count; i++) values[i] += static_cast<float>(sums[i]) * scale;
}

template <size_t... dtype>
constexpr Kernels makeTable(std::index_sequence<dtype...>) {
  constexpr auto D = [](size_t code) { return static_cast<DType>(code); };
  Kernels made{TENSORFERRY_TEXT(TENSORFERRY_KERNELS),
               {&load<D(dtype)>...},
               {{&store<D(dtype), Wide::Float32>, &store<D(dtype), Wide::Float64>, &store<D(dtype), Wide::Int64>,
                 &store<D(dtype), Wide::UInt64>}...},
               {},
               {},
               &copyRunPast,
               &copyRunsPast,
               {},
               {&divide<Wide::Float32>, &divide<Wide::Float64>, &divide<Wide::Int64>, &divide<Wide::UInt64>},
               &quantizeFloats,
               &quantizeBFloat16s,
               &dequantizeFloats,
               makeRuleKernels(),
               {&findChanges<1>, &findChanges<2>, &findChanges<4>, &findChanges<8>},
               &addProduct,
               &digestBlocks};
  (fillConverters<dtype>(made, std::make_index_sequence<castableCount>{}), ...);
  fillConverterPast<DType::Float32, DType::BFloat16>(made);
  fillConverterPast<DType::Float32, DType::Float16>(made);
  fillConverterPast<DType::BFloat16, DType::Float32>(made);
  fillConverterPast<DType::Float16, DType::Float32>(made);
  fillConverterPast<DType::BFloat16, DType::Float8E4M3>(made);
#define ACCUMULATE(OP)                                              \
  {                                                                 \
    auto& row = made.accumulate[static_cast<size_t>(ReduceOp::OP)]; \
    row[0] = &accumulate<ReduceOp::OP, Wide::Float32>;              \
    row[1] = &accumulate<ReduceOp::OP, Wide::Float64>;              \
    row[2] = &accumulate<ReduceOp::OP, Wide::Int64>;                \
    row[3] = &accumulate<ReduceOp::OP, Wide::UInt64>;               \
  }
  ACCUMULATE(Sum)
  ACCUMULATE(Average)
  ACCUMULATE(Maximum)
  ACCUMULATE(Minimum)
  ACCUMULATE(Product)
#undef ACCUMULATE
  return made;
}

}  // namespace

extern const Kernels table;
const Kernels table = makeTable(std::make_index_sequence<castableCount>{});

}  // namespace tensorferry::TENSORFERRY_KERNELS
