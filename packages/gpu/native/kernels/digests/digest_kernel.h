// SPDX-License-Identifier: Apache-2.0
/*
 * Digests of elements (tensorferry/digest.h): teams of threads take blocks of 128 words, of which each thread has four. Runs of
 * a few bytes are taken by one thread each.
 *
 * Invariant: sums wrap, so that the order in which threads add to a digest does not matter. What a thread reads lies in the
 * run: words at its ends are put together byte by byte.
 */
#pragma once

#include <tensorferry/digest.h>

#include "../device.h"
#include "../locate.h"
#include "../parameters.h"

namespace tensorferry::gpu {
namespace {

/** Words of a block that a thread has: those of one vector. */
inline constexpr uint32_t digestThreadWords = digestBlockWords / teamThreads, digestVectorBytes = 4 * digestThreadWords;

/** Vectors that a thread reads at once: few threads are resident, since each keeps the factors of its words. */
inline constexpr uint32_t vectorsInFlight = 8;

/** Where a run lies in memory and in the whole. */
struct DigestRun {
  uint64_t address, position;
};

TENSORFERRY_DEVICE DigestRun runOf(uint64_t record, const DigestRecord& head, uint64_t row) {
  DigestRun run{head.address, head.position};
  TENSORFERRY_KEEP_LOOP
  for (uint32_t d = 0; d < head.dimensionCount; d++) {
    const uint64_t axis = record + sizeof(DigestRecord) + d * sizeof(DigestAxis);
    const bool isLast = d + 1 == head.dimensionCount;
    const uint64_t length = load<uint64_t>(axis), rest = isLast ? 0 : row / length, at = row - rest * length;
    run.address += at * load<uint64_t>(axis + 8);
    run.position += at * load<uint64_t>(axis + 16);
    row = rest;
  }
  return run;
}

/** Bits of the bytes from one place to another that count, turned over, at their places in a word of the whole. */
TENSORFERRY_DEVICE uint32_t bytesOfWord(uint64_t address, uint64_t word, uint64_t from, uint64_t to, uint32_t mask) {
  uint32_t value = 0;
  TENSORFERRY_UNROLL
  for (uint32_t i = 0; i < 4; i++) {
    const uint64_t at = 4 * word + i;
    if (at < from || at >= to) continue;
    value |= (~static_cast<uint32_t>(load<uint8_t>(address + (at - from))) & mask) << (8 * i);
  }
  return value;
}

/** Four words as they lie in memory, read in accesses of `width` bytes. */
TENSORFERRY_DEVICE Vector loadWords(uint64_t address, uint32_t width) {
  if (width == 16) return loadPassing<Vector>(address);
  uint32_t words[4];
  TENSORFERRY_UNROLL
  for (uint32_t w = 0; w < 4; w++) {
    const uint64_t at = address + 4 * w;
    if (width >= 4) {
      words[w] = load<uint32_t>(at);
    } else if (width == 2) {
      words[w] = load<uint16_t>(at) | static_cast<uint32_t>(load<uint16_t>(at + 2)) << 16;
    } else {
      words[w] = load<uint8_t>(at) | static_cast<uint32_t>(load<uint8_t>(at + 1)) << 8 |
                 static_cast<uint32_t>(load<uint8_t>(at + 2)) << 16 |
                 static_cast<uint32_t>(load<uint8_t>(at + 3)) << 24;
    }
  }
  return {words[0], words[1], words[2], words[3]};
}

TENSORFERRY_DEVICE void addDigestWords(uint64_t (&sums)[digestHalves], const uint32_t (&words)[digestThreadWords],
                                       const uint64_t (&factors)[digestHalves][digestThreadWords], uint64_t block) {
  TENSORFERRY_UNROLL
  for (uint32_t half = 0; half < digestHalves; half++) {
    uint64_t sum = 0;
    TENSORFERRY_UNROLL
    for (uint32_t w = 0; w < digestThreadWords; w++) sum += words[w] * factors[half][w];
    sums[half] += sum * digestBlockFactor(half, block);
  }
}

/** Adds vectors of some blocks, of which bytes that are not the run's count nothing. */
TENSORFERRY_DEVICE void addDigestEnds(const DigestRun& run, const DigestRecord& head, uint64_t block, uint32_t count,
                                      uint32_t thread, const uint64_t (&factors)[digestHalves][digestThreadWords],
                                      uint64_t (&sums)[digestHalves]) {
  const uint64_t end = run.position + head.run;
  TENSORFERRY_KEEP_LOOP
  for (; count > 0; count--, block++) {
    const uint64_t at = block * digestBlockBytes + digestVectorBytes * thread;
    if (at >= end || at + digestVectorBytes <= run.position) continue;
    uint32_t words[digestThreadWords];
    TENSORFERRY_UNROLL
    for (uint32_t w = 0; w < digestThreadWords; w++)
      words[w] = bytesOfWord(run.address, at / 4 + w, run.position, end, head.mask);
    addDigestWords(sums, words, factors, block);
  }
}

/** Adds vectors of some blocks, one behind the other, all of which are the run's. Several are read before one is added. */
template <uint32_t many, bool isWide>
TENSORFERRY_DEVICE void addDigestVectors(uint64_t& address, uint64_t& block, uint32_t& count, uint32_t width,
                                         const uint64_t (&factors)[digestHalves][digestThreadWords],
                                         uint64_t (&sums)[digestHalves]) {
  TENSORFERRY_KEEP_LOOP
  for (; count >= many; count -= many, block += many, address += many * digestBlockBytes) {
    Vector vectors[many];
    TENSORFERRY_UNROLL
    for (uint32_t k = 0; k < many; k++) {
      const uint64_t at = address + k * digestBlockBytes;
      vectors[k] = isWide ? loadPassing<Vector>(at) : loadWords(at, width);
    }
    TENSORFERRY_UNROLL
    for (uint32_t k = 0; k < many; k++) {
      const uint32_t words[digestThreadWords] = {~vectors[k].x, ~vectors[k].y, ~vectors[k].z, ~vectors[k].w};
      addDigestWords(sums, words, factors, block + k);
    }
  }
}

/** Blocks of a long run from one on. */
TENSORFERRY_DEVICE void digestBlocksOfRun(const DigestRun& run, const DigestRecord& head, uint64_t block,
                                          uint32_t count, uint32_t thread,
                                          const uint64_t (&factors)[digestHalves][digestThreadWords],
                                          uint64_t (&sums)[digestHalves]) {
  // Where this thread's vector begins in the first block, from the beginning of the run: below 0 where the run begins later.
  const int64_t first =
      static_cast<int64_t>(block * digestBlockBytes + digestVectorBytes * thread) - static_cast<int64_t>(run.position);
  const uint32_t before = first < 0 ? 1 : 0;
  const int64_t room = static_cast<int64_t>(head.run) - digestVectorBytes - first;
  const uint64_t most = room < 0 ? 0 : static_cast<uint64_t>(room) / digestBlockBytes + 1;
  uint32_t whole = head.mask != 0xff ? 0 : most < count ? static_cast<uint32_t>(most) : count;
  whole = whole > before ? whole - before : 0;
  const uint32_t behind = count - before - whole;
  addDigestEnds(run, head, block, before, thread, factors, sums);
  block += before;
  uint64_t address = run.address + static_cast<uint64_t>(first + (before != 0 ? digestBlockBytes : 0));
  const uint32_t width = head.width;
  if (width == sizeof(Vector)) addDigestVectors<vectorsInFlight, true>(address, block, whole, width, factors, sums);
  addDigestVectors<1, false>(address, block, whole, width, factors, sums);
  addDigestEnds(run, head, block, behind, thread, factors, sums);
}

/** Blocks of long runs. An index is a block of a run, counted from the one in which the run begins. */
TENSORFERRY_DEVICE void digestBlocks(uint64_t record, const DigestRecord& head, const DigestUnit& unit, uint32_t thread,
                                     uint64_t (&sums)[digestHalves]) {
  uint64_t factors[digestHalves][digestThreadWords];
  TENSORFERRY_UNROLL
  for (uint32_t half = 0; half < digestHalves; half++) TENSORFERRY_UNROLL
  for (uint32_t w = 0; w < digestThreadWords; w++)
    factors[half][w] = digestWordFactor(half, digestThreadWords * thread + w);
  TENSORFERRY_KEEP_LOOP
  for (uint32_t i = 0; i < unit.count;) {
    const uint64_t row = (unit.first + i) / head.blocks, before = unit.first + i - row * head.blocks;
    const uint64_t left = head.blocks - before;
    const uint32_t count = left < unit.count - i ? static_cast<uint32_t>(left) : unit.count - i;
    const DigestRun run = runOf(record, head, row);
    digestBlocksOfRun(run, head, run.position / digestBlockBytes + before, count, thread, factors, sums);
    i += count;
  }
}

/** Short runs. An index is a run. */
TENSORFERRY_DEVICE void digestShortRuns(uint64_t record, const DigestRecord& head, const DigestUnit& unit,
                                        uint32_t thread, uint64_t (&sums)[digestHalves]) {
  TENSORFERRY_KEEP_LOOP
  for (uint32_t i = thread; i < unit.count; i += teamThreads) {
    const DigestRun run = runOf(record, head, unit.first + i);
    const uint64_t end = run.position + head.run;
    TENSORFERRY_KEEP_LOOP
    for (uint64_t word = run.position / 4; 4 * word < end; word++) {
      const uint32_t value = bytesOfWord(run.address, word, run.position, end, head.mask);
      TENSORFERRY_UNROLL
      for (uint32_t half = 0; half < digestHalves; half++)
        sums[half] += value * digestWordFactor(half, static_cast<uint32_t>(word % digestBlockWords)) *
                      digestBlockFactor(half, word / digestBlockWords);
    }
  }
}

TENSORFERRY_DEVICE void runDigest(const DigestParameter& parameter, const Place& place) {
  constexpr uint32_t teams = digestThreads / teamThreads;
  const uint64_t results = parameter.table + 8ull * parameter.resultsAt;
  if (parameter.step == DigestStep::Clear) {
    TENSORFERRY_KEEP_LOOP
    for (uint64_t at = static_cast<uint64_t>(place.block) * digestThreads + place.thread; at < parameter.count;
         at += static_cast<uint64_t>(place.blocks) * digestThreads)
      store<uint64_t>(results + 8 * at, 0);
    return;
  }
  const uint32_t thread = place.thread % teamThreads;
  TENSORFERRY_KEEP_LOOP
  for (uint32_t u = place.block * teams + place.thread / teamThreads; u < parameter.count; u += place.blocks * teams) {
    const DigestUnit& unit =
        view<DigestUnit>(parameter.table + 8ull * parameter.unitsAt + sizeof(DigestUnit) * static_cast<uint64_t>(u));
    const uint64_t record = parameter.table + 8ull * unit.record;
    const DigestRecord& head = view<DigestRecord>(record);
    uint64_t sums[digestHalves] = {};
    if (head.blocks == 0) {
      digestShortRuns(record, head, unit, thread, sums);
    } else {
      digestBlocks(record, head, unit, thread, sums);
    }
    TENSORFERRY_UNROLL
    for (uint32_t half = 0; half < digestHalves; half++)
      addOfTeam(results + 8ull * (digestHalves * head.part + half), sums[half], thread);
  }
}

}  // namespace
}  // namespace tensorferry::gpu
