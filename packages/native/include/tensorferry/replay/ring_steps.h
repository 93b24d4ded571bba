// SPDX-License-Identifier: Apache-2.0
/*
 * A replay ring in the memory of a device: sums of its weights, draws and gathering. One source for hosts and devices;
 * `Memory` says how memory is reached (load, store, raise, copy), and what threads that share an index have together
 * (differenceOf, sumOf). Where these are not at work together (isTogether), the first stands for all. ReplayRingKernels.ts of core states what is drawn, and
 * drawWindows.ts of the package `replay` is the reference.
 *
 * A step is a launch over independent indices. Steps of a stream come one after the other, so what one wrote the next reads.
 *
 * Invariants: a row has a weight exactly while it can be drawn. Sums are those of their children, never added to. Draw k is
 * the k-th accepted candidate, however candidates are spread over segments.
 */
#pragma once

#include "ring_words.h"

/** Before a function of steps, which reach memory as only one side can; before a loop that is to stay one, or whose loads are to be under way together. */
#if defined(__CUDACC__) || defined(__HIP__) || defined(TENSORFERRY_RUNTIME_COMPILED)
#define TENSORFERRY_RING __device__ __forceinline__
#define TENSORFERRY_RING_LOOP _Pragma("unroll 1")
#define TENSORFERRY_RING_UNROLL _Pragma("unroll 8")
#else
#define TENSORFERRY_RING inline
#define TENSORFERRY_RING_LOOP
#define TENSORFERRY_RING_UNROLL
#endif

namespace tensorferry {
namespace {

/** Which of the threads that share an index this is. */
struct RingLanes {
  uint32_t lane, lanes;
};

/** All steps of one ring; `Memory` has static functions. */
template <typename Memory>
struct RingSteps {
  using Parameter = const RingParameter&;

  TENSORFERRY_RING static uint64_t word(uint64_t at, uint64_t index) {
    return Memory::template load<uint64_t>(at + 8 * index);
  }
  TENSORFERRY_RING static void setWord(uint64_t at, uint64_t index, uint64_t value) {
    Memory::template store<uint64_t>(at + 8 * index, value);
  }

  TENSORFERRY_RING static uint64_t firstOf(uint64_t reserved, uint64_t written, uint64_t capacity) {
    const uint64_t oldest = reserved > capacity ? reserved - capacity : 0;
    return oldest < written ? oldest : written;
  }
  TENSORFERRY_RING static bool has(Parameter p, uint64_t position) {
    const uint64_t written = word(p.state, 1);
    return position < written && position >= firstOf(word(p.state, 0), written, p.capacity);
  }

  TENSORFERRY_RING static uint64_t leafAt(Parameter p, uint64_t slot) { return p.state + ringWordBytes + 4 * slot; }

  TENSORFERRY_RING static uint64_t shareOf(Parameter p, uint64_t begin, uint64_t level, uint64_t node) {
    return level == 0 ? Memory::template load<uint32_t>(begin + 4 * node)
                      : Memory::template load<uint64_t>(begin + 8 * node);
  }

  /** Sums the children of a node. */
  TENSORFERRY_RING static void sum(Parameter p, uint64_t node) {
    const uint64_t below = p.level - 1, begin = p.state + ringLevelAt(p.capacity, below);
    const uint64_t nodes = ringNodes(p.capacity, below);
    uint64_t total = 0;
    TENSORFERRY_RING_LOOP
    for (uint64_t child = node * ringFanOut; child < (node + 1) * ringFanOut && child < nodes; child++)
      total += shareOf(p, begin, below, child);
    Memory::template store<uint64_t>(p.state + ringLevelAt(p.capacity, p.level) + 8 * node, total);
  }

  /** The slots that stand for all nodes over the rows: every so many rows, the last one, and the last slot before a wrap. */
  TENSORFERRY_RING static void sumRows(Parameter p, uint64_t index) {
    const uint64_t slots = ringSpan(p.level), strides = ringNodes(p.count2, p.level);
    if (p.count2 == 0) return;
    const uint64_t begin = p.first % p.capacity;
    uint64_t slot = (begin + p.count2 - 1) % p.capacity;
    if (index < strides) {
      slot = (begin + index * slots) % p.capacity;
    } else if (index > strides) {
      if (begin + p.count2 <= p.capacity) return;
      slot = index == strides + 1 ? p.capacity - 1 : 0;
    }
    sum(p, slot >> ringFanOutBits * p.level);
  }

  TENSORFERRY_RING static void reserve(Parameter p) {
    const uint64_t reserved = word(p.state, 0), written = word(p.state, 1), end = p.first + p.count2;
    if (p.first < written || p.first > reserved || end - written > p.capacity) return setWord(p.state, 2, 1);
    if (end > reserved) setWord(p.state, 0, end);
  }

