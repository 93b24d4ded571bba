// SPDX-License-Identifier: Apache-2.0
/*
 * Products are added as a naive program adds them, whatever the shapes, the strides and the number of blocks.
 */
#include <tensorferry/elements.h>
#include <tensorferry/tables/product_table.h>

#include "support.h"

namespace tensorferry::gpu::test {
namespace {

constexpr DType types[] = {DType::BFloat16, DType::Float16, DType::Float32};

struct Matrix {
  DType type;
  std::vector<uint8_t> memory;
  uint64_t first, down, across;

  uint64_t address() const { return addressOf(memory.data()) + first; }
  uint64_t size() const { return dtypeBytes[static_cast<size_t>(type)]; }
  uint64_t placeOf(uint64_t row, uint64_t column) const { return first + (row * down + column * across) * size(); }
  float value(uint64_t row, uint64_t column) const {
    float made = 0;
    castNaively(static_cast<uint8_t>(DType::Float32), &made, static_cast<uint8_t>(type),
                memory.data() + placeOf(row, column), 1);
    return made;
  }
  void set(uint64_t row, uint64_t column, float value) {
    castNaively(static_cast<uint8_t>(type), memory.data() + placeOf(row, column), static_cast<uint8_t>(DType::Float32),
                &value, 1);
  }
};

/** Numbers over a few powers of two, from any byte on, in either order and with gaps. */
Matrix makeMatrix(Random& random, DType type, uint64_t rows, uint64_t columns) {
  Matrix made{type, {}, random.chance(50) ? 0 : random.below(17), 0, 0};
  const bool isTurned = random.chance(30);
  const uint64_t gap = random.chance(60) ? 0 : random.below(4), step = random.chance(80) ? 1 : 2;
  made.across = isTurned ? (rows * step + gap) : step;
  made.down = isTurned ? step : (columns * step + gap);
  made.memory.resize((rows * made.down + columns * made.across + 1) * made.size() + 32);
  random.fill(made.memory.data(), made.memory.size());
  for (uint64_t row = 0; row < rows; row++)
    for (uint64_t column = 0; column < columns; column++)
      made.set(row, column,
               (static_cast<float>(random.below(4097)) - 2048.0f) / static_cast<float>(1u << random.below(12)));
  return made;
}

void testOne(uint64_t seed) {
  Random random(seed);
  const std::string what = "product of seed " + std::to_string(seed);
  const DType type = types[seed % 3], factor = types[seed / 3 % 3];
  const uint64_t rows = 1 + random.below(90), columns = 1 + random.below(150), rank = random.below(40);
  Matrix destination = makeMatrix(random, type, rows, columns);
  const Matrix base = makeMatrix(random, type, rows, columns), b = makeMatrix(random, factor, rows, rank),
               a = makeMatrix(random, factor, rank, columns);
  const float scale = static_cast<float>(random.below(100)) / 37.0f;
  uint32_t bits;
  std::memcpy(&bits, &scale, sizeof bits);
  Matrix expected = destination;
  for (uint64_t row = 0; row < rows; row++) {
    for (uint64_t column = 0; column < columns; column++) {
      double sum = 0;
      for (uint64_t r = 0; r < rank; r++)
        sum += static_cast<double>(b.value(row, r)) * static_cast<double>(a.value(r, column));
      const float scaled = static_cast<float>(sum) * scale;
      expected.set(row, column, base.value(row, column) + scaled);
    }
  }
  const std::vector<uint64_t> words{static_cast<uint64_t>(type),
                                    static_cast<uint64_t>(factor),
                                    rows,
                                    columns,
                                    rank,
                                    bits,
                                    destination.address(),
                                    base.address(),
                                    b.address(),
                                    a.address(),
                                    destination.down,
                                    destination.across,
                                    base.down,
                                    base.across,
                                    b.down,
                                    b.across,
                                    a.down,
                                    a.across};
  auto compiled = compileProduct(words.data(), words.size());
  if (!check(compiled.ok(), what + ": compiles; " + why(compiled))) return;
  const ProductParameter parameter = compiled.value().parameter;
  const unsigned blocks = static_cast<unsigned>(random.below(3));
  launch("tensorferry_products", &parameter, sizeof parameter, blocks == 0 ? compiled.value().usefulBlocks : blocks,
         productThreads);
  check(destination.memory == expected.memory, what + ": the sum, and no byte beside it");
}

}  // namespace

void testProducts() {
  for (uint64_t seed = 1; seed <= 150; seed++) testOne(seed);
  const uint64_t integers[18] = {static_cast<uint64_t>(DType::Int32), static_cast<uint64_t>(DType::Float32), 1, 1, 1};
  check(!compileProduct(integers, 18).ok(), "products: refuses integers");
  check(!compileProduct(integers, 17).ok(), "products: refuses a short table");
  const uint64_t large[18] = {static_cast<uint64_t>(DType::Float32), static_cast<uint64_t>(DType::Float32), 1ull << 40,
                              1};
  check(!compileProduct(large, 18).ok(), "products: refuses lengths of no memory");
}

}  // namespace tensorferry::gpu::test
