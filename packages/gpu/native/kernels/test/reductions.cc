// SPDX-License-Identifier: Apache-2.0
/*
 * Reductions of random form against a naive reference, element by element, as tensorferry/elements.h defines the types.
 */
#include <type_traits>
#include <utility>

#include <tensorferry/elements.h>

#include "support.h"

namespace tensorferry::gpu::test {
namespace {

struct Tensor {
  std::vector<uint8_t> bytes;
  uint64_t offset;
  std::vector<uint64_t> strides;
  uint64_t address() const { return addressOf(bytes.data()) + offset; }
};

template <DType type, ReduceOp op>
void reduceElement(uint64_t to, const std::vector<uint64_t>& from) {
  using E = Element<type>;
  const auto read = [](uint64_t address) {
    typename E::Stored stored;
    std::memcpy(&stored, reinterpret_cast<const void*>(address), sizeof stored);
    return E::decode(stored);
  };
  auto result = read(from[0]);
  for (size_t t = 1; t < from.size(); t++) result = combine<op>(result, read(from[t]));
  if constexpr (op == ReduceOp::Average) {
    // Sums of integers wrap in the type of the elements before they are divided.
    if constexpr (std::is_integral_v<decltype(result)>) result = E::decode(E::encode(result));
    result /= static_cast<decltype(result)>(from.size());
  }
  const auto stored = E::encode(result);
  std::memcpy(reinterpret_cast<void*>(to), &stored, sizeof stored);
}

/** Pairs are numbered by type, then operation. */
template <size_t... pairs>
void reduceNaively(size_t pair, std::index_sequence<pairs...>, uint64_t to, const std::vector<uint64_t>& from) {
  static constexpr void (*reductions[])(uint64_t, const std::vector<uint64_t>&) = {
      reduceElement<static_cast<DType>(pairs / reduceOpCount), static_cast<ReduceOp>(pairs % reduceOpCount)>...};
  reductions[pair](to, from);
}

Tensor makeTensor(Random& random, const std::vector<uint64_t>& shape, uint64_t size, bool dense) {
  Tensor tensor{{}, random.chance(50) ? 0 : random.below(19), std::vector<uint64_t>(shape.size())};
  uint64_t step = 1;
  for (size_t d = shape.size(); d > 0; d--) {
    if (!dense && random.chance(40)) step += random.below(5);
    tensor.strides[d - 1] = step;
    step *= shape[d - 1];
  }
  tensor.bytes.resize(step * size + tensor.offset + 40);
  random.fill(tensor.bytes.data(), tensor.bytes.size());
  return tensor;
}

/** Random bits are mostly huge floats: most operands are brought near one another. */
void temper(Random& random, uint8_t type, Tensor& tensor) {
  const size_t size = dtypeBytes[type];
  for (size_t at = tensor.offset; at + size <= tensor.bytes.size(); at += size) {
    if (!random.chance(90)) continue;
    const float value = static_cast<float>(static_cast<int32_t>(random.next() >> 40)) / 4096.0f;
    castNaively(type, tensor.bytes.data() + at, static_cast<uint8_t>(DType::Float32), &value, 1);
  }
}

void reductionOfRandomForm(uint64_t seed) {
  Random random(seed);
  const auto type = static_cast<uint8_t>(random.below(castableCount)),
             op = static_cast<uint8_t>(random.below(reduceOpCount));
  const bool isNothing = type == static_cast<uint8_t>(DType::Bool) && op == static_cast<uint8_t>(ReduceOp::Average);
  constexpr uint64_t lengths[] = {1, 2, 3, 4, 5, 8, 16, 17, 64, 131};
  std::vector<uint64_t> shape(random.below(5));
  uint64_t elements = 1;
  for (auto& length : shape) {
    length = lengths[random.below(std::size(lengths))];
    if (elements * length > 20'000) length = 1;
    elements *= length;
  }
  if (!shape.empty() && random.chance(3)) shape[0] = 0;
  const size_t operands = random.chance(5) ? 70 : 1 + random.below(9);
  const bool dense = random.chance(50);
  std::vector<Tensor> tensors;
  for (size_t t = 0; t <= operands; t++) {
    tensors.push_back(makeTensor(random, shape, dtypeBytes[type], dense));
    if (type >= static_cast<uint8_t>(DType::Float16)) temper(random, type, tensors.back());
  }
  std::vector<uint64_t> words{op, type, shape.size(), operands};
  for (const Tensor& tensor : tensors) words.push_back(tensor.address());
  const bool inPlace = random.chance(15);
  if (inPlace) {
    words[5] = words[4];
    tensors[1].strides = tensors[0].strides;
  }
  words.insert(words.end(), shape.begin(), shape.end());
  for (const Tensor& tensor : tensors) words.insert(words.end(), tensor.strides.begin(), tensor.strides.end());
  auto compiled = compileReduce(words.data(), words.size());
  const std::string what =
      "reduction " + std::to_string(op) + " of " + dtypeNames[type] + ", seed " + std::to_string(seed);
  if (isNothing) {
    check(!compiled.ok() && compiled.status().code == Code::InvalidArgument, what + ": refused");
    return;
  }
  if (!check(compiled.ok(), what + ": compiles; " + why(compiled))) return;
  const Reduction& reduction = compiled.value();

  std::vector<uint8_t> expected = tensors[0].bytes;
  const uint64_t shift = addressOf(expected.data()) - addressOf(tensors[0].bytes.data());
  std::vector<uint64_t> position(shape.size());
  bool empty = false;
  for (const uint64_t length : shape) empty = empty || length == 0;
  while (!empty) {
    std::vector<uint64_t> from;
    uint64_t to = 0;
    for (size_t t = 0; t <= operands; t++) {
      uint64_t offset = 0;
      for (size_t d = 0; d < shape.size(); d++) offset += position[d] * tensors[t].strides[d];
      const uint64_t address = words[4 + t] + offset * dtypeBytes[type];
      if (t == 0) {
        to = address + shift;
      } else {
        from.push_back(address);
      }
    }
    reduceNaively(type * reduceOpCount + op, std::make_index_sequence<castableCount * reduceOpCount>(), to, from);
    size_t d = shape.size();
    while (d > 0 && ++position[d - 1] == shape[d - 1]) position[--d] = 0;
    if (d == 0) break;
  }
  const Uploaded table(reduction.table);
  const ReduceParameter parameter = reduceParameter(reduction, table.address());
  check(reduction.records == 0 || reduction.usefulBlocks > 0, what + ": blocks are useful");
  launch("tensorferry_reduce", &parameter, sizeof parameter, 1 + static_cast<unsigned>(random.below(4)));
  check(expected == tensors[0].bytes, what);
}

}  // namespace

void testReductions() {
  for (uint64_t seed = 1; seed <= 1200; seed++) reductionOfRandomForm(seed);
}

}  // namespace tensorferry::gpu::test