  TENSORFERRY_RING static void publish(Parameter p) {
    const uint64_t end = p.first + p.count2;
    if (p.first != word(p.state, 1) || end > word(p.state, 0)) return setWord(p.state, 2, 1);
    setWord(p.state, 1, end);
  }

  /**
   * The range of draws, and above it how far random numbers are shifted: by as much as leaves those below the range, or below
   * a total that is not 0. It is worked out once: nvcc 13.0 never ends where each candidate works it out.
   */
  TENSORFERRY_RING static uint64_t shapeOf(uint64_t range, uint64_t total) {
    uint64_t shift = total == 0 ? ringLeadingZeros(range - 1) - 32 : ringLeadingZeros(total - 1);
    if (shift > 63) shift = 63;
    return range | shift << 32;
  }

  TENSORFERRY_RING static void snapshot(Parameter p) {
    const uint64_t written = word(p.state, 1), first = firstOf(word(p.state, 0), written, p.capacity);
    const uint64_t total = word(p.state + ringLevelAt(p.capacity, ringLevels(p.capacity)), 0);
    const uint64_t rows = written - first;
    setWord(p.request, 0, first);
    setWord(p.request, 1, written);
    setWord(p.request, 2, 0);
    setWord(p.request, 3, total);
    setWord(p.request, 4, word(p.state, 2));
    const bool isEmpty = rows < p.window || (p.isWeighted != 0 && total == 0);
    setWord(p.request, 5, isEmpty ? 0 : shapeOf(rows - p.window + 1, p.isWeighted != 0 ? total : 0));
    const RingRandom random = ringRandom(p.seed, p.tick);
    setWord(p.request, 6, random.a | static_cast<uint64_t>(random.b) << 32);
    setWord(p.request, 7, random.c | static_cast<uint64_t>(random.d) << 32);
  }

  /** What all candidates of a request need to know. */
  struct Draws {
    uint64_t first, end, total, range;
    uint32_t shift;
  };

  TENSORFERRY_RING static Draws drawsOf(Parameter p) {
    const uint64_t shape = word(p.request, 5);
    return {word(p.request, 0), word(p.request, 1), word(p.request, 3), shape & 0xffffffffu,
            static_cast<uint32_t>(shape >> 32)};
  }

  /** The slot in whose share of the sum a number lies. */
  TENSORFERRY_RING static uint64_t find(Parameter p, uint64_t number) {
    uint64_t node = 0;
    TENSORFERRY_RING_LOOP
    for (uint64_t level = ringLevels(p.capacity); level-- > 0;) {
      const uint64_t begin = p.state + ringLevelAt(p.capacity, level), nodes = ringNodes(p.capacity, level);
      node *= ringFanOut;
      TENSORFERRY_RING_LOOP
      for (; node + 1 < nodes; node++) {
        const uint64_t share = shareOf(p, begin, level, node);
        if (number < share) break;
        number -= share;
      }
    }
    return node;
  }

  /** Rows from one on to the end of its episode, at most those of a window. */
  TENSORFERRY_RING static uint64_t lengthOf(Parameter p, uint64_t position) {
    if (p.episodes == RingEpisodes::Cross) return p.window;
    uint64_t slot = position % p.capacity;
    TENSORFERRY_RING_LOOP
    for (uint64_t length = 1; length < p.window; length++) {
      if (Memory::template load<uint8_t>(p.rows + slot * p.rowBytes + p.endOffset) != 0) return length;
      slot = slot + 1 == p.capacity ? 0 : slot + 1;
    }
    return p.window;
  }

  /** The next candidate; whether it is accepted, and then where its window begins and ends. */
  TENSORFERRY_RING static bool candidate(Parameter p, const Draws& draws, RingRandom& random, uint64_t& position,
                                         uint64_t& length) {
    if (p.isWeighted == 0) {
      uint64_t drawn = 0;
      if (draws.range > 1) drawn = random.next() >> draws.shift;
      if (drawn >= draws.range) return false;
      position = draws.first + drawn;
    } else {
      const uint64_t high = random.next();
      const uint64_t drawn = (high << 32 | random.next()) >> draws.shift;
      if (drawn >= draws.total) return false;
      position = draws.first - draws.first % p.capacity + find(p, drawn);
      if (position < draws.first) position += p.capacity;
      if (position + p.window > draws.end) return false;
    }
    length = lengthOf(p, position);
    return p.episodes != RingEpisodes::Whole || length == p.window;
  }

