// SPDX-License-Identifier: Apache-2.0
/*
 * Parts to digest, as data: the binary form in which they cross from TypeScript (DigestTable.ts says what the words are),
 * checked and with as few dimensions as the views allow.
 *
 * Invariant: a parsed table has been checked for form; that its addresses are valid is the caller's promise. Any thread.
 */
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "../status.h"

namespace tensorferry {

/** Bytes between neighbours, where they lie and where they stand in the whole. */
struct DigestDimension {
  uint64_t length, step, positionStep;
};

/** Bytes that follow one another on both sides, and the dimensions over them. */
struct DigestEntry {
  /** Number of the part that it belongs to. */
  uint32_t part;
  /** Bits of each byte that count. */
  uint8_t mask;
  uint64_t address, position;
  /** Bytes of a run; not 0. */
  uint64_t run;
  /** Number of runs: the product of the lengths; not 0. */
  uint64_t runs = 1;
  /** Outermost first, none of length 1, none that two others could be one of. */
  std::vector<DigestDimension> dimensions;
};

struct DigestTable {
  uint32_t parts = 0;
  /** Without those of no elements. */
  std::vector<DigestEntry> entries;
};

inline Result<DigestTable> readDigestTable(const uint64_t* words, size_t count) {
  constexpr size_t headWords = 2, entryWords = 6, dimensionWords = 3, mostDimensions = 255;
  constexpr uint64_t mostParts = 1ull << 24, mostBytes = 1ull << 50, longest = 1ull << 53;
  const auto refuse = [](const char* detail) { return failure(Code::InvalidArgument, "digest", detail); };
  if (count < headWords) return refuse("The table is too short.");
  if (words[0] > mostParts || words[1] > 2 * mostParts) return refuse("There are too many parts.");
  DigestTable table;
  table.parts = static_cast<uint32_t>(words[0]);
  size_t at = headWords;
  for (uint64_t entry = 0; entry < words[1]; entry++) {
    if (count - at < entryWords) return refuse("The table ends inside a part.");
    const uint64_t size = words[at + 3], mask = words[at + 4], dimensions = words[at + 5];
    if (words[at] >= table.parts) return refuse("There is no such part.");
    if (mask > 0xff) return refuse("A mask is one of a byte.");
    if (size == 0 || size > 16) return refuse("Elements have 1 to 16 bytes.");
    if (words[at + 2] > longest) return refuse("A part begins beyond any whole.");
    if (dimensions > mostDimensions || count - at - entryWords < dimensionWords * dimensions)
      return refuse("The table ends inside a part.");
    DigestEntry made{
        static_cast<uint32_t>(words[at]), static_cast<uint8_t>(mask), words[at + 1], words[at + 2], size, 1, {}};
    const uint64_t* shape = words + at + entryWords;
    at += entryWords + dimensionWords * dimensions;
    uint64_t bytes = size;
    for (size_t d = 0; d < dimensions; d++) {
      const uint64_t length = shape[d], step = shape[dimensions + d], positionStep = shape[2 * dimensions + d];
      if (__builtin_mul_overflow(bytes, length, &bytes) || bytes > mostBytes) return refuse("A part is too large.");
      if (length <= 1) continue;
      if (step > longest / length || positionStep > longest / length) return refuse("A step is too long.");
      auto& all = made.dimensions;
      const bool merges =
          !all.empty() && all.back().step == step * length && all.back().positionStep == positionStep * length;
      if (merges) all.back() = {all.back().length * length, step, positionStep};
      else all.push_back({length, step, positionStep});
    }
    if (bytes == 0) continue;
    if (!made.dimensions.empty() && made.dimensions.back().step == size &&
        made.dimensions.back().positionStep == size) {
      made.run = size * made.dimensions.back().length;
      made.dimensions.pop_back();
    }
    for (const DigestDimension& dimension : made.dimensions) made.runs *= dimension.length;
    table.entries.push_back(std::move(made));
  }
  if (at != count) return refuse("The table has the wrong length.");
  return table;
}

}  // namespace tensorferry
