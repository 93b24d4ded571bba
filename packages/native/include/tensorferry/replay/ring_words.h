// SPDX-License-Identifier: Apache-2.0
/*
 * The words of a replay ring in the memory of a device, where its sums lie, its random numbers, and the parameter of a launch.
 * RingProgram.ts makes parameters; ring_steps.h says what launches do.
 *
 * The ring's words:     reserved, written, torn; at byte 64 a weight of 32 bits per slot; then sums of 64 bits, level by level.
 * A request's words:    first, end, drawn, total, torn, range and shift (`shapeOf`); two words of random state; at byte 64 numbers of accepted
 *                       candidates per segment, and at `ringStatesAt` the random state at which each segment begins.
 * The table:            32 matrices, which lead 2^n numbers further; then offset and length of each column.
 */
#pragma once

#include "../integers.h"

namespace tensorferry {

/** One launch. In the order in which TypeScript numbers them; 0 is none. */
enum class RingStep : uint64_t {
  None,
  /** `rows` rows from `first` on are about to be overwritten: one index. */
  Reserve,
  /** Gives each of these rows `weight`: an index is a row. */
  Leaves,
  /** Sums over these rows at `level`: an index is a node, some of them twice. */
  Sums,
  /** These rows are written: one index. */
  Publish,
  /** Begins a request: one index. */
  Snapshot,
  /** Counts accepted candidates: an index is a segment, which `lanes` threads share. */
  Count,
  /** Writes positions and lengths: an index is a segment, which `lanes` threads share. */
  Pick,
  /** Copies rows: an index is a row of the batch, which `lanes` threads share. */
  Gather,
  /** Of rows that get new weights: an index is a position. Forgets the old ones, */
  Forget,
  /** raises them to the largest of the new ones, */
  Raise,
  /** and sums over them at `level`. */
  Resum,
};
inline constexpr uint64_t ringStepCount = 12;

/** What a request draws, beside `RingParameter::draws`. */
enum class RingEpisodes : uint64_t { Cross, Whole, Cut };

/** Parameter of one launch. Addresses are 0 where the step does not use them. */
struct RingParameter {
  RingStep step;
  uint64_t state, rows, table, request, output, positions, lengths, weights;
  uint64_t capacity, rowBytes, columns;
  uint64_t seed, tick, count, window;
  /** 1: in proportion to weights. */
  uint64_t isWeighted;
  RingEpisodes episodes;
  /** Place of the byte that ends an episode. */
  uint64_t endOffset;
  uint64_t first, count2, weight, level;
  uint64_t segments, segmentLength;
};

inline constexpr uint64_t ringParameterWords = 25;
static_assert(sizeof(RingParameter) == 8 * ringParameterWords, "shared layout");

inline constexpr uint64_t ringFanOutBits = 4, ringFanOut = 1 << ringFanOutBits, ringWordBytes = 64,
                          mostRingSegments = 4096;
/** Where the random states of segments lie in a request. */
inline constexpr uint64_t ringStatesAt = ringWordBytes + 4 * mostRingSegments;
inline constexpr uint64_t ringRequestBytes = ringStatesAt + 16 * mostRingSegments;
/** Bytes of a matrix: a column of 16 bytes for each bit. */
inline constexpr uint64_t ringMatrixBytes = 128 * 16, ringMatrices = 32;
inline constexpr uint64_t ringColumnAlignment = 256;

namespace {

/** xoshiro128**, as ReplaySampling.ts has it. */
struct RingRandom {
  uint32_t a, b, c, d;