  /** Adds the columns of a matrix that the bits of a word select, of those that are one thread's. */
  TENSORFERRY_RING static void addColumns(uint64_t columns, uint32_t word32, const RingLanes& own, RingRandom& sum) {
    TENSORFERRY_RING_UNROLL
    for (uint32_t bit = own.lane; bit < 32; bit += own.lanes) {
      const uint64_t low = word(columns, 2 * bit), high = word(columns, 2 * bit + 1);
      const uint32_t selected = 0u - (word32 >> bit & 1);
      sum.a ^= static_cast<uint32_t>(low) & selected;
      sum.b ^= static_cast<uint32_t>(low >> 32) & selected;
      sum.c ^= static_cast<uint32_t>(high) & selected;
      sum.d ^= static_cast<uint32_t>(high >> 32) & selected;
    }
  }

  /** Leads a random state further, by so many numbers below 2^32. Threads share the columns of a matrix. */
  TENSORFERRY_RING static RingRandom advanced(Parameter p, RingRandom random, uint64_t numbers, const RingLanes& own) {
    TENSORFERRY_RING_LOOP
    for (uint64_t matrix = p.table; numbers != 0; numbers >>= 1, matrix += ringMatrixBytes) {
      if ((numbers & 1) == 0) continue;
      const auto shareOf = [&](const RingLanes& of) {
        RingRandom sum{0, 0, 0, 0};
        addColumns(matrix, random.a, of, sum);
        addColumns(matrix + ringMatrixBytes / 4, random.b, of, sum);
        addColumns(matrix + ringMatrixBytes / 2, random.c, of, sum);
        addColumns(matrix + ringMatrixBytes / 4 * 3, random.d, of, sum);
        return sum;
      };
      random = Memory::differenceOf(own, shareOf);
    }
    return random;
  }

  TENSORFERRY_RING static RingRandom stored(uint64_t at) {
    const uint64_t low = word(at, 0), high = word(at, 1);
    return {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high),
            static_cast<uint32_t>(high >> 32)};
  }
  TENSORFERRY_RING static uint64_t segmentStateAt(Parameter p, uint64_t segment) {
    return p.request + ringStatesAt + 16 * segment;
  }

  TENSORFERRY_RING static void countSegment(Parameter p, uint64_t segment, const RingLanes& own) {
    if (!Memory::isTogether && own.lane != 0) return;
    const Draws draws = drawsOf(p);
    uint32_t accepted = 0;
    if (draws.range > 0) {
      const uint64_t numbers = segment * p.segmentLength * (p.isWeighted != 0 ? 2 : 1);
      RingRandom random = advanced(p, stored(p.request + 48), numbers, own);
      const uint64_t at = segmentStateAt(p, segment);
      if (own.lane == 0) {
        setWord(at, 0, random.a | static_cast<uint64_t>(random.b) << 32);
        setWord(at, 1, random.c | static_cast<uint64_t>(random.d) << 32);
      }
      uint64_t position = 0, length = 0;
      TENSORFERRY_RING_LOOP
      for (uint64_t i = 0; i < p.segmentLength; i++) accepted += candidate(p, draws, random, position, length) ? 1 : 0;
    }
    if (own.lane == 0) Memory::template store<uint32_t>(p.request + ringWordBytes + 4 * segment, accepted);
  }

  /** Accepted candidates of all segments before one. */
  TENSORFERRY_RING static uint64_t acceptedBefore(Parameter p, uint64_t segment, const RingLanes& own) {
    const auto shareOf = [&](const RingLanes& of) {
      uint64_t sum = 0;
      TENSORFERRY_RING_UNROLL
      for (uint64_t before = of.lane; before < segment; before += of.lanes)
        sum += Memory::template load<uint32_t>(p.request + ringWordBytes + 4 * before);
      return sum;
    };
    return Memory::sumOf(own, shareOf);
  }

  /** The last segment goes on until there is enough, or candidates run out. Without segments that is all. */
  TENSORFERRY_RING static void pickSegment(Parameter p, uint64_t segment, const RingLanes& own) {
    if (!Memory::isTogether && own.lane != 0) return;
    const Draws draws = drawsOf(p);
    if (draws.range == 0) return;
    uint64_t place = acceptedBefore(p, segment, own);
    if (own.lane != 0) return;
    const bool isLast = segment + 1 >= p.segments;
    if (place >= p.count) {
      if (isLast) setWord(p.request, 2, p.count);
      return;
    }
    RingRandom random = stored(p.segments == 0 ? p.request + 48 : segmentStateAt(p, segment));
    const uint64_t from = segment * p.segmentLength;
    const uint64_t to = isLast ? ringCandidates(p.count) : from + p.segmentLength;
    TENSORFERRY_RING_LOOP
    for (uint64_t i = from; i < to && place < p.count; i++) {
      uint64_t position = 0, length = 0;
      if (!candidate(p, draws, random, position, length)) continue;
      Memory::template store<uint64_t>(p.positions + 8 * place, position);
      Memory::template store<uint32_t>(p.lengths + 4 * place, static_cast<uint32_t>(length));
      place++;
    }
    if (isLast) setWord(p.request, 2, place);
  }

