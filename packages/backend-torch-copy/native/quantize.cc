// SPDX-License-Identifier: Apache-2.0
/*
 * See quantize.h. The unit of position is the block; dimensions that are dense neighbours on all three sides become one, so
 * that a run has one step per side. Runs go through a small buffer on the stack, piece by piece.
 */
#include "quantize.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include <tensorferry/memory/stream.h>

#include "kernels.h"
#include "quantize_forms.h"

namespace tensorferry {
namespace {

/** Blocks of one unit of work, and of one piece within it. */
constexpr uint64_t unitBlocks = 16 * 1024;
constexpr size_t pieceBlocks = blockElements / mxBlock;

/** Jobs that touch more than this leave nothing useful in the caches. */
constexpr uint64_t streamingElements = 16u << 20;

enum Side : size_t { Plain, Data, Scales, sideCount };

struct Run {
  uint64_t length;
  /** Bytes from one block to the next. */
  std::array<int64_t, sideCount> steps;
};

struct Conversion {
  bool isQuantization;
  ScaleRule rule;
  uint8_t dtype;
  uint64_t blocks = 1;
  std::array<uint64_t, sideCount> addresses;
  /** Bytes between elements within a block; scales have one element. */
  std::array<int64_t, sideCount> elementSteps;
  std::vector<Run> runs;
};

/** The last dimension stays even where it is one block long: steps within a run are those of its elements. */
void addRun(std::vector<Run>& runs, const Run& run, bool isLast) {
  if (run.length == 1 && !isLast) return;
  bool merges = !runs.empty();
  for (size_t side = 0; side < sideCount && merges; side++)
    merges = runs.back().steps[side] == run.steps[side] * static_cast<int64_t>(run.length);
  if (merges) {
    runs.back() = {runs.back().length * run.length, run.steps};
  } else {
    runs.push_back(run);
  }
}

class QuantizeJob final : public Job {
 public:
  explicit QuantizeJob(Conversion conversion)
      : c_(std::move(conversion)), past_(c_.blocks * mxBlock > streamingElements) {}

  size_t count() const noexcept override { return (c_.blocks + unitBlocks - 1) / unitBlocks; }

  void run(size_t index) noexcept override {
    const uint64_t begin = index * unitBlocks, end = std::min(c_.blocks, begin + unitBlocks);
    for (uint64_t at = begin; at < end && !shouldStop();) at += runPieces(at, end - at);
    finishStreaming();
    if (cancelToken.isCancelled()) fail(failure(Code::Cancelled, "quantize", "The conversion was cancelled."));
  }

 private:
  uint8_t* place(Side side, uint64_t at) const noexcept {
    int64_t offset = 0;
    for (size_t d = c_.runs.size(); d > 0; d--) {
      offset += static_cast<int64_t>(at % c_.runs[d - 1].length) * c_.runs[d - 1].steps[side];
      at /= c_.runs[d - 1].length;
    }
    return reinterpret_cast<uint8_t*>(c_.addresses[side] + static_cast<uint64_t>(offset));
  }

  /** Converts the blocks from position `at` on, at most to the end of their innermost run. */
  uint64_t runPieces(uint64_t at, uint64_t limit) noexcept {
    const Run& run = c_.runs.back();
    const uint64_t blocks = std::min(limit, run.length - at % run.length);
    uint8_t *plain = place(Plain, at), *data = place(Data, at), *scales = place(Scales, at);
    uint64_t done = 0;
    while (done < blocks && !shouldStop()) {
      const size_t piece = static_cast<size_t>(std::min<uint64_t>(blocks - done, pieceBlocks));
      if (c_.isQuantization) {
        quantize(plain, data, scales, run.steps[Scales], piece);
      } else {
        dequantize(plain, data, scales, run.steps[Scales], piece);
      }
      const auto step = static_cast<int64_t>(piece);
      plain += step * run.steps[Plain];
      data += step * run.steps[Data];
      scales += step * run.steps[Scales];
      done += piece;
    }
    movedBytes.add(done * mxBlock * dtypeBytes[c_.dtype]);
    return done;
  }

  bool isDense(Side side) const noexcept { return c_.elementSteps[side] == (side == Plain ? dtypeBytes[c_.dtype] : 1); }

