// SPDX-License-Identifier: Apache-2.0
/*
 * Copies, fills and casts of random form against the naive reference, in memory that is compared whole: what nobody should
 * have written must be as before.
 */
#include <sys/mman.h>

#include <algorithm>

#include "support.h"

namespace tensorferry::gpu::test {
namespace {

constexpr DType movable[] = {DType::Bool,       DType::UInt8,      DType::Int16,      DType::BFloat16, DType::Float16,
                             DType::UInt32,     DType::Float32,    DType::Int64,      DType::Float64,  DType::Complex64,
                             DType::Float8E4M3, DType::Float8E5M2, DType::Float8E8M0, DType::UInt64};

/** Memory of the destinations, twice: for the kernels and for the reference. */
class Arena {
 public:
  Arena(Random& random, size_t length) : source(length), mine(length), theirs(length) {
    random.fill(source.data(), length);
    random.fill(mine.data(), length);
    theirs = mine;
  }
  int64_t shift() const { return static_cast<int64_t>(addressOf(theirs.data()) - addressOf(mine.data())); }

  std::vector<uint8_t> source, mine, theirs;
};

/** Steps of a layout without overlap: dimensions in random order, sometimes with gaps; the extent in bytes. */
uint64_t layOut(Random& random, const std::vector<uint64_t>& shape, uint64_t size, std::vector<int64_t>& steps,
                unsigned dense) {
  std::vector<size_t> order(shape.size());
  for (size_t i = 0; i < order.size(); i++) order[i] = i;
  if (!random.chance(dense))
    for (size_t i = order.size(); i > 1; i--) std::swap(order[i - 1], order[random.below(i)]);
  uint64_t step = size;
  steps.assign(shape.size(), 0);
  for (size_t i = order.size(); i > 0; i--) {
    const size_t d = order[i - 1];
    if (random.chance(15)) step += size * random.below(20);
    steps[d] = static_cast<int64_t>(step);
    step *= std::max<uint64_t>(shape[d], 1);
  }
  return step;
}

std::vector<uint64_t> randomShape(Random& random, uint64_t most) {
  constexpr uint64_t lengths[] = {1,  2,  3,  4,  5,   7,   8,   13,  16,   31,   32,
                                  33, 48, 64, 65, 127, 256, 384, 509, 1024, 2048, 4099};
  std::vector<uint64_t> shape(random.below(6));
  if (random.chance(3)) shape.resize(maxDimensions, 1);
  uint64_t elements = 1;
  for (auto& length : shape) {
    length = lengths[random.below(std::size(lengths))];
    if (shape.size() == maxDimensions) length = random.chance(80) ? 2 : 1;
    while (elements * length > most) length = length / 2;
    elements *= std::max<uint64_t>(length, 1);
  }
  if (!shape.empty() && random.chance(2)) shape[random.below(shape.size())] = 0;
  return shape;
}

void copiesOfRandomForm(uint64_t seed) {
  Random random(seed);
  Arena arena(random, 1 << 20);
  MoveList moves;
  std::vector<Move> naive;
  uint64_t used = random.below(300);
  const size_t count = 1 + random.below(40);
  uint64_t written = 0;
  for (size_t i = 0; i < count; i++) {
    const DType type = movable[random.below(std::size(movable))];
    const bool casts = random.chance(30) && isCastable(static_cast<uint8_t>(type));
    const DType sourceType = casts ? static_cast<DType>(random.below(castableCount)) : type;
    Move move = moveOf(type, sourceType, 0, 0);
    const auto shape = randomShape(random, random.chance(20) ? 60'000 : 3'000);
    std::vector<int64_t> steps, sourceSteps;
    const uint64_t extent = layOut(random, shape, move.destinationSize, steps, 70);
    const uint64_t sourceExtent = layOut(random, shape, move.sourceSize, sourceSteps, 60);
    if (!sourceSteps.empty() && random.chance(5)) sourceSteps[random.below(sourceSteps.size())] = 0;
    const uint64_t misaligned = random.chance(50) ? random.below(40) : 0;
    const uint64_t at = random.chance(50) ? (used + 15) / 16 * 16 + misaligned : used + misaligned;
    if (at + extent > arena.mine.size() || sourceExtent + 64 > arena.source.size()) continue;
    uint64_t from = random.below(arena.source.size() - sourceExtent);
    if (random.chance(60)) from = from / 16 * 16 + (random.chance(50) ? 0 : misaligned % 16);
    if (from + sourceExtent > arena.source.size()) continue;
    move.destination = addressOf(arena.mine.data()) + at;
    move.source = addressOf(arena.source.data()) + from;
    if (random.chance(10)) {
      move.kind = MoveKind::Fill;
      move.source = 0xabcd00 | random.below(256);
      move.sourceType = move.destinationType;
      move.sourceSize = move.destinationSize;
    }
    bool empty = false;
    for (size_t d = 0; d < shape.size(); d++) {
      empty = empty || shape[d] == 0;
      if (shape[d] != 1 || random.chance(10)) addDimension(move, shape[d], steps[d], sourceSteps[d]);
    }
    naive.push_back(move);
    if (!empty && random.chance(90)) {
      // As the parser does it.
      Move cleared = move;
      cleared.dimensionCount = 0;
      for (size_t d = 0; d < move.dimensionCount; d++)
        if (move.dimensions[d].length > 1) cleared.dimensions[cleared.dimensionCount++] = move.dimensions[d];
      normalise(cleared);
      move = cleared;
    }
    written += empty ? 0 : destinationBytes(move);
    moves.add(move);
    used = at + extent + random.below(3);
  }
  auto compiled = compileMoves(moves);
  const std::string what = "copies of seed " + std::to_string(seed);
  if (!check(compiled.ok(), what + ": compile; " + why(compiled))) return;
  check(compiled.value().bytesWritten == written, what + ": bytes written are counted");
  runMoves(moves, 1 + static_cast<unsigned>(random.below(7)), what);
  for (const Move& move : naive) moveNaively(move, arena.shift());
  const auto at = std::mismatch(arena.mine.begin(), arena.mine.end(), arena.theirs.begin());
  check(at.first == arena.mine.end(), what + ": differ at byte " + std::to_string(at.first - arena.mine.begin()));
}

/** Every way in which two sides can be misaligned, around the lengths where something ends. */
void runsOfEveryAlignment() {
  Random random(7);
  const uint64_t lengths[] = {0,  1,  2,   15,  16,  17,  31,   32,   33,   47,   63,
                              64, 65, 127, 511, 512, 513, 2049, 4095, 4096, 4097, 8209};
  for (const uint64_t length : lengths) {
    MoveList moves;
    Arena arena(random, 17 * 17 * (length + 48));
    std::vector<Move> naive;
    uint64_t at = 0;
    for (uint64_t to = 0; to < 17; to++) {
      for (uint64_t from = 0; from < 17; from++) {
        const uint64_t base = (addressOf(arena.mine.data()) + at + 15) / 16 * 16;
        const uint64_t source = (addressOf(arena.source.data()) + at + 15) / 16 * 16;
        Move move = runOf(base + to % 16, source + from % 16, length);
        if (to == 16) move.kind = MoveKind::Fill;
        moves.add(move);
        naive.push_back(move);
        at += length + 40;
      }
    }
    runMoves(moves, 3, "runs of " + std::to_string(length));
    for (const Move& move : naive) moveNaively(move, arena.shift());
    check(arena.mine == arena.theirs, "runs of " + std::to_string(length) + " bytes at every alignment");
  }
}

/** Rows and transpositions of shapes that models have, and some around them. */
void matrices() {
  Random random(9);
  struct Case {
    DType to, from;
    uint64_t rows, columns;
    int64_t gap, sourceGap;
    bool turns;
    uint64_t misaligned;
  };
  const Case cases[] = {
      {DType::UInt8, DType::UInt8, 97, 768, 768, 0, false, 0},
      {DType::UInt8, DType::UInt8, 97, 768, 768, 1, false, 3},
      {DType::UInt8, DType::UInt8, 13, 5000, 9, 3, false, 1},
      {DType::BFloat16, DType::BFloat16, 129, 24, 8, 16, false, 0},
      {DType::BFloat16, DType::BFloat16, 192, 160, 0, 0, true, 0},
      {DType::BFloat16, DType::BFloat16, 193, 161, 3, 5, true, 2},
      {DType::BFloat16, DType::BFloat16, 195, 163, 5, 5, true, 0},
      {DType::BFloat16, DType::BFloat16, 8, 8, 0, 0, true, 0},
      {DType::Float16, DType::Float16, 24, 16, 8, 0, true, 0},
      {DType::Float32, DType::Float32, 62, 33, 3, 2, true, 0},
      {DType::UInt32, DType::UInt32, 128, 64, 0, 0, true, 0},
      {DType::UInt8, DType::UInt8, 100, 70, 0, 0, true, 1},
      {DType::Float32, DType::Float32, 61, 31, 0, 7, true, 4},
      {DType::Float64, DType::Float64, 33, 65, 1, 0, true, 8},
      {DType::BFloat16, DType::Float32, 67, 129, 5, 3, false, 2},
      {DType::BFloat16, DType::Float32, 67, 128, 64, 64, false, 0},
      {DType::Float32, DType::BFloat16, 67, 130, 0, 0, true, 0},
      {DType::Float8E4M3, DType::BFloat16, 70, 97, 0, 0, true, 1},
      {DType::Float64, DType::UInt8, 31, 66, 2, 1, false, 0},
      {DType::UInt16, DType::Float64, 31, 67, 2, 1, false, 1},
      {DType::Float32, DType::Float32, 31, 2, 1, 0, true, 1},
      {DType::Int64, DType::Int64, 1021, 1, 1, 2, false, 4},
  };
  for (const Case& given : cases) {
    Arena arena(random, 1 << 20);
    Move move = moveOf(given.to, given.from, addressOf(arena.mine.data()) / 16 * 16 + 64 + given.misaligned,
                       addressOf(arena.source.data()) / 16 * 16 + 64 + given.misaligned);
    const auto size = static_cast<int64_t>(move.destinationSize), sourceSize = static_cast<int64_t>(move.sourceSize);
    const auto rows = static_cast<int64_t>(given.rows), columns = static_cast<int64_t>(given.columns);
    const int64_t sourceRow = given.turns ? sourceSize : (columns + given.sourceGap) * sourceSize;
    const int64_t sourceColumn = given.turns ? (rows + given.sourceGap) * sourceSize : sourceSize;
    addDimension(move, given.rows, (columns + given.gap) * size, sourceRow);
    addDimension(move, given.columns, size, sourceColumn);
    normalise(move);
    MoveList moves;
    moves.add(move);
    const std::string what = std::to_string(given.rows) + " x " + std::to_string(given.columns) + " of " +
                             dtypeNames[move.sourceType] + " to " + dtypeNames[move.destinationType];
    runMoves(moves, 2, what);
    moveNaively(move, arena.shift());
    check(arena.mine == arena.theirs, what);
  }
}

/** Stacks of matrices that are turned one by one, as experts are: squares are turned in registers. */
void stacks() {
  struct Case {
    DType type;
    uint64_t matrices, rows, columns;
    bool isTurned;
  };
  for (const Case& given : {Case{DType::BFloat16, 5, 72, 48, true}, Case{DType::BFloat16, 3, 75, 42, false},
                            Case{DType::Float32, 4, 20, 28, true}, Case{DType::UInt8, 3, 64, 64, false}}) {
    Random random(11);
    Arena arena(random, 1 << 18);
    Move move = moveOf(given.type, given.type, addressOf(arena.mine.data()) / 16 * 16 + 32,
                       addressOf(arena.source.data()) / 16 * 16 + 32);
    const auto size = static_cast<int64_t>(move.destinationSize);
    const auto rows = static_cast<int64_t>(given.rows), columns = static_cast<int64_t>(given.columns);
    addDimension(move, given.matrices, rows * columns * size, rows * columns * size);
    addDimension(move, given.rows, columns * size, size);
    addDimension(move, given.columns, size, rows * size);
    normalise(move);
    MoveList moves;
    moves.add(move);
    const std::string what = "a stack of " + std::to_string(given.rows) + " x " + std::to_string(given.columns);
    auto compiled = compileMoves(moves);
    if (!check(compiled.ok(), what + ": compile")) return;
    MoveRecord first;
    std::memcpy(&first, compiled.value().table.data(), sizeof first);
    check((first.path == Path::Turns) == given.isTurned, what + ": the path that it takes");
    runMoves(moves, 3, what);
    moveNaively(move, arena.shift());
    check(arena.mine == arena.theirs, what);
  }
}

void ontoItself() {
  Random random(3);
  std::vector<uint8_t> memory(40'000), before;
  random.fill(memory.data(), memory.size());
  before = memory;
  MoveList same;
  same.add(runOf(addressOf(memory.data()) + 1, addressOf(memory.data()) + 1, 39'000));
  auto compiled = compileMoves(same);
  check(compiled.ok() && compiled.value().unitCount == 0, "a copy onto itself is nothing to do");
  // A cast between types of one size may replace its source.
  const uint64_t at = (addressOf(memory.data()) + 15) / 16 * 16;
  Move move = moveOf(DType::BFloat16, DType::Float16, at, at);
  addDimension(move, 10'001, 2, 2);
  MoveList casts;
  casts.add(move);
  std::vector<uint16_t> expected(10'001);
  castNaively(move.destinationType, expected.data(), move.sourceType, reinterpret_cast<void*>(at), expected.size());
  runMoves(casts, 2, "a cast in place");
  check(std::memcmp(expected.data(), reinterpret_cast<void*>(at), 2 * expected.size()) == 0, "a cast in place");
}

}  // namespace

void testCopies() {
  for (uint64_t seed = 1; seed <= 150; seed++) copiesOfRandomForm(seed);
  runsOfEveryAlignment();
  matrices();
  stacks();
  ontoItself();
}

/** Regions of many GiB of which few pages are touched. */
void testLargeRegions() {
  constexpr size_t length = 14ull << 30;
  const auto reserve = [] {
    return static_cast<uint8_t*>(
        mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  };
  uint8_t *source = reserve(), *mine = reserve(), *theirs = reserve();
  if (!check(source != MAP_FAILED && mine != MAP_FAILED && theirs != MAP_FAILED, "address space is reserved")) return;
  struct Case {
    DType to, from;
    uint64_t rows, columns;
    int64_t rowStep, columnStep, sourceRowStep, sourceColumnStep;
  };
  const int64_t far = (3ll << 30) + 64;
  const Case cases[] = {
      {DType::UInt8, DType::UInt8, 4, 5000, far, 1, far + 1, 1},       // runs
      {DType::UInt8, DType::UInt8, 4, 48, far, 1, far, 1},             // pieces
      {DType::BFloat16, DType::BFloat16, 4, 40, far, 2, 2, far / 20},  // transposed
      {DType::BFloat16, DType::Float32, 4, 41, far, 2, far, 4},        // casts
      {DType::Float32, DType::BFloat16, 4, 20, far, far / 20, far, 2},
  };
  uint64_t at = 0;
  Random random(5);
  for (const Case& given : cases) {
    at += 8192;
    Move move = moveOf(given.to, given.from, addressOf(mine) + at, addressOf(source) + at);
    addDimension(move, given.rows, given.rowStep, given.sourceRowStep);
    addDimension(move, given.columns, given.columnStep, given.sourceColumnStep);
    for (uint64_t r = 0; r < given.rows; r++)
      for (uint64_t c = 0; c < given.columns; c++)
        random.fill(source + at + r * static_cast<uint64_t>(given.sourceRowStep) +
                        c * static_cast<uint64_t>(given.sourceColumnStep),
                    move.sourceSize);
    MoveList moves;
    moves.add(move);
    runMoves(moves, 2, "a region of 9 GiB");
    moveNaively(move, static_cast<int64_t>(addressOf(theirs) - addressOf(mine)));
    bool same = true;
    for (uint64_t r = 0; r < given.rows; r++)
      for (uint64_t c = 0; c < given.columns; c++) {
        const uint64_t offset =
            at + r * static_cast<uint64_t>(given.rowStep) + c * static_cast<uint64_t>(given.columnStep);
        same = same && std::memcmp(mine + offset, theirs + offset, move.destinationSize) == 0;
        if (given.columnStep == move.destinationSize) continue;
        same = same && mine[offset - 1] == 0 && mine[offset + move.destinationSize] == 0;
      }
    check(same,
          "a region of 9 GiB, " + std::string(dtypeNames[move.sourceType]) + " to " + dtypeNames[move.destinationType]);
  }
  munmap(source, length);
  munmap(mine, length);
  munmap(theirs, length);
}

}  // namespace tensorferry::gpu::test