  TENSORFERRY_SHARED uint32_t next() {
    const uint32_t scrambled = b * 5;
    const uint32_t result = ((scrambled << 7) | (scrambled >> 25)) * 9;
    const uint32_t shifted = b << 9;
    c ^= a;
    d ^= b;
    b ^= c;
    a ^= d;
    c ^= shifted;
    d = (d << 11) | (d >> 21);
    return result;
  }
};

TENSORFERRY_SHARED inline uint32_t ringMix(uint32_t value) {
  value = (value ^ (value >> 16)) * 0x21f0aaadu;
  value = (value ^ (value >> 15)) * 0x735a2d97u;
  return value ^ (value >> 15);
}

TENSORFERRY_SHARED inline RingRandom ringRandom(uint64_t seed, uint64_t tick) {
  uint32_t chain = 0x9e3779b9u;
  chain = ringMix(chain ^ static_cast<uint32_t>(seed)) + 0x9e3779b9u;
  chain = ringMix(chain ^ static_cast<uint32_t>(seed >> 32)) + 0x9e3779b9u;
  chain = ringMix(chain ^ static_cast<uint32_t>(tick)) + 0x9e3779b9u;
  chain = ringMix(chain ^ static_cast<uint32_t>(tick >> 32)) + 0x9e3779b9u;
  RingRandom random{ringMix(chain + 0x9e3779b9u), ringMix(chain + 2u * 0x9e3779b9u), ringMix(chain + 3u * 0x9e3779b9u),
                    ringMix(chain + 4u * 0x9e3779b9u)};
  if ((random.a | random.b | random.c | random.d) == 0) random.d = 1;
  return random;
}

/** Bits above the highest one of a number below 2^63. */
TENSORFERRY_SHARED inline uint32_t ringLeadingZeros(uint64_t value) {
  uint32_t zeros = 64;
  for (; value != 0; value >>= 1) zeros--;
  return zeros;
}

TENSORFERRY_SHARED inline uint64_t ringRoundUp(uint64_t value, uint64_t step) {
  return (value + step - 1) / step * step;
}

/** The most candidates of a request; candidateLimit of ReplayRingKernels.ts. */
TENSORFERRY_SHARED inline uint64_t ringCandidates(uint64_t count) { return 1024 + 64 * count; }

/** Slots below a node of a level. */
TENSORFERRY_SHARED inline uint64_t ringSpan(uint64_t level) { return uint64_t{1} << ringFanOutBits * level; }

/** Nodes of a level; 0 has the weights themselves. */
TENSORFERRY_SHARED inline uint64_t ringNodes(uint64_t capacity, uint64_t level) {
  return (capacity + ringSpan(level) - 1) >> ringFanOutBits * level;
}

/** Levels above the weights; the last of them is the root. */
TENSORFERRY_SHARED inline uint64_t ringLevels(uint64_t capacity) {
  uint64_t levels = 0;
  do {
    capacity = (capacity + ringFanOut - 1) / ringFanOut;
    levels++;
  } while (capacity > 1);
  return levels;
}

/** Where a level begins in the ring's words. */
TENSORFERRY_SHARED inline uint64_t ringLevelAt(uint64_t capacity, uint64_t level) {
  uint64_t at = ringWordBytes;
  for (uint64_t below = 0; below < level; below++)
    at += ringRoundUp(ringNodes(capacity, below) * (below == 0 ? 4 : 8), 8);
  return at;
}

/** Whether the threads of a team share an index of a step, on devices. */
TENSORFERRY_SHARED inline bool ringIsShared(RingStep step) {
  return step == RingStep::Count || step == RingStep::Pick || step == RingStep::Gather;
}

/** Indices of a step. */
TENSORFERRY_SHARED inline uint64_t ringIndices(const RingParameter& p) {
  switch (p.step) {
    case RingStep::Leaves:
      return p.count2;
    case RingStep::Sums:
      return ringNodes(p.count2, p.level) + 3;
    case RingStep::Count:
      return p.segments;
    case RingStep::Pick:
      return p.segments > 0 ? p.segments : 1;
    case RingStep::Gather:
      return p.count * p.window;
    case RingStep::Forget:
    case RingStep::Raise:
    case RingStep::Resum:
      return p.count2;
    default:
      return 1;
  }
}

}  // namespace
}  // namespace tensorferry
