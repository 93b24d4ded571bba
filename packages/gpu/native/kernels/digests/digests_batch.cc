// SPDX-License-Identifier: Apache-2.0
/*
 * See batch.h. Compiles digests of parts: a record for each entry of the table, and units of the work on them.
 */
#include <algorithm>
#include <cstring>

#include <tensorferry/digest.h>
#include <tensorferry/tables/digest_table.h>

#include "../batch.h"
#include "../grid.h"

namespace tensorferry::gpu {
namespace {

/** Runs of so many bytes at most are a thread's. */
constexpr uint64_t fewBytes = 64;
/** Blocks of a unit, which one team takes, and short runs of one. */
constexpr uint64_t unitBlocks = 128, unitRuns = 2048;

template <typename Part>
void append(std::vector<uint64_t>& table, const Part& part) {
  uint64_t words[sizeof part / sizeof(uint64_t)];
  std::memcpy(words, &part, sizeof part);
  table.insert(table.end(), std::begin(words), std::end(words));
}

/** Bytes that may be accessed at once wherever a vector of the whole lies. */
uint8_t widthOf(const DigestEntry& entry) {
  uint64_t bits = entry.address - entry.position;
  for (const DigestDimension& dimension : entry.dimensions) bits |= dimension.step - dimension.positionStep;
  return commonWidth({bits});
}

}  // namespace

Result<DigestWork> compileDigest(const uint64_t* words, size_t count) {
  auto read = readDigestTable(words, count);
  if (!read.ok()) return read.status();
  const DigestTable& table = read.value();
  DigestWork work;
  std::vector<DigestUnit> units;
  for (const DigestEntry& entry : table.entries) {
    if (work.table.size() > UINT32_MAX / 2)
      return failure(Code::InvalidArgument, "digest", "There are too many parts.");
    const bool isShort = entry.run <= fewBytes;
    // A run may begin anywhere in its first block.
    const uint64_t blocks = isShort ? 0 : (entry.run + digestBlockBytes - 2) / digestBlockBytes + 1;
    const uint64_t items = isShort ? entry.runs : entry.runs * blocks, perUnit = isShort ? unitRuns : unitBlocks;
    if (items / perUnit + units.size() > maxUnits)
      return failure(Code::InvalidArgument, "digest", "The parts are too large for one call.");
    const auto at = static_cast<uint32_t>(work.table.size());
    append(work.table, DigestRecord{entry.address, entry.position, entry.run, blocks, entry.part, entry.mask,
                                    static_cast<uint8_t>(entry.dimensions.size()), widthOf(entry), 0});
    for (size_t d = entry.dimensions.size(); d > 0; d--) {
      const DigestDimension& dimension = entry.dimensions[d - 1];
      append(work.table, DigestAxis{dimension.length, dimension.step, dimension.positionStep});
    }
    for (uint64_t first = 0; first < items; first += perUnit)
      units.push_back({first, at, static_cast<uint32_t>(std::min(perUnit, items - first))});
  }
  work.unitsAt = static_cast<uint32_t>(work.table.size());
  for (const DigestUnit& unit : units) append(work.table, unit);
  work.unitCount = static_cast<uint32_t>(units.size());
  work.resultsAt = static_cast<uint32_t>(work.table.size());
  work.results = digestHalves * table.parts;
  work.table.resize(work.table.size() + work.results);
  return work;
}

DigestParameter digestParameter(const DigestWork& work, DigestStep step, uint64_t table) noexcept {
  return {table, work.unitsAt, work.resultsAt, step == DigestStep::Clear ? work.results : work.unitCount, step};
}

}  // namespace tensorferry::gpu