  void quantize(const uint8_t* plain, uint8_t* data, uint8_t* scales, int64_t scaleStep, size_t blocks) const noexcept {
    const Kernels& table = kernels();
    const size_t elements = blocks * mxBlock;
    alignas(64) uint8_t converted[blockElements], factors[pieceBlocks];
    alignas(64) float wide[blockElements];
    if (isDense(Plain) && c_.dtype == static_cast<uint8_t>(DType::BFloat16)) {
      table.quantizeBFloat16s(converted, factors, plain, blocks, c_.rule);
    } else if (isDense(Plain) && c_.dtype == static_cast<uint8_t>(DType::Float32)) {
      table.quantizeFloats(converted, factors, plain, blocks, c_.rule);
    } else {
      table.load[c_.dtype](wide, plain, c_.elementSteps[Plain], elements);
      table.quantizeFloats(converted, factors, reinterpret_cast<const uint8_t*>(wide), blocks, c_.rule);
    }
    if (!isDense(Data)) {
      for (size_t i = 0; i < elements; i++) data[static_cast<int64_t>(i) * c_.elementSteps[Data]] = converted[i];
    } else if (past_) {
      streamBytes(data, converted, elements);
    } else {
      std::memcpy(data, converted, elements);
    }
    if (scaleStep == 1) {
      std::memcpy(scales, factors, blocks);
    } else {
      for (size_t i = 0; i < blocks; i++) scales[static_cast<int64_t>(i) * scaleStep] = factors[i];
    }
  }

  void dequantize(uint8_t* plain, const uint8_t* data, const uint8_t* scales, int64_t scaleStep,
                  size_t blocks) const noexcept {
    const Kernels& table = kernels();
    const size_t elements = blocks * mxBlock;
    uint8_t gathered[blockElements], factors[pieceBlocks];
    alignas(64) float wide[blockElements];
    for (size_t i = 0; i < blocks; i++) factors[i] = scales[static_cast<int64_t>(i) * scaleStep];
    if (!isDense(Data)) {
      for (size_t i = 0; i < elements; i++) gathered[i] = data[static_cast<int64_t>(i) * c_.elementSteps[Data]];
    }
    table.dequantizeFloats(wide, isDense(Data) ? data : gathered, factors, blocks);
    table.store[c_.dtype][static_cast<size_t>(Wide::Float32)](plain, c_.elementSteps[Plain], wide, elements);
  }

  Conversion c_;
  bool past_;
};

/** Whether the loops of this file know the rule, and nothing is known of scales before. */
bool isBlockScaling(const QuantizeTable& table) {
  return table.op != QuantizeOp::Largest && formOf(table.rule) == QuantizeForm::Mxfp8 &&
         (static_cast<size_t>(table.rule) < scaleRuleCount || table.op == QuantizeOp::Dequantize) && !table.hasMaxima &&
         table.originColumn == 0 && table.columns.length % mxBlock == 0;
}

}  // namespace

Result<std::shared_ptr<Job>> makeQuantizeJob(const uint64_t* words, size_t count) {
  auto read = readQuantizeTable(words, count);
  if (!read.ok()) return read.status();
  QuantizeTable& table = read.value();
  if (!isBlockScaling(table)) return makeFormsJob(std::move(table));
  const auto rule = static_cast<ScaleRule>(table.op == QuantizeOp::Dequantize ? 0 : static_cast<uint8_t>(table.rule));
  Conversion conversion{table.op == QuantizeOp::Quantize, rule, table.plainType, 1, {}, {}, {}};
  std::copy_n(table.addresses, sideCount, conversion.addresses.begin());
  const auto add = [&](const OuterDimension& dimension, bool isLast) {
    Run run{isLast ? dimension.length / mxBlock : dimension.length, {}};
    for (size_t side = 0; side < sideCount; side++) {
      run.steps[side] = dimension.steps[side] * (isLast && side != Scales ? static_cast<int64_t>(mxBlock) : 1);
      if (isLast) conversion.elementSteps[side] = dimension.steps[side];
    }
    conversion.blocks *= run.length;
    addRun(conversion.runs, run, isLast);
  };
  for (const OuterDimension& dimension : table.matrices) add(dimension, false);
  add(table.rows, false);
  add(table.columns, true);
  return std::shared_ptr<Job>(std::make_shared<QuantizeJob>(std::move(conversion)));
}

}  // namespace tensorferry
