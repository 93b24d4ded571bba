// SPDX-License-Identifier: Apache-2.0
/*
 * Comparisons find every changed byte and the first one.
 */
#include <algorithm>

#include "support.h"

namespace tensorferry::gpu::test {

void testComparisons() {
  for (uint64_t seed = 1; seed <= 120; seed++) {
    Random random(seed);
    const auto type = seed % 3 == 0 ? DType::UInt8 : seed % 3 == 1 ? DType::BFloat16 : DType::Float32;
    const uint64_t size = dtypeBytes[static_cast<size_t>(type)];
    const uint64_t rows = 1 + random.below(40), columns = 1 + random.below(seed % 10 == 0 ? 30'000 : 600);
    const uint64_t gap = random.chance(50) ? 0 : random.below(9) * size,
                   sourceGap = random.chance(50) ? gap : random.below(3) * size;
    const uint64_t rowBytes = columns * size;
    std::vector<uint8_t> a(rows * (rowBytes + gap) + 16), b(rows * (rowBytes + sourceGap) + 16);
    random.fill(a.data(), a.size());
    random.fill(b.data(), b.size());
    const uint64_t misaligned = random.chance(50) ? 0 : random.below(16);
    for (uint64_t r = 0; r < rows; r++)
      std::memcpy(&b[misaligned + r * (rowBytes + sourceGap)], &a[misaligned + r * (rowBytes + gap)], rowBytes);
    Difference expected = noDifference;
    const size_t changes = random.chance(20) ? 0 : 1 + random.below(20);
    std::vector<uint64_t> changed;
    for (size_t i = 0; i < changes; i++) {
      const uint64_t at = random.below(rows * rowBytes);
      if (std::find(changed.begin(), changed.end(), at) != changed.end()) continue;
      changed.push_back(at);
      b[misaligned + at / rowBytes * (rowBytes + sourceGap) + at % rowBytes] ^=
          static_cast<uint8_t>(1 + random.below(255));
      expected.bytes++;
      expected.first = std::min(expected.first, at);
    }
    Move move = moveOf(type, type, addressOf(a.data()) + misaligned, addressOf(b.data()) + misaligned);
    if (rows > 1)
      addDimension(move, rows, static_cast<int64_t>(rowBytes + gap), static_cast<int64_t>(rowBytes + sourceGap));
    if (columns > 1) addDimension(move, columns, static_cast<int64_t>(size), static_cast<int64_t>(size));
    normalise(move);
    auto compiled = compileCompare(move);
    const std::string what = "comparison of seed " + std::to_string(seed);
    if (!check(compiled.ok(), what + ": compiles")) continue;
    const Uploaded table(compiled.value().table);
    alignas(16) Difference found = noDifference;
    const CompareParameter parameter = compareParameter(compiled.value(), table.address(), addressOf(&found));
    launch("tensorferry_compare", &parameter, sizeof parameter, 3);
    check(found.bytes == expected.bytes && found.first == expected.first,
          what + ": found " + std::to_string(found.bytes) + " from " + std::to_string(found.first) + ", not " +
              std::to_string(expected.bytes) + " from " + std::to_string(expected.first));
  }
}

}  // namespace tensorferry::gpu::test