  TENSORFERRY_RING static void gather(Parameter p, uint64_t index, const RingLanes& own) {
    if (word(p.request, 2) < p.count) return;
    const uint64_t k = index / p.window, length = Memory::template load<uint32_t>(p.lengths + 4 * k);
    uint64_t row = index - k * p.window;
    if (row >= length) row = length - 1;
    const uint64_t position = Memory::template load<uint64_t>(p.positions + 8 * k) + row;
    const uint64_t from = p.rows + position % p.capacity * p.rowBytes;
    uint64_t to = p.output;
    if (p.columns == 0) return Memory::copy(to + index * p.rowBytes, from, p.rowBytes, own.lane, own.lanes);
    const uint64_t columns = p.table + ringMatrices * ringMatrixBytes;
    TENSORFERRY_RING_LOOP
    for (uint64_t column = 0; column < p.columns; column++) {
      const uint64_t offset = word(columns, 2 * column), bytes = word(columns, 2 * column + 1);
      Memory::copy(to + index * bytes, from + offset, bytes, own.lane, own.lanes);
      to += ringRoundUp(p.count * p.window * bytes, ringColumnAlignment);
    }
  }

  TENSORFERRY_RING static void leaf(Parameter p, uint64_t index) {
    Memory::template store<uint32_t>(leafAt(p, (p.first + index) % p.capacity), static_cast<uint32_t>(p.weight));
  }

  TENSORFERRY_RING static void forget(Parameter p, uint64_t index) {
    const uint64_t position = word(p.positions, index);
    if (has(p, position)) Memory::template store<uint32_t>(leafAt(p, position % p.capacity), 0);
  }

  TENSORFERRY_RING static void raise(Parameter p, uint64_t index) {
    const uint64_t position = word(p.positions, index);
    if (!has(p, position)) return;
    Memory::raise(leafAt(p, position % p.capacity), Memory::template load<uint32_t>(p.weights + 4 * index));
  }

  TENSORFERRY_RING static void resum(Parameter p, uint64_t index) {
    const uint64_t position = word(p.positions, index);
    if (has(p, position)) sum(p, (position % p.capacity) >> ringFanOutBits * p.level);
  }

  /** Which indices of a step to do. */
  struct Share {
    uint64_t begin, end, stride;
    RingLanes own;
  };

  template <void (*Step)(Parameter, uint64_t)>
  TENSORFERRY_RING static void each(Parameter p, const Share& share) {
    TENSORFERRY_RING_LOOP
    for (uint64_t index = share.begin; index < share.end; index += share.stride) Step(p, index);
  }

  template <void (*Step)(Parameter, uint64_t, const RingLanes&)>
  TENSORFERRY_RING static void eachOfLanes(Parameter p, const Share& share) {
    TENSORFERRY_RING_LOOP
    for (uint64_t index = share.begin; index < share.end; index += share.stride) Step(p, index, share.own);
  }

  /**
   * A share of a step. Each step has a loop of its own: from one loop around a choice of steps, compilers for devices make
   * copies for each outcome of what all indices have in common, so many that they never end.
   */
  TENSORFERRY_RING static void run(Parameter p, const Share& share) {
    switch (p.step) {
      case RingStep::Reserve:
        if (share.begin == 0) reserve(p);
        return;
      case RingStep::Leaves:
        return each<leaf>(p, share);
      case RingStep::Sums:
        return each<sumRows>(p, share);
      case RingStep::Publish:
        if (share.begin == 0) publish(p);
        return;
      case RingStep::Snapshot:
        if (share.begin == 0) snapshot(p);
        return;
      case RingStep::Count:
        return eachOfLanes<countSegment>(p, share);
      case RingStep::Pick:
        return eachOfLanes<pickSegment>(p, share);
      case RingStep::Gather:
        return eachOfLanes<gather>(p, share);
      case RingStep::Forget:
        return each<forget>(p, share);
      case RingStep::Raise:
        return each<raise>(p, share);
      case RingStep::Resum:
        return each<resum>(p, share);
      default:
        return;
    }
  }
};

}  // namespace
}  // namespace tensorferry
