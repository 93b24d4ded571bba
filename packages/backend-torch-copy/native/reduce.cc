// SPDX-License-Identifier: Apache-2.0
/*
 * See reduce.h. The operands are read block by block into their wide form and accumulated there; one rounding at the end.
 */
#include "reduce.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels.h"
#include "moves.h"

namespace tensorferry {
namespace {

/** Elements of one unit of work. */
constexpr uint64_t unitElements = 256 * 1024;

Status badTable(const char* detail) { return failure(Code::InvalidArgument, "reduce", detail); }

struct Tensors {
  ReduceOp op;
  uint8_t dtype;
  uint64_t elements = 1;
  std::vector<uint64_t> shape;
  /** Destination first, then the operands. */
  std::vector<uint64_t> addresses;
  std::vector<std::vector<int64_t>> steps;
};

/** Merges dimensions that are dense neighbours in every tensor, so that inner runs are as long as they can be. */
void mergeDimensions(Tensors& tensors) {
  std::vector<uint64_t> shape;
  std::vector<std::vector<int64_t>> steps(tensors.steps.size());
  for (size_t d = 0; d < tensors.shape.size(); d++) {
    if (tensors.shape[d] == 1) continue;
    const auto length = static_cast<int64_t>(tensors.shape[d]);
    bool merges = !shape.empty();
    for (size_t t = 0; t < steps.size() && merges; t++) merges = steps[t].back() == tensors.steps[t][d] * length;
    if (merges) {
      shape.back() *= tensors.shape[d];
    } else {
      shape.push_back(tensors.shape[d]);
    }
    for (size_t t = 0; t < steps.size(); t++) {
      if (merges) {
        steps[t].back() = tensors.steps[t][d];
      } else {
        steps[t].push_back(tensors.steps[t][d]);
      }
    }
  }
  tensors.shape = std::move(shape);
  tensors.steps = std::move(steps);
}

class ReduceJob final : public Job {
 public:
  explicit ReduceJob(Tensors tensors) : tensors_(std::move(tensors)) {}

  size_t count() const noexcept override { return (tensors_.elements + unitElements - 1) / unitElements; }

  void run(size_t index) noexcept override {
    const uint64_t begin = index * unitElements, end = std::min(tensors_.elements, begin + unitElements);
    for (uint64_t at = begin; at < end && !shouldStop();) at += runBlock(at, end - at);
    if (cancelToken.isCancelled()) fail(failure(Code::Cancelled, "reduce", "The reduction was cancelled."));
  }

 private:
  /** Reduces the elements from logical position `at` on, at most to the end of their innermost run. */
  uint64_t runBlock(uint64_t at, uint64_t limit) noexcept {
    const Kernels& table = kernels();
    const size_t wide = static_cast<size_t>(wideOf(tensors_.dtype)), op = static_cast<size_t>(tensors_.op);
    const size_t dimensions = tensors_.shape.size(), operands = tensors_.addresses.size() - 1;
    const uint64_t run = dimensions == 0 ? 1 : tensors_.shape.back();
    const size_t count = std::min({limit, run - at % run, static_cast<uint64_t>(blockElements)});
    const auto place = [&](size_t t) {
      int64_t offset = 0;
      uint64_t rest = at;
      for (size_t d = dimensions; d > 0; d--) {
        offset += static_cast<int64_t>(rest % tensors_.shape[d - 1]) * tensors_.steps[t][d - 1];
        rest /= tensors_.shape[d - 1];
      }
      return reinterpret_cast<uint8_t*>(tensors_.addresses[t] + offset);
    };
    const auto step = [&](size_t t) {
      return dimensions == 0 ? static_cast<int64_t>(dtypeBytes[tensors_.dtype]) : tensors_.steps[t].back();
    };
    alignas(64) uint8_t sum[blockElements * 8], block[blockElements * 8];
    table.load[tensors_.dtype](sum, place(1), step(1), count);
    for (size_t t = 2; t <= operands; t++) {
      table.load[tensors_.dtype](block, place(t), step(t), count);
      table.accumulate[op][wide](sum, block, count);
    }
    if (tensors_.op == ReduceOp::Average) {
      const bool isInteger = wide >= static_cast<size_t>(Wide::Int64);
      if (isInteger) {  // the sum has the width of the type, not of the accumulator
        table.store[tensors_.dtype][wide](block, dtypeBytes[tensors_.dtype], sum, count);
        table.load[tensors_.dtype](sum, block, dtypeBytes[tensors_.dtype], count);
      }
      table.divide[wide](sum, operands, count);
    }
    table.store[tensors_.dtype][wide](place(0), step(0), sum, count);
    movedBytes.add(count * dtypeBytes[tensors_.dtype]);
    return count;
  }

  Tensors tensors_;
};

}  // namespace

Result<std::shared_ptr<Job>> makeReduceJob(const uint64_t* words, size_t count) {
  if (count < 5) return badTable("The table is too short.");
  const uint64_t op = words[0], dtype = words[1], dimensions = words[2], operands = words[3];
  if (op >= reduceOpCount) return badTable("Unknown operation.");
  if (dtype >= castableCount) return badTable("This element type is not reduced.");
  if (dimensions > 255) return badTable("More than 255 dimensions.");
  if (operands == 0 || operands > count) return badTable("At least one operand is needed.");
  if (count != 5 + operands + dimensions * (2 + operands)) return badTable("The table has the wrong length.");
  Tensors tensors{static_cast<ReduceOp>(op), static_cast<uint8_t>(dtype), 1, {}, {}, {}};
  const int64_t size = dtypeBytes[dtype];
  tensors.addresses.assign(words + 4, words + 5 + operands);
  const uint64_t* shape = words + 5 + operands;
  tensors.shape.assign(shape, shape + dimensions);
  for (const uint64_t length : tensors.shape) tensors.elements *= length;
  for (size_t t = 0; t <= operands; t++) {
    const uint64_t* strides = shape + dimensions * (1 + t);
    std::vector<int64_t> steps(dimensions);
    for (size_t d = 0; d < dimensions; d++) steps[d] = static_cast<int64_t>(strides[d]) * size;
    tensors.steps.push_back(std::move(steps));
  }
  mergeDimensions(tensors);
  return std::shared_ptr<Job>(std::make_shared<ReduceJob>(std::move(tensors)));
}

}  // namespace tensorferry
