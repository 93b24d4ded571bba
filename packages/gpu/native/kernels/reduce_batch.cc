// SPDX-License-Identifier: Apache-2.0
/*
 * See batch.h. Compiles reductions: dimensions that are dense neighbours in every tensor become one, and where all tensors
 * are dense along the innermost dimension, elements go in groups of four.
 */
#include <algorithm>
#include <cstring>
#include <utility>

#include <tensorferry/dtype.h>
#include <tensorferry/wide.h>

#include "batch.h"
#include "grid.h"

namespace tensorferry::gpu {
namespace {

Status refuse(const char* detail) { return failure(Code::InvalidArgument, "compileReduce", detail); }

/** Tensors of one shape, dimensions innermost first. The destination is the first. */
struct Tensors {
  std::vector<uint64_t> shape;
  std::vector<uint64_t> addresses;
  /** Bytes between neighbours, per tensor and dimension. */
  std::vector<std::vector<uint64_t>> steps;

  uint64_t positions() const {
    uint64_t product = 1;
    for (const uint64_t length : shape) product *= length;
    return product;
  }
  Tensors part(size_t dimension, uint64_t from, uint64_t length) const {
    Tensors made = *this;
    made.shape[dimension] = length;
    for (size_t t = 0; t < addresses.size(); t++) made.addresses[t] += from * steps[t][dimension];
    return made;
  }
};

/** The same tensors with fewer dimensions. */
Tensors merged(const Tensors& given) {
  Tensors made{{}, given.addresses, std::vector<std::vector<uint64_t>>(given.steps.size())};
  for (size_t d = 0; d < given.shape.size(); d++) {
    if (given.shape[d] == 1) continue;
    bool merges = !made.shape.empty();
    for (size_t t = 0; t < made.steps.size() && merges; t++)
      merges = given.steps[t][d] == made.steps[t].back() * made.shape.back();
    if (merges) {
      made.shape.back() *= given.shape[d];
      continue;
    }
    made.shape.push_back(given.shape[d]);
    for (size_t t = 0; t < made.steps.size(); t++) made.steps[t].push_back(given.steps[t][d]);
  }
  return made;
}

class Compiler {
 public:
  Compiler(uint8_t op, uint8_t type) : op_(op), type_(type) {}

  void add(const Tensors& tensors) {
    const uint64_t size = dtypeBytes[type_];
    bool isDense = !tensors.shape.empty() && tensors.shape[0] >= 4;
    for (size_t t = 0; t < tensors.steps.size() && isDense; t++) isDense = tensors.steps[t][0] == size;
    if (!isDense) return addParts(tensors, 1);
    const uint64_t rest = tensors.shape[0] % 4, groups = tensors.shape[0] / 4;
    Tensors inGroups = tensors.part(0, 0, groups);
    for (auto& steps : inGroups.steps) steps[0] *= 4;
    addParts(inGroups, 4);
    if (rest > 0) addParts(tensors.part(0, 4 * groups, rest), 1);
  }

  Reduction finish() {
    Reduction made;
    for (const auto& record : records_)
      made.recordWords = std::max(made.recordWords, static_cast<uint32_t>(record.size()));
    made.recordWords += made.recordWords % 2;  // records are read 16 bytes at a time
    made.records = static_cast<uint32_t>(records_.size());
    made.table.resize(static_cast<size_t>(made.records) * made.recordWords);
    for (size_t r = 0; r < records_.size(); r++)
      std::copy(records_[r].begin(), records_[r].end(),
                made.table.begin() + static_cast<ptrdiff_t>(r * made.recordWords));
    made.usefulBlocks = (mostIndices_ + blockThreads - 1) / blockThreads;
    return made;
  }

 private:
  void addParts(const Tensors& tensors, uint8_t group) {
    const uint64_t positions = tensors.positions();
    if (positions <= maxIndex) return addRecord(tensors, group);
    const size_t outermost = tensors.shape.size() - 1;
    const uint64_t length = tensors.shape[outermost], chunk = std::max<uint64_t>(1, maxIndex / (positions / length));
    for (uint64_t from = 0; from < length; from += chunk) {
      Tensors part = tensors.part(outermost, from, std::min(chunk, length - from));
      if (part.shape[outermost] == 1) {
        part.shape.pop_back();
        for (auto& steps : part.steps) steps.pop_back();
      }
      addParts(part, group);
    }
  }

