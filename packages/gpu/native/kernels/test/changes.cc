// SPDX-License-Identifier: Apache-2.0
/*
 * Searches find every changed element in order, whatever the form of the tensors and the number of blocks; writings write
 * what was found, or nothing.
 */
#include <algorithm>
#include <numeric>

#include <tensorferry/tables/change_table.h>

#include "support.h"

namespace tensorferry::gpu::test {
namespace {

struct Side {
  std::vector<uint8_t> memory;
  uint64_t first;
  std::vector<uint64_t> strides;

  uint64_t address() const { return addressOf(memory.data()) + first; }
};

/** A tensor whose dimensions lie in any order, with gaps, from any byte on. */
Side makeSide(Random& random, const std::vector<uint64_t>& shape, uint64_t size) {
  Side side;
  side.strides.resize(shape.size());
  std::vector<size_t> order(shape.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const bool isDense = random.chance(50);
  for (size_t i = order.size(); i > 1 && !isDense; i--) std::swap(order[i - 1], order[random.below(i)]);
  uint64_t step = 1;
  for (size_t i = order.size(); i > 0; i--) {
    side.strides[order[i - 1]] = step;
    step *= shape[order[i - 1]] + (isDense || random.chance(60) ? 0 : random.below(4));
  }
  side.first = random.chance(50) ? 0 : random.below(17);
  side.memory.resize((step + 1) * size + 64);
  random.fill(side.memory.data(), side.memory.size());
  // Vectors have an even address to begin at.
  side.first += (16 - addressOf(side.memory.data()) % 16) % 16;
  return side;
}

uint64_t offsetOf(const Side& side, const std::vector<uint64_t>& shape, uint64_t size, uint64_t position) {
  uint64_t offset = 0;
  for (size_t d = shape.size(); d > 0; d--) {
    offset += position % shape[d - 1] * side.strides[d - 1] * size;
    position /= shape[d - 1];
  }
  return offset;
}

uint8_t* elementOf(Side& side, const std::vector<uint64_t>& shape, uint64_t size, uint64_t position) {
  return side.memory.data() + side.first + offsetOf(side, shape, size, position);
}

struct Lists {
  std::vector<uint8_t> positions, values;
  uint64_t first;
};

/** Runs all launches; the result. */
uint64_t runChanges(std::vector<uint64_t> words, unsigned blocks, uint64_t segmentTiles, const std::string& what) {
  auto compiled = compileChanges(words.data(), words.size(), segmentTiles);
  if (!check(compiled.ok(), what + ": compiles; " + why(compiled))) return 0;
  const ChangeWork& work = compiled.value();
  const Uploaded table(work.table);
  // What was there before does not matter.
  const Uploaded scratch(std::vector<uint64_t>(work.scratchBytes / 8 + 1, 0xa5a5a5a5a5a5a5a5ull));
  for (const ChangeLaunch& one : work.launches) {
    const ChangeParameter parameter = changeParameter(work, one, table.address(), scratch.address());
    launch("tensorferry_changes", &parameter, sizeof parameter, blocks == 0 ? one.usefulBlocks : blocks);
  }
  uint64_t result;
  std::memcpy(&result, reinterpret_cast<const void*>(changeResult(work, table.address())), sizeof result);
  return result;
}

std::vector<uint64_t> wordsOf(uint64_t op, DType type, const std::vector<uint64_t>& shape, uint64_t room,
                              const Side& first, const Side* second, const Lists& lists) {
  std::vector<uint64_t> words{op,
                              static_cast<uint64_t>(type),
                              shape.size(),
                              room,
                              first.address(),
                              second == nullptr ? 0 : second->address(),
                              addressOf(lists.positions.data()) + lists.first,
                              addressOf(lists.values.data()) + lists.first};
  words.insert(words.end(), shape.begin(), shape.end());
  words.insert(words.end(), first.strides.begin(), first.strides.end());
  const std::vector<uint64_t> none(shape.size());
  const auto& strides = second == nullptr ? none : second->strides;
  words.insert(words.end(), strides.begin(), strides.end());
  return words;
}

void testOne(uint64_t seed) {
  Random random(seed);
  const std::string what = "changes of seed " + std::to_string(seed);
  constexpr DType types[] = {DType::UInt8, DType::BFloat16, DType::Float32, DType::Complex64};
  const DType type = types[seed % 4];
  const uint64_t size = dtypeBytes[static_cast<size_t>(type)];
  std::vector<uint64_t> shape;
  for (uint64_t dimensions = random.below(4); shape.size() < dimensions;)
    shape.push_back(1 + random.below(dimensions == 1 ? 30'000 : dimensions == 2 ? 150 : 30));
  uint64_t elements = 1;
  for (const uint64_t length : shape) elements *= length;
  Side base = makeSide(random, shape, size), current = makeSide(random, shape, size);
  const unsigned percent = seed % 7 == 0 ? 100 : static_cast<unsigned>(random.below(30));
  std::vector<uint32_t> expected;
  for (uint64_t at = 0; at < elements; at++) {
    uint8_t* to = elementOf(current, shape, size, at);
    std::memcpy(to, elementOf(base, shape, size, at), size);
    if (!random.chance(percent)) continue;
    to[random.below(size)] ^= static_cast<uint8_t>(1 + random.below(255));
    expected.push_back(static_cast<uint32_t>(at));
  }
  const uint64_t room = random.chance(30) ? random.below(expected.size() + 1) : expected.size() + random.below(5);
  Lists lists{std::vector<uint8_t>(room * 4 + 32, 0x5a), std::vector<uint8_t>(room * size + 32, 0x5a),
              random.chance(60) ? 8 : random.below(16)};
  const unsigned blocks = static_cast<unsigned>(random.below(4));
  const uint64_t found = runChanges(wordsOf(0, type, shape, room, base, &current, lists), blocks, groupTiles, what);
  check(found == expected.size(),
        what + ": found " + std::to_string(found) + ", not " + std::to_string(expected.size()));
  const uint64_t kept = std::min<uint64_t>(room, expected.size());
  std::vector<uint8_t> positions(lists.positions.size(), 0x5a), values(lists.values.size(), 0x5a);
  if (kept > 0) std::memcpy(positions.data() + lists.first, expected.data(), 4 * kept);
  for (uint64_t i = 0; i < kept; i++)
    std::memcpy(values.data() + lists.first + i * size, elementOf(current, shape, size, expected[i]), size);
  check(lists.positions == positions, what + ": positions, and no byte beside them");
  check(lists.values == values, what + ": values, and no byte beside them");

  const std::vector<uint8_t> before = base.memory;
  if (kept > 0) {
    // A position that cannot be taken, anywhere.
    Lists wrong = lists;
    const uint64_t at = random.below(kept);
    const uint32_t outside = random.chance(50) || at == 0 ? static_cast<uint32_t>(elements) : expected[at - 1];
    std::memcpy(wrong.positions.data() + wrong.first + 4 * at, &outside, sizeof outside);
    const uint64_t refused = runChanges(wordsOf(1, type, shape, kept, base, nullptr, wrong), blocks, groupTiles, what);
    check(refused == at, what + ": names " + std::to_string(refused) + ", not " + std::to_string(at));
    check(base.memory == before, what + ": writes nothing where a position is wrong");
  }
  const uint64_t written = runChanges(wordsOf(1, type, shape, kept, base, nullptr, lists), blocks, groupTiles, what);
  check(written == allAscend, what + ": takes the positions");
  std::vector<uint8_t> after = before;
  for (uint64_t i = 0; i < kept; i++) {
    const uint64_t offset = base.first + offsetOf(base, shape, size, expected[i]);
    std::memcpy(after.data() + offset, elementOf(current, shape, size, expected[i]), size);
  }
  check(base.memory == after, what + ": writes these elements and no others");
}

/** More tiles than a segment has, and more segments than one. */
void testSegments() {
  constexpr uint64_t elements = 2 * groupTiles * tileElements + 12'345;
  Side base{std::vector<uint8_t>(elements + 16), 0, {1}}, current;
  base.first = (16 - addressOf(base.memory.data()) % 16) % 16;
  current = base;
  current.first = (16 - addressOf(current.memory.data()) % 16) % 16;
  std::vector<uint32_t> expected;
  for (uint64_t at = 5; at < elements; at += 1 + at % 9'973) {
    current.memory[current.first + at] ^= 1;
    expected.push_back(static_cast<uint32_t>(at));
  }
  Lists lists{std::vector<uint8_t>(4 * expected.size()), std::vector<uint8_t>(expected.size()), 0};
  const auto words = wordsOf(0, DType::UInt8, {elements}, expected.size(), base, &current, lists);
  const uint64_t found = runChanges(words, 0, groupTiles, "segments");
  check(found == expected.size(),
        "segments: found " + std::to_string(found) + ", not " + std::to_string(expected.size()));
  check(std::memcmp(lists.positions.data(), expected.data(), 4 * expected.size()) == 0, "segments: positions");
}

void testRefusals() {
  const auto refuses = [](std::vector<uint64_t> words, const std::string& what) {
    check(!compileChanges(words.data(), words.size()).ok(), "changes: refuses " + what);
  };
  const auto type = static_cast<uint64_t>(DType::UInt8);
  refuses({0, type, 1}, "a short table");
  refuses({2, type, 1, 0, 1, 1, 1, 1, 5, 1, 1}, "an unknown operation");
  refuses({0, static_cast<uint64_t>(DType::Float4E2M1), 1, 0, 1, 1, 1, 1, 5, 1, 1}, "elements that share bytes");
  refuses({0, 99, 1, 0, 1, 1, 1, 1, 5, 1, 1}, "an unknown type");
  refuses({0, type, 2, 0, 1, 1, 1, 1, 5, 1, 1}, "a table of another length");
  refuses({0, type, 1, 0, 1, 1, 1, 1, changeLimit + 1, 1, 1}, "too many elements");
  refuses({0, type, 1, 0, 1, 1, 1, 1, 5, 1ull << 60, 1}, "a stride of no memory");
  refuses({0, type, 1, changeLimit + 1, 1, 1, 1, 1, 5, 1, 1}, "room for more than there can be");
}

}  // namespace

void testChanges() {
  for (uint64_t seed = 1; seed <= 200; seed++) testOne(seed);
  testSegments();
  testRefusals();
}

}  // namespace tensorferry::gpu::test
