// SPDX-License-Identifier: Apache-2.0
/*
 * Block scaling of random form against plain arithmetic on real numbers, element by element.
 */
#include <cmath>

#include <tensorferry/mxfp8.h>

#include "support.h"

namespace tensorferry::gpu::test {
namespace {

constexpr uint8_t plainTypes[] = {static_cast<uint8_t>(DType::Float16), static_cast<uint8_t>(DType::BFloat16),
                                  static_cast<uint8_t>(DType::Float32)};

struct Tensor {
  std::vector<uint8_t> bytes;
  uint64_t offset;
  std::vector<uint64_t> strides;
  uint64_t address() const { return addressOf(bytes.data()) + offset; }
};

/** The value of a non-negative code of float8_e4m3fn. */
double valueOfCode(unsigned code) {
  const int exponent = static_cast<int>(code >> 3), mantissa = static_cast<int>(code & 7);
  return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
}

/** The nearest code; of two as near the even one, of what is beyond the largest value that. */
uint8_t nearestCode(double value) {
  const double magnitude = std::fabs(value);
  unsigned least = 0, beyond = 0x7f;
  while (beyond - least > 1) {
    const unsigned middle = (least + beyond) / 2;
    (valueOfCode(middle) <= magnitude ? least : beyond) = middle;
  }
  unsigned nearest = least;
  if (least < 0x7e) {
    const double below = magnitude - valueOfCode(least), above = valueOfCode(least + 1) - magnitude;
    if (above < below || (above == below && least % 2 == 1)) nearest = least + 1;
  }
  return static_cast<uint8_t>(nearest | (std::signbit(value) ? 0x80 : 0));
}

unsigned scaleByRule(ScaleRule rule, float largest) {
  if (largest != largest) return 255;
  if (std::isinf(largest)) return rule == ScaleRule::RoundUpTransformerEngine ? 254 : 255;
  if (largest == 0) return 0;
  const float ratio = largest * (1.0f / 448.0f);
  if (rule == ScaleRule::OcpFloor) return static_cast<unsigned>(std::max(0, std::ilogb(largest) - 8 + 127));
  if (ratio == 0) return 0;
  const int floor = std::ilogb(ratio), ceiling = std::ldexp(1.0, floor) < ratio ? floor + 1 : floor;
  return static_cast<unsigned>(std::max(0, ceiling + 127));
}

/** Of one block; elements are `steps` apart. */
void quantizeNaively(uint8_t type, ScaleRule rule, uint64_t plain, uint64_t plainStep, uint64_t data, uint64_t dataStep,
                     uint64_t scaleAt) {
  float values[mxBlock], largest = 0;
  for (unsigned i = 0; i < mxBlock; i++) {
    castNaively(static_cast<uint8_t>(DType::Float32), &values[i], type, reinterpret_cast<void*>(plain + i * plainStep),
                1);
    if (largest == largest && !(std::fabs(values[i]) <= largest)) largest = std::fabs(values[i]);
  }
  const unsigned scale = scaleByRule(rule, largest);
  *reinterpret_cast<uint8_t*>(scaleAt) = static_cast<uint8_t>(scale);
  const bool isRaised = rule == ScaleRule::RoundUpTransformerEngine && scale == 0;
  for (unsigned i = 0; i < mxBlock; i++) {
    const double scaled = isRaised ? values[i] : std::ldexp(values[i], 127 - static_cast<int>(scale));
    *reinterpret_cast<uint8_t*>(data + i * dataStep) = scale == 255 ? 0x7f : nearestCode(scaled);
  }
}

void dequantizeNaively(uint8_t type, uint64_t plain, uint64_t plainStep, uint64_t data, uint64_t dataStep,
                       uint64_t scaleAt) {
  const int scale = *reinterpret_cast<uint8_t*>(scaleAt);
  for (unsigned i = 0; i < mxBlock; i++) {
    const unsigned code = *reinterpret_cast<uint8_t*>(data + i * dataStep);
    const double magnitude = std::ldexp(valueOfCode(code & 0x7f), scale - 127);
    const bool isNaN = scale == 255 || (code & 0x7f) == 0x7f;
    const float value = isNaN ? NAN : static_cast<float>((code & 0x80) != 0 ? -magnitude : magnitude);
    castNaively(type, reinterpret_cast<void*>(plain + i * plainStep), static_cast<uint8_t>(DType::Float32), &value, 1);
  }
}

Tensor makeTensor(Random& random, const std::vector<uint64_t>& shape, uint64_t size, unsigned form) {
  Tensor tensor{{}, form == 0 ? 0 : random.below(4) * 16, std::vector<uint64_t>(shape.size())};
  if (form > 1 && random.chance(40)) tensor.offset += random.below(16);
  uint64_t step = form == 3 ? 1 + random.below(3) : 1;
  for (size_t d = shape.size(); d > 0; d--) {
    if (form > 0 && d < shape.size() && random.chance(50))
      step += random.chance(70) ? 32 * random.below(3) : random.below(5);
    tensor.strides[d - 1] = step;
    step *= shape[d - 1];
  }
  tensor.bytes.resize(step * size + tensor.offset + 40);
  random.fill(tensor.bytes.data(), tensor.bytes.size());
  return tensor;
}

/** Random bits have NaN in nearly every block: most blocks get elements near one another, at any magnitude. */
void temper(Random& random, uint8_t type, Tensor& tensor) {
  const size_t size = dtypeBytes[type], count = (tensor.bytes.size() - tensor.offset) / size;
  int exponent = 0;
  unsigned odd = 0;
  for (size_t i = 0; i < count; i++) {
    if (i % mxBlock == 0) {
      exponent = type == static_cast<uint8_t>(DType::Float16) ? static_cast<int>(random.below(36)) - 22
                                                              : static_cast<int>(random.below(272)) - 145;
      odd = random.chance(8) ? 3 : 0;
    }
    if (random.chance(odd)) continue;
    const float value =
        std::ldexp(static_cast<float>(static_cast<int32_t>(random.next() >> 40) - (1 << 23)) / (1 << 23), exponent);
    castNaively(type, tensor.bytes.data() + tensor.offset + i * size, static_cast<uint8_t>(DType::Float32), &value, 1);
  }
}

unsigned byTeams = 0, byThreads = 0;

void scalingOfRandomForm(uint64_t seed) {
  Random random(seed);
  const uint8_t type = plainTypes[random.below(3)];
  const auto rule = static_cast<ScaleRule>(random.below(scaleRuleCount));
  const bool isQuantization = random.chance(50);
  constexpr uint64_t lengths[] = {1, 2, 3, 5, 8}, rows[] = {1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 70, 97};
  std::vector<uint64_t> shape(1 + random.below(4));
  uint64_t blocks = 1;
  for (auto& length : shape) {
    const bool isLast = &length == &shape.back();
    length = isLast ? rows[random.below(std::size(rows))] : lengths[random.below(std::size(lengths))];
    if (blocks * length > 400) length = 1;
    blocks *= length;
    if (isLast) length *= mxBlock;
  }
  if (shape.size() > 1 && random.chance(3)) shape[0] = 0;
  std::vector<uint64_t> scaleShape = shape;
  scaleShape.back() /= mxBlock;
  // Dense and aligned, rows apart, rows and addresses apart, elements apart.
  const unsigned form = static_cast<unsigned>(random.below(4));
  Tensor tensors[] = {makeTensor(random, shape, dtypeBytes[type], form),
                      makeTensor(random, shape, 1, random.chance(20) ? 3 : form),
                      makeTensor(random, scaleShape, 1, static_cast<unsigned>(random.below(4)))};
  temper(random, type, tensors[0]);
  std::vector<uint64_t> words{isQuantization ? 0u : 1u, static_cast<uint64_t>(rule), type, shape.size()};
  words.insert(words.end(), {1, mxBlock, 0, 0, 0, 0});
  for (const Tensor& tensor : tensors) words.push_back(tensor.address());
  words.insert(words.end(), {0, 0});
  words.insert(words.end(), shape.begin(), shape.end());
  for (const Tensor& tensor : tensors) words.insert(words.end(), tensor.strides.begin(), tensor.strides.end());
  words.insert(words.end(), shape.size(), 0);
  auto compiled = compileQuantize(words.data(), words.size());
  const std::string what =
      std::string(isQuantization ? "quantize " : "dequantize ") + dtypeNames[type] + ", seed " + std::to_string(seed);
  if (!check(compiled.ok(), what + ": compiles; " + why(compiled))) return;
  const Reduction& made = compiled.value();
  check((made.records == 0) == (shape[0] == 0), what + ": records");
  check(made.records == 0 || made.usefulBlocks > 0, what + ": blocks are useful");

  std::vector<uint8_t> expected[3] = {tensors[0].bytes, tensors[1].bytes, tensors[2].bytes};
  std::vector<uint64_t> position(shape.size());
  while (shape[0] != 0) {
    uint64_t at[3];
    for (size_t side = 0; side < 3; side++) {
      at[side] = addressOf(expected[side].data()) + tensors[side].offset;
      for (size_t d = 0; d < shape.size(); d++)
        at[side] += position[d] * tensors[side].strides[d] * (side == 0 ? dtypeBytes[type] : 1) *
                    (d + 1 == shape.size() && side < 2 ? mxBlock : 1);
    }
    const uint64_t plainStep = tensors[0].strides.back() * dtypeBytes[type], dataStep = tensors[1].strides.back();
    if (isQuantization) {
      quantizeNaively(type, rule, at[0], plainStep, at[1], dataStep, at[2]);
    } else {
      dequantizeNaively(type, at[0], plainStep, at[1], dataStep, at[2]);
    }
    size_t d = shape.size();
    while (d > 0 && ++position[d - 1] == scaleShape[d - 1]) position[--d] = 0;
    if (d == 0) break;
  }
  const Uploaded table(made.table);
  for (uint32_t r = 0; r < made.records; r++) {
    const auto& record = *reinterpret_cast<const QuantizeRecord*>(table.address() + 8ull * r * made.recordWords);
    (record.lastBlocks > 0 ? byTeams : byThreads)++;
  }
  const QuantizeParameter parameter = quantizeParameter(made, table.address());
  launch("tensorferry_quantize", &parameter, sizeof parameter, 1 + static_cast<unsigned>(random.below(4)));
  for (size_t side = 0; side < 3; side++)
    check(expected[side] == tensors[side].bytes, what + ": side " + std::to_string(side));
}

/** A row of more indices than a record has is cut where teams end, and only its last part ends with fewer blocks. */
void longRow() {
  const uint64_t blocks = 2ull * maxIndex * blocksOfTeam + 33, elements = blocks * mxBlock;
  const uint64_t words[] = {0,          0,          static_cast<uint64_t>(DType::BFloat16),
                            1,          1,          mxBlock,
                            0,          0,          0,
                            0,          1ull << 50, 1ull << 54,
                            1ull << 56, 0,          0,
                            elements,   1,          1,
                            1,          0};
  auto compiled = compileQuantize(words, std::size(words));
  if (!check(compiled.ok(), "a long row: compiles; " + why(compiled))) return;
  const Reduction& made = compiled.value();
  check(made.records == 3, "a long row: three parts");
  const Uploaded table(made.table);
  for (uint64_t r = 0; r < 3; r++) {
    const auto& record = *reinterpret_cast<const QuantizeRecord*>(table.address() + 8 * r * made.recordWords);
    const uint64_t first = r * maxIndex * blocksOfTeam;
    check(record.count == (r == 2 ? 2 : maxIndex), "a long row: indices");
    check(record.lastBlocks == (r == 2 ? 1 : blocksOfTeam), "a long row: blocks of the last index");
    check(record.plain == words[10] + first * 64 && record.data == words[11] + first * 32 &&
              record.scales == words[12] + first,
          "a long row: addresses");
  }
}

/** Several such rows: each is cut by itself, outside first, and the parts of all are there. */
void longRows() {
  constexpr uint64_t rows = 3, blocks = 1ull * maxIndex * blocksOfTeam + 33, elements = blocks * mxBlock;
  constexpr uint64_t plainRow = elements + 8 * mxBlock, scaleRow = blocks + 64;
  const uint64_t words[] = {0,          0,          static_cast<uint64_t>(DType::BFloat16),
                            2,          1,          mxBlock,
                            0,          0,          0,
                            0,          1ull << 50, 1ull << 54,
                            1ull << 56, 0,          0,
                            rows,       elements,   plainRow,
                            1,          plainRow,   1,
                            scaleRow,   1,          0,
                            0};
  auto compiled = compileQuantize(words, std::size(words));
  if (!check(compiled.ok(), "long rows: compiles; " + why(compiled))) return;
  const Reduction& made = compiled.value();
  check(made.records == 2 * rows, "long rows: two parts each");
  const Uploaded table(made.table);
  for (uint64_t r = 0; r < made.records; r++) {
    const auto& record = *reinterpret_cast<const QuantizeRecord*>(table.address() + 8 * r * made.recordWords);
    const uint64_t row = r / 2, first = r % 2 * maxIndex * blocksOfTeam;
    check(record.count == (r % 2 == 0 ? maxIndex : (33 + blocksOfTeam - 1) / blocksOfTeam), "long rows: indices");
    check(record.plain == words[10] + 2 * (row * plainRow + first * mxBlock) &&
              record.data == words[11] + row * plainRow + first * mxBlock &&
              record.scales == words[12] + row * scaleRow + first,
          "long rows: addresses");
  }
}

}  // namespace

void testBlockScaling() {
  for (uint64_t seed = 1; seed <= 3000; seed++) scalingOfRandomForm(seed);
  check(byTeams > 500 && byThreads > 500, "both ways are taken");
  longRow();
  longRows();
}

}  // namespace tensorferry::gpu::test