  void addRecord(const Tensors& tensors, uint8_t group) {
    uint64_t bits = 0;
    for (size_t t = 0; t < tensors.steps.size(); t++) {
      bits |= tensors.addresses[t];
      for (const uint64_t step : tensors.steps[t]) bits |= step;
    }
    const auto count = static_cast<uint32_t>(tensors.positions());
    const ReduceRecord head{count,
                            static_cast<uint32_t>(tensors.addresses.size() - 1),
                            op_,
                            type_,
                            static_cast<uint8_t>(tensors.shape.size()),
                            group,
                            commonWidth({bits}),
                            {}};
    std::vector<uint64_t> words(sizeof head / sizeof(uint64_t));
    std::memcpy(words.data(), &head, sizeof head);
    for (const uint64_t length : tensors.shape) {
      const ReduceDimension dimension{static_cast<uint32_t>(length), 0, divisorOf(static_cast<uint32_t>(length))};
      uint64_t pair[2];
      static_assert(sizeof pair == sizeof dimension);
      std::memcpy(pair, &dimension, sizeof pair);
      words.insert(words.end(), pair, pair + 2);
    }
    for (size_t t = 0; t < tensors.steps.size(); t++) {
      words.push_back(tensors.addresses[t]);
      words.insert(words.end(), tensors.steps[t].begin(), tensors.steps[t].end());
    }
    records_.push_back(std::move(words));
    mostIndices_ = std::max(mostIndices_, count);
  }

  uint8_t op_, type_;
  std::vector<std::vector<uint64_t>> records_;
  uint32_t mostIndices_ = 0;
};

}  // namespace

Result<Reduction> compileReduce(const uint64_t* words, size_t count) {
  if (count < 5) return refuse("The table is too short.");
  const uint64_t op = words[0], type = words[1], dimensions = words[2], operands = words[3];
  if (op >= reduceOpCount) return refuse("Unknown operation.");
  if (type >= castableCount) return refuse("This element type is not reduced.");
  if (type == static_cast<uint64_t>(DType::Bool) && op == static_cast<uint64_t>(ReduceOp::Average))
    return refuse("There is no average of bool.");
  if (dimensions > 255) return refuse("More than 255 dimensions.");
  if (operands == 0 || operands > count) return refuse("At least one operand is needed.");
  if (count != 5 + operands + dimensions * (2 + operands)) return refuse("The table has the wrong length.");
  const uint64_t size = dtypeBytes[type];
  Tensors given{{}, {words + 4, words + 5 + operands}, {}};
  const uint64_t* shape = words + 5 + operands;
  uint64_t bytes = size;
  for (size_t d = dimensions; d > 0; d--) {
    given.shape.push_back(shape[d - 1]);
    if (__builtin_mul_overflow(bytes, shape[d - 1], &bytes))
      return refuse("The tensors have more bytes than any device.");
  }
  if (bytes > maxBytes) return refuse("The tensors have more bytes than any device.");
  if (bytes == 0) return Reduction{};
  for (size_t t = 0; t <= operands; t++) {
    const uint64_t* strides = shape + dimensions * (1 + t);
    std::vector<uint64_t> steps;
    for (size_t d = dimensions; d > 0; d--) {
      uint64_t step = 0;
      if (__builtin_mul_overflow(strides[d - 1], size, &step)) return refuse("A stride is too long.");
      steps.push_back(step);
    }
    const auto dimensionAt = [&](size_t d) { return std::pair{given.shape[d], static_cast<int64_t>(steps[d])}; };
    if (!extentOf(given.addresses[t], size, dimensions, dimensionAt))
      return refuse("A tensor has a negative stride or leaves the address space.");
    given.steps.push_back(std::move(steps));
  }
  const Tensors tensors = merged(given);
  if (tensors.shape.size() > 2 * maxDimensions) return refuse("More than 32 dimensions remain.");
  Compiler compiler(static_cast<uint8_t>(op), static_cast<uint8_t>(type));
  compiler.add(tensors);
  Reduction made = compiler.finish();
  made.bytesWritten = bytes;
  made.bytesRead = bytes * operands;
  return made;
}

}  // namespace tensorferry::gpu
