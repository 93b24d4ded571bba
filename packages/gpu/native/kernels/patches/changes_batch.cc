// SPDX-License-Identifier: Apache-2.0
/*
 * See batch.h. Compiles searches for changes and their writing. A search goes over large tensors in segments, so that the
 * memory beside its table has a limit.
 */
#include <algorithm>
#include <cstring>

#include <tensorferry/tables/change_table.h>

#include "../batch.h"
#include "../grid.h"

namespace tensorferry::gpu {
namespace {

constexpr uint64_t scratchAlignment = 256, widestAccess = 16;

uint64_t roundUp(uint64_t number, uint64_t step) { return (number + step - 1) / step * step; }

uint32_t blocksFor(uint64_t work, uint64_t perBlock) { return static_cast<uint32_t>((work + perBlock - 1) / perBlock); }

/** Bytes of a side that may be accessed at once. */
uint8_t widthOf(const ChangeTable& table, ChangeSide side) {
  uint64_t bits = table.addresses[side];
  for (const ChangeDimension& dimension : table.dimensions) bits |= static_cast<uint64_t>(dimension.steps[side]);
  return commonWidth({bits});
}

void makeTable(ChangeWork& work, const ChangeTable& table) {
  ChangeRecord record{table.addresses[BaseSide],
                      table.addresses[CurrentSide],
                      table.positions,
                      table.values,
                      table.elements,
                      table.room,
                      table.size,
                      static_cast<uint8_t>(table.dimensions.size()),
                      widthOf(table, BaseSide),
                      widthOf(table, CurrentSide),
                      commonWidth({table.positions}),
                      commonWidth({table.values}),
                      0,
                      0};
  const uint64_t wide = std::min<uint64_t>(widestAccess, octet * table.size);
  const bool isAligned = (record.base | record.current) % wide == 0;
  record.isWide = table.isDense(BaseSide) && table.isDense(CurrentSide) && isAligned;
  const auto append = [&](const auto& part) {
    uint64_t words[sizeof part / sizeof(uint64_t)];
    std::memcpy(words, &part, sizeof part);
    work.table.insert(work.table.end(), std::begin(words), std::end(words));
  };
  append(record);
  for (size_t d = table.dimensions.size(); d > 0; d--) {
    const ChangeDimension& dimension = table.dimensions[d - 1];
    append(ChangeAxis{dimension.length, dimension.steps[BaseSide], dimension.steps[CurrentSide]});
  }
  work.table.push_back(allAscend);
  work.table.push_back(0);
  work.words = work.table.size();
}

void addSearch(ChangeWork& work, const ChangeTable& table, uint64_t segmentTiles) {
  constexpr uint64_t teams = blockThreads / teamThreads;
  const uint64_t tiles = (table.elements + tileElements - 1) / tileElements;
  const uint64_t held = std::min(tiles, segmentTiles), groups = (tiles + groupTiles - 1) / groupTiles;
  work.allTiles = static_cast<uint32_t>(tiles);
  work.countsAt = roundUp(groups * sizeof(uint32_t), scratchAlignment);
  work.cursorsAt = work.countsAt + roundUp(held * sizeof(uint32_t), scratchAlignment);
  work.bitsAt = work.cursorsAt + roundUp(held * sizeof(uint32_t), scratchAlignment);
  work.scratchBytes = work.bitsAt + roundUp(held * (tileElements / octet), scratchAlignment);
  for (uint64_t first = 0; first < tiles; first += segmentTiles) {
    const auto count = static_cast<uint32_t>(std::min(segmentTiles, tiles - first));
    work.launches.push_back({ChangeStep::Compare, count, first, blocksFor(count, teams)});
    work.launches.push_back({ChangeStep::Scan, count, first, blocksFor(count, groupTiles * teams)});
    work.launches.push_back({ChangeStep::Collect, count, first, blocksFor(count, teams)});
  }
}

}  // namespace

Result<ChangeWork> compileChanges(const uint64_t* words, size_t count, uint64_t segmentTiles) {
  auto read = readChangeTable(words, count);
  if (!read.ok()) return read.status();
  const ChangeTable& table = read.value();
  ChangeWork work;
  makeTable(work, table);
  if (!table.isWriting) {
    if (table.elements > 0) addSearch(work, table, segmentTiles);
    return work;
  }
  if (table.room == 0) return work;
  work.launches.push_back({ChangeStep::Check, 0, 0, blocksFor(table.room, checkedAtOnce * blockThreads)});
  work.launches.push_back({ChangeStep::Write, 0, 0, blocksFor(table.room, 4 * blockThreads)});
  return work;
}

ChangeParameter changeParameter(const ChangeWork& work, const ChangeLaunch& launch, uint64_t table,
                                uint64_t scratch) noexcept {
  return {table,
          changeResult(work, table),
          scratch,
          scratch + work.countsAt,
          scratch + work.cursorsAt,
          scratch + work.bitsAt,
          launch.firstTile,
          launch.tiles,
          work.allTiles,
          launch.step,
          0};
}

}  // namespace tensorferry::gpu
