// SPDX-License-Identifier: Apache-2.0
/*
 * See batch.h. Compiles block scaling: dimensions that are dense neighbours on all sides become one, and where blocks are dense
 * and aligned and their rows not short, a team takes neighbours together.
 */
#include <array>
#include <cstring>
#include <utility>

#include <tensorferry/dtype.h>
#include <tensorferry/mxfp8.h>

#include "batch.h"
#include "forms_batch.h"
#include "grid.h"

namespace tensorferry::gpu {
namespace {

/** Words before shape and strides, see QuantizeTable.ts. */
constexpr size_t headWords = 15;

Status refuse(const char* detail) { return failure(Code::InvalidArgument, "compileQuantize", detail); }

enum Side : size_t { Plain, Data, Scales, sideCount };

struct BlockDimension {
  uint64_t length;
  std::array<uint64_t, sideCount> steps;
};

/** A plain tensor, data and scales, dimensions of blocks innermost first. */
struct Blocks {
  std::array<uint64_t, sideCount> addresses;
  std::vector<BlockDimension> dimensions;
  /** As in QuantizeRecord. */
  uint8_t lastBlocks = 0;

  uint64_t positions() const {
    uint64_t product = 1;
    for (const BlockDimension& dimension : dimensions) product *= dimension.length;
    return product;
  }
  Blocks part(size_t dimension, uint64_t from, uint64_t length) const {
    Blocks made = *this;
    made.dimensions[dimension].length = length;
    const bool hasLast = from + length == dimensions[dimension].length;
    if (lastBlocks > 0 && dimension == 0 && !hasLast) made.lastBlocks = blocksOfTeam;
    for (size_t side = 0; side < sideCount; side++) made.addresses[side] += from * dimensions[dimension].steps[side];
    return made;
  }
};

/** Dimensions of one block go, and dense neighbours become one. */
void append(std::vector<BlockDimension>& dimensions, const BlockDimension& next) {
  if (next.length == 1) return;
  bool merges = !dimensions.empty();
  for (size_t side = 0; side < sideCount && merges; side++)
    merges = next.steps[side] == dimensions.back().steps[side] * dimensions.back().length;
  if (merges) {
    dimensions.back().length *= next.length;
  } else {
    dimensions.push_back(next);
  }
}

/** Blocks of a dense row from which on a team is busy enough with it. */
constexpr uint64_t leastRow = 8;

/** From here on an index is as many neighbours as a team takes. */
void gatherRows(Blocks& blocks) {
  BlockDimension& row = blocks.dimensions.front();
  blocks.lastBlocks = static_cast<uint8_t>((row.length - 1) % blocksOfTeam + 1);
  row.length = (row.length + blocksOfTeam - 1) / blocksOfTeam;
  for (uint64_t& step : row.steps) step *= blocksOfTeam;
}

template <typename Emit>
void emitParts(const Blocks& blocks, const Emit& emit) {
  const uint64_t positions = blocks.positions();
  if (positions <= maxIndex) return emit(blocks);
  // The parts of one that was cut may be a single index long, and must be cut further in.
  size_t outermost = blocks.dimensions.size() - 1;
  while (blocks.dimensions[outermost].length == 1) outermost--;
  const uint64_t length = blocks.dimensions[outermost].length, inner = positions / length;
  const uint64_t chunk = std::max<uint64_t>(1, maxIndex / inner);
  for (uint64_t from = 0; from < length; from += chunk)
    emitParts(blocks.part(outermost, from, std::min(chunk, length - from)), emit);
}

/** Whether `tensorferry_quantize` knows the rule, and nothing is known of scales before. */
bool isBlockScaling(const QuantizeTable& table) {
  return table.op != QuantizeOp::Largest && formOf(table.rule) == QuantizeForm::Mxfp8 &&
         (static_cast<size_t>(table.rule) < scaleRuleCount || table.op == QuantizeOp::Dequantize) && !table.hasMaxima &&
         table.originColumn == 0 && table.columns.length % mxBlock == 0;
}

}  // namespace

Result<Reduction> compileQuantize(const uint64_t* words, size_t count) {
  auto read = readQuantizeTable(words, count);
  if (!read.ok()) return read.status();
  if (!isBlockScaling(read.value())) return compileForms(read.value());
  const uint64_t op = words[0], rule = op == 0 ? words[1] : 0, type = words[2], dimensions = words[3];
  const uint64_t* shape = words + headWords;
  const std::array<uint64_t, sideCount> sizes{dtypeBytes[type], 1, 1};
  uint64_t bytes = sizes[Plain];
  for (size_t d = 0; d < dimensions; d++)
    if (__builtin_mul_overflow(bytes, shape[d], &bytes)) return refuse("The tensors have more bytes than any device.");
  if (bytes > maxBytes) return refuse("The tensors have more bytes than any device.");
  if (bytes == 0) return Reduction{};
  Blocks blocks{{words[10], words[11], words[12]}, {}};
  std::array<uint64_t, sideCount> elementSteps{};
  std::array<uint64_t, sideCount> alignments = blocks.addresses;
  for (size_t d = dimensions; d > 0; d--) {
    const bool isLast = d == dimensions;
    BlockDimension dimension{isLast ? shape[d - 1] / mxBlock : shape[d - 1], {}};
    for (size_t side = 0; side < sideCount; side++) {
      uint64_t step = 0;
      if (__builtin_mul_overflow(shape[dimensions * (1 + side) + d - 1], sizes[side], &step))
        return refuse("A stride is too long.");
      if (isLast) elementSteps[side] = step;
      const uint64_t perBlock = isLast && side != Scales ? mxBlock : 1;
      if (__builtin_mul_overflow(step, perBlock, &dimension.steps[side]) || dimension.steps[side] > maxBytes)
        return refuse("A stride is too long.");
      if (dimension.length > 1) alignments[side] |= dimension.steps[side];
    }
    append(blocks.dimensions, dimension);
  }
  for (size_t side = 0; side < sideCount; side++) {
    const uint64_t length = side == Scales ? 1 : mxBlock;
    const auto dimensionAt = [&](size_t d) {
      return d == 0 ? std::pair{length, static_cast<int64_t>(elementSteps[side])}
                    : std::pair{blocks.dimensions[d - 1].length,
                                static_cast<int64_t>(blocks.dimensions[d - 1].steps[side])};
    };
    if (!extentOf(blocks.addresses[side], sizes[side], blocks.dimensions.size() + 1, dimensionAt))
      return refuse("A tensor has a negative stride or leaves the address space.");
  }
  if (blocks.dimensions.size() > 2 * maxDimensions) return refuse("More than 32 dimensions remain.");
  const auto isDense = [&](Side side) { return elementSteps[side] == sizes[side]; };
  const auto widthOf = [&](Side side) {
    const uint64_t within = isDense(side) ? mxBlock * sizes[side] : elementSteps[side];
    return commonWidth({alignments[side], within});
  };
  const bool inTeams = !blocks.dimensions.empty() && blocks.dimensions.front().length >= leastRow && isDense(Plain) &&
                       isDense(Data) && blocks.dimensions.front().steps[Plain] == mxBlock * sizes[Plain] &&
                       blocks.dimensions.front().steps[Data] == mxBlock;
  const uint64_t scaleStep = inTeams ? blocks.dimensions.front().steps[Scales] : 0;
  if (inTeams) gatherRows(blocks);
  Reduction made;
  constexpr size_t headWords = sizeof(QuantizeRecord) / 8, dimensionWords = sizeof(QuantizeDimension) / 8;
  made.recordWords = static_cast<uint32_t>((headWords + blocks.dimensions.size() * dimensionWords + 1) / 2 * 2);
  uint64_t most = 0;
  emitParts(blocks, [&](const Blocks& part) {
    const uint64_t positions = part.positions();
    most = std::max(most, positions);
    const size_t at = made.table.size();
    made.table.resize(at + made.recordWords);
    QuantizeRecord record{};
    record.plain = part.addresses[Plain];
    record.data = part.addresses[Data];
    record.scales = part.addresses[Scales];
    record.plainStep = static_cast<int64_t>(elementSteps[Plain]);
    record.dataStep = static_cast<int64_t>(elementSteps[Data]);
    record.scaleStep = static_cast<int64_t>(scaleStep);
    record.count = static_cast<uint32_t>(positions);
    record.isQuantization = op == 0;
    record.rule = static_cast<uint8_t>(rule);
    record.type = static_cast<uint8_t>(type);
    record.dimensionCount = static_cast<uint8_t>(part.dimensions.size());
    record.plainWidth = widthOf(Plain);
    record.dataWidth = widthOf(Data);
    record.lastBlocks = part.lastBlocks;
    std::memcpy(made.table.data() + at, &record, sizeof record);
    for (size_t d = 0; d < part.dimensions.size(); d++) {
      const BlockDimension& from = part.dimensions[d];
      const auto length = static_cast<uint32_t>(from.length);
      const QuantizeDimension dimension{length,
                                        0,
                                        divisorOf(length),
                                        static_cast<int64_t>(from.steps[Plain]),
                                        static_cast<int64_t>(from.steps[Data]),
                                        static_cast<int64_t>(from.steps[Scales])};
      std::memcpy(made.table.data() + at + headWords + d * dimensionWords, &dimension, sizeof dimension);
    }
    made.records++;
  });
  const uint64_t perBlock = inTeams ? blockThreads / teamThreads : blockThreads;
  made.usefulBlocks = static_cast<uint32_t>((most + perBlock - 1) / perBlock);
  const uint64_t elements = bytes / sizes[Plain], quantized = elements + elements / mxBlock;
  made.bytesRead = op == 0 ? bytes : quantized;
  made.bytesWritten = op == 0 ? quantized : bytes;
  return made;
}

}  // namespace tensorferry::gpu
