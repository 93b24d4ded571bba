// SPDX-License-Identifier: Apache-2.0
/*
 * Tables: every index is covered once, tables are small, and what cannot be compiled is refused.
 */
#include <chrono>

#include "grid.h"
#include "support.h"

namespace tensorferry::gpu::test {
namespace {

void divisors() {
  Random random(11);
  bool right = true;
  const auto probe = [&](uint32_t number) {
    const Divisor divisor = divisorOf(number);
    for (int i = 0; i < 200; i++) {
      uint64_t n = i < 100 ? random.below(2ull * maxIndex)
                           : random.below(2ull * maxIndex / number + 1) * number + random.below(3) - 1;
      n = std::min<uint64_t>(n, 2ull * maxIndex - 1);
      const auto high = static_cast<uint32_t>(n * divisor.multiplier >> 32);
      const uint32_t sum = high + static_cast<uint32_t>(n);
      right = right && sum >= high && sum >> divisor.shift == n / number;
    }
  };
  for (uint32_t number = 1; number < 3000; number++) probe(number);
  for (int i = 0; i < 3000; i++) probe(1 + static_cast<uint32_t>(random.below(maxIndex)));
  for (uint32_t shift = 1; shift <= 30; shift++) {
    probe(1u << shift);
    probe((1u << shift) - 1);
    if (shift < 30) probe((1u << shift) + 1);
  }
  check(right, "divisors divide");
}

struct Totals {
  uint64_t indices = 0, records = 0;
  uint32_t longest = 0;
};

/** Looks whether units cover each record once and in order. */
Totals totalsOf(const Batch& batch, const std::string& what) {
  Totals totals;
  uint64_t next = 0;
  uint32_t record = ~0u;
  bool ordered = true;
  for (uint32_t u = 0; u < batch.unitCount; u++) {
    UnitRecord unit;
    std::memcpy(&unit, batch.table.data() + batch.unitsAt + 2 * u, sizeof unit);
    if (unit.record != record) {
      next = 0;
      record = unit.record;
      totals.records += unit.records;
      MoveRecord move;
      std::memcpy(&move, batch.table.data() + record, sizeof move);
      for (uint32_t d = 0; d < move.dimensionCount; d++) {
        DimensionRecord dimension;
        std::memcpy(&dimension, batch.table.data() + record + 5 + 4 * d, sizeof dimension);
        totals.longest = std::max(totals.longest, dimension.length);
      }
    }
    ordered = ordered && unit.begin == next && unit.count > 0 && (unit.records == 1 || unit.begin == 0);
    next += unit.count;
    ordered = ordered && next <= maxIndex;
    totals.indices += unit.count;
  }
  check(ordered, what + ": units follow one another");
  return totals;
}

Batch compiled(const Move& move, const std::string& what) {
  MoveList moves;
  moves.add(move);
  auto batch = compileMoves(moves);
  check(batch.ok(), what + ": compiles; " + why(batch));
  return batch.ok() ? batch.value() : Batch{};
}

void largeMoves() {
  const uint64_t base = 1ull << 40;
  Move strided = moveOf(DType::UInt8, DType::UInt8, base, base + (1ull << 45));
  addDimension(strided, (1ull << 31) + 5, 3, 2);
  Totals totals = totalsOf(compiled(strided, "2^31 bytes apart"), "2^31 bytes apart");
  check(totals.indices == (1ull << 31) + 5 && totals.longest <= maxIndex, "2^31 bytes apart: all are there");

  Move deep = moveOf(DType::UInt8, DType::UInt8, base, base + (1ull << 45));
  addDimension(deep, 3, 1ll << 36, 1ll << 36);
  addDimension(deep, (1ull << 30) + 1, 5, 7);
  addDimension(deep, 3, 1, 2);
  totals = totalsOf(compiled(deep, "three dimensions"), "three dimensions");
  check(totals.indices == 9 * ((1ull << 30) + 1) && totals.longest <= maxIndex, "three dimensions: all are there");

  const Batch run = compiled(runOf(base, base + (1ull << 45), 100ull << 30), "100 GiB");
  totals = totalsOf(run, "100 GiB");
  check(totals.records == 1 && run.unitCount == 100 * 16384, "100 GiB in units of 64 KiB");
  check(run.table.size() * 8 <= run.unitCount * 16ull + 64, "16 bytes per unit");
  check(run.bytesRead == 100ull << 30 && run.bytesWritten == 100ull << 30, "100 GiB are counted");

  Move cast = moveOf(DType::BFloat16, DType::Float32, base, base + (1ull << 45));
  addDimension(cast, (1ull << 33) + 3, 2, 4);
  totals = totalsOf(compiled(cast, "a long cast"), "a long cast");
  check(totals.indices == (1ull << 31) + 3, "a long cast: groups and what is left");
}

void manySmallMoves() {
  MoveList moves;
  for (uint64_t i = 0; i < 20'000; i++) moves.add(runOf((1ull << 40) + i * 8192, (1ull << 41) + i * 4096, 4096));
  double best = 1e9;
  Batch batch;
  for (int i = 0; i < 5; i++) {
    const auto begin = std::chrono::steady_clock::now();
    auto made = compileMoves(moves);
    best = std::min(best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
    if (check(made.ok(), "20,000 moves compile")) batch = made.value();
  }
  check(batch.unitCount == 20'000 / 16, "sixteen moves of 4 KiB share a unit");
  check(batch.table.size() * 8 < 20'000 * 48, "a small move takes less than 48 bytes");
  std::printf("20,000 moves of 4 KiB compile in %.2f ms, %zu KiB\n", best, batch.table.size() * 8 / 1024);
}

void refusals() {
  const uint64_t base = 1ull << 40;
  const auto refused = [](const Move& move, const char* what) {
    MoveList moves;
    moves.add(runOf(1, 2, 3));
    moves.add(move);
    auto made = compileMoves(moves);
    check(!made.ok() && made.status().code == Code::InvalidArgument && made.status().item == 7,
          std::string("refused: ") + what);
  };
  Move move = runOf(base, base + 4096, 100);
  move.index = 7;
  Move wrong = move;
  wrong.dimensions[0].destinationStep = -1;
  refused(wrong, "a negative step");
  wrong = move;
  wrong.pid = 4;
  refused(wrong, "another process");
  wrong = move;
  wrong.destination = ~0ull - 50;
  refused(wrong, "beyond the address space");
  wrong = move;
  wrong.dimensions[0].length = ~0ull;
  refused(wrong, "more bytes than there are");
  wrong = move;
  wrong.dimensions[0].length = 1ull << 47;
  refused(wrong, "more units than a table holds");
  wrong = move;
  wrong.dimensions[0] = {1ull << 40, 1ll << 40, 1};
  refused(wrong, "an extent that wraps");
  wrong = move;
  wrong.destinationType = static_cast<uint8_t>(DType::Complex64);
  wrong.destinationSize = 8;
  refused(wrong, "a cast that does not exist");
  wrong = move;
  wrong.sourceSize = 2;
  refused(wrong, "a size that is not the type's");
  auto compared = compileCompare(moveOf(DType::UInt8, DType::Int8, base, base));
  check(!compared.ok(), "refused: a comparison of different types");
  for (size_t words = 0; words < 12; words++) {
    const std::vector<uint64_t> table(words, 1);
    auto made = compileReduce(table.data(), table.size());
    check(made.ok() == (words == 9), "a reduction of " + std::to_string(words) + " words");
  }
}

void runs() {
  const auto run = byteRunOf(runOf(10, 20, 30));
  check(run && run->destination == 10 && run->source == 20 && run->bytes == 30, "a run is one");
  Move rows = runOf(10, 20, 30);
  addDimension(rows, 2, 40, 40);
  check(!byteRunOf(rows), "rows are no run");
  check(!byteRunOf(moveOf(DType::Float32, DType::BFloat16, 0, 0)), "a cast is no run");
  Move fill = runOf(10, 20, 30);
  fill.kind = MoveKind::Fill;
  check(!byteRunOf(fill), "a fill is no run");
  check(byteRunOf(moveOf(DType::Float32, DType::Float32, 4, 8)).has_value(), "an element is a run");
  const SpinParameter parameter{1'000'000'000'000, 0};
  launch("tensorferry_spin", &parameter, sizeof parameter, 1, 1);
}

}  // namespace

void testBatches() {
  divisors();
  largeMoves();
  manySmallMoves();
  refusals();
  runs();
}

}  // namespace tensorferry::gpu::test
