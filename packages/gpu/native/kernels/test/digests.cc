// SPDX-License-Identifier: Apache-2.0
/*
 * Digests are the sums that the algorithm states, whatever the runs, the addresses, the places in the whole and the number of
 * blocks, and a second launch gives them again.
 */
#include <tensorferry/digest.h>

#include "support.h"

namespace tensorferry::gpu::test {
namespace {

struct Halves {
  uint64_t of[digestHalves] = {};
};

void addNaively(Halves& sum, const uint8_t* bytes, uint64_t position, uint64_t length, uint64_t mask) {
  for (uint64_t i = 0; i < length; i++) {
    const uint64_t at = position + i, word = at / 4;
    const uint64_t value = (~uint64_t{bytes[i]} & mask) << (8 * (at % 4));
    for (uint32_t half = 0; half < digestHalves; half++)
      sum.of[half] += value * digestWordFactor(half, static_cast<uint32_t>(word % digestBlockWords)) *
                      digestBlockFactor(half, word / digestBlockWords);
  }
}

void testOne(uint64_t seed) {
  Random random(seed);
  const std::string what = "digest of seed " + std::to_string(seed);
  std::vector<uint8_t> memory(200'000);
  random.fill(memory.data(), memory.size());
  const uint64_t parts = 1 + random.below(4);
  std::vector<Halves> expected(parts);
  std::vector<uint64_t> words{parts, 0};
  for (uint64_t entry = 0; entry < 1 + random.below(5); entry++) {
    const uint64_t part = random.below(parts), size = uint64_t{1} << random.below(5);
    const uint64_t rows = 1 + random.below(9), columns = random.below(random.chance(50) ? 20 : 3000 / size);
    const uint64_t mask = random.chance(80) ? 0xff : random.below(256);
    const uint64_t first = random.chance(50) ? 16 * random.below(10) : random.below(64);
    const uint64_t position = (random.chance(50) ? 512 : 1) * random.below(1000) + (seed % 7 == 0 ? 1ull << 40 : 0);
    const uint64_t step = random.chance(70) ? size : size * (1 + random.below(3));
    const uint64_t rowStep = step * columns + (random.chance(50) ? 0 : random.below(40));
    const uint64_t rowPosition = size * columns + (random.chance(50) ? 0 : 512 * random.below(3) + random.below(2));
    words[1]++;
    const uint64_t more[] = {part, addressOf(memory.data()) + first, position, size, mask, 2};
    words.insert(words.end(), std::begin(more), std::end(more));
    const uint64_t dimensions[] = {rows, columns, rowStep, step, rowPosition, size};
    words.insert(words.end(), std::begin(dimensions), std::end(dimensions));
    for (uint64_t row = 0; row < rows; row++)
      for (uint64_t column = 0; column < columns; column++)
        addNaively(expected[part], memory.data() + first + row * rowStep + column * step,
                   position + row * rowPosition + column * size, size, mask);
  }
  auto compiled = compileDigest(words.data(), words.size());
  if (!check(compiled.ok(), what + ": compiles; " + why(compiled))) return;
  const DigestWork& work = compiled.value();
  const Uploaded table(work.table);
  for (int time = 0; time < 2; time++) {
    for (const DigestStep step : {DigestStep::Clear, DigestStep::Sum}) {
      const DigestParameter parameter = digestParameter(work, step, table.address());
      const auto blocks = static_cast<unsigned>(random.below(3));
      launch("tensorferry_digest", &parameter, sizeof parameter, blocks == 0 ? usefulBlocks(parameter) : blocks,
             digestThreads);
    }
    const auto* found = reinterpret_cast<const uint64_t*>(table.address()) + work.resultsAt;
    check(std::memcmp(found, expected.data(), parts * sizeof(Halves)) == 0, what + ": the sums");
  }
}

}  // namespace

void testDigests() {
  for (uint64_t seed = 1; seed <= 150; seed++) testOne(seed);
  const auto refuses = [](std::vector<uint64_t> words, const char* what) {
    check(!compileDigest(words.data(), words.size()).ok(), std::string("digests: refuses ") + what);
  };
  refuses({1}, "a short table");
  refuses({1, 1, 0, 64, 0, 2}, "a table that ends inside a part");
  refuses({1, 1, 1, 64, 0, 2, 255, 0}, "a part that is none");
  refuses({1, 1, 0, 64, 0, 0, 255, 0}, "elements of no bytes");
  refuses({1, 1, 0, 64, 0, 2, 256, 0}, "a mask of more than a byte");
  refuses({1, 1, 0, 64, 0, 2, 255, 1, 1ull << 60, 2, 2}, "lengths of no memory");
  refuses({1, 1, 0, 64, 0, 2, 255, 1, 4, 1ull << 60, 2}, "steps of no memory");
  refuses({1, 1, 0, 64, 0, 2, 255, 0, 7}, "a table that goes on");
}

}  // namespace tensorferry::gpu::test
