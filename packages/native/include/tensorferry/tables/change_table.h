// SPDX-License-Identifier: Apache-2.0
/*
 * A search for changed elements, or their writing, as data: the binary form in which it crosses from TypeScript
 * (ChangeTable.ts says what the words are), checked and with as few dimensions as the views allow.
 *
 * Invariant: a parsed table has been checked for form; that its addresses are valid is the caller's promise. Dimensions keep
 * their order, since positions are counted in it. Any thread.
 */
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "../dtype.h"
#include "../status.h"

namespace tensorferry {

/** Elements that are compared at most: positions have 32 bits. */
inline constexpr uint64_t changeLimit = 1ull << 32;

/** The base of a search, or the destination of a writing; and the current tensor. */
enum ChangeSide : size_t { BaseSide, CurrentSide, changeSides };

struct ChangeDimension {
  uint64_t length;
  /** Bytes between neighbours, per side. */
  std::array<int64_t, changeSides> steps;
};

struct ChangeTable {
  bool isWriting;
  uint8_t size;
  /** Changes that there is room for, or that are written. */
  uint64_t room;
  std::array<uint64_t, changeSides> addresses;
  uint64_t positions, values;
  uint64_t elements = 1;
  /** Outermost first, none of length 1, none that is a dense neighbour of the next. */
  std::vector<ChangeDimension> dimensions;

  /** Whether the elements of a side follow one another. */
  bool isDense(ChangeSide side) const noexcept {
    return dimensions.empty() || (dimensions.size() == 1 && dimensions[0].steps[side] == size);
  }
  /** Bytes from the first element of a side to the one at a position. */
  uint64_t offsetOf(ChangeSide side, uint64_t position) const noexcept {
    uint64_t offset = 0;
    for (size_t d = dimensions.size(); d > 0; d--) {
      const ChangeDimension& dimension = dimensions[d - 1];
      const uint64_t at = d == 1 ? position : position % dimension.length;
      offset += at * static_cast<uint64_t>(dimension.steps[side]);
      position /= dimension.length;
    }
    return offset;
  }
};

inline Result<ChangeTable> readChangeTable(const uint64_t* words, size_t count) {
  constexpr size_t headWords = 8;
  const auto refuse = [](const char* detail) { return failure(Code::InvalidArgument, "changes", detail); };
  if (count < headWords) return refuse("The table is too short.");
  const uint64_t op = words[0], type = words[1], dimensions = words[2];
  if (op > 1) return refuse("Unknown operation.");
  if (type >= dtypeCount || dtypeBytes[type] == 0) return refuse("Elements of this type are not whole bytes.");
  if (dimensions > 255 || count != headWords + 3 * dimensions) return refuse("The table has the wrong length.");
  ChangeTable table{op == 1, dtypeBytes[type], words[3], {words[4], words[5]}, words[6], words[7], 1, {}};
  if (table.room > changeLimit) return refuse("There are at most 2^32 changes.");
  const uint64_t* shape = words + headWords;
  for (size_t d = 0; d < dimensions; d++) {
    if (__builtin_mul_overflow(table.elements, shape[d], &table.elements) || table.elements > changeLimit)
      return refuse("The tensors have more than 2^32 elements.");
    if (shape[d] == 1) continue;
    ChangeDimension made{shape[d], {}};
    for (size_t side = 0; side < changeSides; side++) {
      const uint64_t stride = shape[dimensions * (1 + side) + d];
      if (stride > (1ull << 48)) return refuse("A stride is too long.");
      made.steps[side] = static_cast<int64_t>(stride * table.size);
    }
    bool merges = !table.dimensions.empty();
    for (size_t side = 0; side < changeSides && merges; side++)
      merges = table.dimensions.back().steps[side] == made.steps[side] * static_cast<int64_t>(made.length);
    if (merges) made.length *= table.dimensions.back().length;
    if (merges) table.dimensions.back() = made;
    else table.dimensions.push_back(made);
  }
  if (table.elements == 0) table.dimensions.clear();
  return table;
}

}  // namespace tensorferry
