// SPDX-License-Identifier: Apache-2.0
/*
 * Changed elements: found in one pass over both tensors, collected in order, and written.
 *
 * A search has three launches. The first leaves a bit for each element, and the number of those in each tile; the second
 * adds up the numbers within groups of tiles; the third knows from them where what a tile found belongs. A team of threads
 * takes a tile. A writing looks at all positions first, and writes in a launch of its own.
 *
 * Invariant: what is found does not depend on how the work is spread.
 */
#pragma once

#include "../device.h"
#include "../elements_of_four.h"
#include "../locate.h"
#include "../parameters.h"

namespace tensorferry::gpu {
namespace {

inline constexpr uint32_t tileOctets = tileElements / octet;

/** Octets that a thread reads at once. */
template <uint32_t size>
inline constexpr uint32_t octetsInFlight = size <= 2 ? 4 : 8 / size;

/** Where elements lie. The only dimension of what has one is read once. */
class ElementPlaces {
 public:
  TENSORFERRY_DEVICE ElementPlaces(uint64_t record, uint32_t dimensions) : record_(record), dimensions_(dimensions) {
    const uint64_t axis = record + sizeof(ChangeRecord);
    baseStep_ = dimensions == 1 ? load<int64_t>(axis + 8) : 0;
    currentStep_ = dimensions == 1 ? load<int64_t>(axis + 16) : 0;
  }

  /** Bytes from the first element of a side to the one at a position. */
  TENSORFERRY_DEVICE uint64_t of(uint32_t position, bool isCurrent) const {
    if (dimensions_ <= 1) return offsetOf(position, isCurrent ? currentStep_ : baseStep_);
    uint64_t offset = 0;
    TENSORFERRY_KEEP_LOOP
    for (uint32_t d = 0; d < dimensions_; d++) {
      const uint64_t axis = record_ + sizeof(ChangeRecord) + d * sizeof(ChangeAxis);
      uint32_t at = position;
      if (d + 1 < dimensions_) {
        const uint32_t length = static_cast<uint32_t>(load<uint64_t>(axis));
        position = at / length;
        at -= position * length;
      }
      offset += offsetOf(at, load<int64_t>(axis + (isCurrent ? 16 : 8)));
    }
    return offset;
  }

 private:
  uint64_t record_;
  uint32_t dimensions_;
  int64_t baseStep_, currentStep_;
};

/** Eight neighbours as they lie in memory, `2 * size` words of them. */
template <uint32_t size>
TENSORFERRY_DEVICE void loadOctet(uint32_t (&words)[2 * size], uint64_t address) {
  if constexpr (size == 1) {
    const uint64_t bits = loadPassing<uint64_t>(address);
    words[0] = static_cast<uint32_t>(bits);
    words[1] = static_cast<uint32_t>(bits >> 32);
  } else {
    TENSORFERRY_UNROLL
    for (uint32_t i = 0; i < size / 2; i++) {
      const Vector vector = loadPassing<Vector>(address + sizeof(Vector) * i);
      words[4 * i] = vector.x;
      words[4 * i + 1] = vector.y;
      words[4 * i + 2] = vector.z;
      words[4 * i + 3] = vector.w;
    }
  }
}

/** A bit for each element that differs. */
template <uint32_t size>
TENSORFERRY_DEVICE uint32_t differingOf(const uint32_t (&a)[2 * size], const uint32_t (&b)[2 * size]) {
  uint32_t bits = 0;
  TENSORFERRY_UNROLL
  for (uint32_t k = 0; k < octet; k++) {
    uint32_t differing = 0;
    if constexpr (size == 8) {
      differing = (a[2 * k] ^ b[2 * k]) | (a[2 * k + 1] ^ b[2 * k + 1]);
    } else if constexpr (size == 4) {
      differing = a[k] ^ b[k];
    } else {
      constexpr uint32_t perWord = 4 / size, elementBits = 8 * size;
      differing = ((a[k / perWord] ^ b[k / perWord]) >> (elementBits * (k % perWord))) & ((1u << elementBits) - 1);
    }
    bits |= static_cast<uint32_t>(differing != 0) << k;
  }
  return bits;
}

/** The same for an octet of any form, or the last one, which may be shorter. */
template <uint32_t size>
TENSORFERRY_DEVICE uint32_t differingOneByOne(const ElementPlaces& places, const ChangeRecord& head, uint64_t first) {
  uint32_t bits = 0;
  TENSORFERRY_KEEP_LOOP
  for (uint32_t k = 0; k < octet && first + k < head.elements; k++) {
    const uint32_t position = static_cast<uint32_t>(first) + k;
    const auto a = loadElement<size>(head.base + places.of(position, false), head.baseWidth);
    const auto b = loadElement<size>(head.current + places.of(position, true), head.currentWidth);
    bits |= static_cast<uint32_t>(a != b) << k;
  }
  return bits;
}

template <uint32_t size>
TENSORFERRY_DEVICE void compareTile(const ChangeParameter& parameter, const ChangeRecord& head, uint32_t tile,
                                    uint32_t thread) {
  constexpr uint32_t inFlightOctets = octetsInFlight<size>;
  const uint64_t firstOctet = (parameter.firstTile + tile) * tileOctets;
  const uint64_t wideOctets = head.isWide != 0 ? head.elements / octet : 0;
  const uint64_t bits = parameter.bits + static_cast<uint64_t>(tile) * tileOctets;
  uint32_t count = 0;
  TENSORFERRY_KEEP_LOOP
  for (uint32_t from = thread; from < tileOctets; from += inFlightOctets * teamThreads) {
    uint32_t found[inFlightOctets] = {};
    // All of them are wide, or each is looked at by itself.
    if (firstOctet + from + (inFlightOctets - 1) * teamThreads < wideOctets) {
      uint32_t a[inFlightOctets][2 * size], b[inFlightOctets][2 * size];
      TENSORFERRY_UNROLL
      for (uint32_t k = 0; k < inFlightOctets; k++) {
        const uint64_t at = (firstOctet + from + k * teamThreads) * octet * size;
        loadOctet<size>(a[k], head.base + at);
        loadOctet<size>(b[k], head.current + at);
      }
      TENSORFERRY_UNROLL
      for (uint32_t k = 0; k < inFlightOctets; k++) found[k] = differingOf<size>(a[k], b[k]);
    } else {
      const ElementPlaces places(parameter.record, head.dimensionCount);
      TENSORFERRY_UNROLL
      for (uint32_t k = 0; k < inFlightOctets; k++)
        found[k] = differingOneByOne<size>(places, head, (firstOctet + from + k * teamThreads) * octet);
    }
    TENSORFERRY_UNROLL
    for (uint32_t k = 0; k < inFlightOctets; k++) {
      store(bits + from + k * teamThreads, static_cast<uint8_t>(found[k]));
      count += bitsSet(found[k]);
    }
  }
  placesAmong<teamThreads>(count, thread, parameter.counts + sizeof(uint32_t) * tile);
}

TENSORFERRY_DEVICE void scanGroup(const ChangeParameter& parameter, uint32_t group, uint32_t thread) {
  constexpr uint32_t share = groupTiles / teamThreads;
  const uint32_t first = group * groupTiles + thread * share;
  // All numbers of a thread are under way at once.
  uint32_t own[share], sum = 0;
  TENSORFERRY_UNROLL
  for (uint32_t i = 0; i < share; i++)
    own[i] = first + i < parameter.tiles ? load<uint32_t>(parameter.counts + sizeof(uint32_t) * (first + i)) : 0;
  TENSORFERRY_UNROLL
  for (uint32_t i = 0; i < share; i++) sum += own[i];
  const uint64_t total = parameter.totals + sizeof(uint32_t) * (parameter.firstTile / groupTiles + group);
  uint32_t before = placesAmong<teamThreads>(sum, thread, total);
  TENSORFERRY_UNROLL
  for (uint32_t i = 0; i < share; i++) {
    if (first + i < parameter.tiles) store(parameter.counts + sizeof(uint32_t) * (first + i), before);
    before += own[i];
  }
}

/** Changes in all groups before one. */
TENSORFERRY_DEVICE uint64_t beforeGroup(uint64_t totals, uint32_t group, uint32_t thread) {
  const auto shareOf = [&](uint32_t of) {
    uint64_t sum = 0;
    for (uint32_t g = of; g < group; g += teamThreads) sum += load<uint32_t>(totals + sizeof(uint32_t) * g);
    return sum;
  };
  return sumOfTeam(shareOf(thread), shareOf);
}

/** The bits of the elements that a thread has of a tile. */
struct ShareBits {
  static constexpr uint32_t wordBits = 32, elements = 4 * wordBits;
  Vector bits;

  TENSORFERRY_DEVICE uint32_t count() const {
    return bitsSet(bits.x) + bitsSet(bits.y) + bitsSet(bits.z) + bitsSet(bits.w);
  }
  /** The lowest bit, which is taken away. There is one. */
  TENSORFERRY_DEVICE uint32_t next() {
    const bool isX = bits.x != 0, isY = !isX && bits.y != 0, isZ = !isX && !isY && bits.z != 0;
    const uint32_t word = isX ? bits.x : isY ? bits.y : isZ ? bits.z : bits.w, rest = word & (word - 1);
    const uint32_t at = lowestBit(word) + (isX ? 0 : isY ? wordBits : isZ ? 2 * wordBits : 3 * wordBits);
    bits.x = isX ? rest : bits.x;
    bits.y = isY ? rest : bits.y;
    bits.z = isZ ? rest : bits.z;
    bits.w = isX || isY || isZ ? bits.w : rest;
    return at;
  }
};

template <uint32_t size>
TENSORFERRY_DEVICE void collectTile(const ChangeParameter& parameter, const ChangeRecord& head, uint32_t tile,
                                    uint32_t thread) {
  static_assert(ShareBits::elements * teamThreads == tileElements, "a thread takes one vector of bits");
  ShareBits share{load<Vector>(parameter.bits + static_cast<uint64_t>(tile) * tileOctets + sizeof(Vector) * thread)};
  const uint32_t own = share.count();
  const uint64_t whole = parameter.firstTile + tile;
  const uint64_t before = beforeGroup(parameter.totals, static_cast<uint32_t>(whole / groupTiles), thread) +
                          load<uint32_t>(parameter.counts + sizeof(uint32_t) * tile);
  uint64_t place = before + placesAmong<teamThreads>(own, thread, parameter.cursors + sizeof(uint32_t) * tile);
  if (whole + 1 == parameter.allTiles && thread + 1 == teamThreads) store<uint64_t>(parameter.result, place + own);
  const uint32_t first = static_cast<uint32_t>(whole * tileElements) + thread * ShareBits::elements;
  const ElementPlaces places(parameter.record, head.dimensionCount);
  const uint64_t room = head.room > place ? head.room - place : 0;
  uint32_t left = room < own ? static_cast<uint32_t>(room) : own;
  TENSORFERRY_KEEP_LOOP
  while (left > 0) {
    // Values lie far apart: several are under way before one is written.
    const uint32_t many = least(left, inFlight);
    typename BitsOfSize<size>::type values[inFlight];
    TENSORFERRY_UNROLL
    for (uint32_t k = 0; k < inFlight; k++) {
      if (k >= many) continue;
      const uint32_t position = first + share.next();
      storeElement<4>(head.positions + sizeof(uint32_t) * (place + k), head.positionsWidth, position);
      values[k] = loadElement<size>(head.current + places.of(position, true), head.currentWidth);
    }
    TENSORFERRY_UNROLL
    for (uint32_t k = 0; k < inFlight; k++)
      if (k < many) storeElement<size>(head.values + size * (place + k), head.valuesWidth, values[k]);
    left -= many;
    place += many;
  }
}

/** Lowers the result to the first change whose position does not follow the one before it, or is none of the tensor. */
TENSORFERRY_DEVICE void checkPositions(const ChangeParameter& parameter, const ChangeRecord& head, const Place& place) {
  TENSORFERRY_KEEP_LOOP
  for (uint64_t at = checkedAtOnce * (static_cast<uint64_t>(place.block) * blockThreads + place.thread); at < head.room;
       at += static_cast<uint64_t>(place.blocks) * blockThreads * checkedAtOnce) {
    const uint64_t address = head.positions + sizeof(uint32_t) * at;
    const uint32_t many = head.room - at < checkedAtOnce ? static_cast<uint32_t>(head.room - at) : checkedAtOnce;
    uint32_t positions[checkedAtOnce + 1];
    positions[0] = at == 0 ? 0 : loadElement<4>(address - sizeof(uint32_t), head.positionsWidth);
    if (many == checkedAtOnce && head.positionsWidth == sizeof(Vector)) {
      TENSORFERRY_UNROLL
      for (uint32_t v = 0; v < checkedAtOnce / 4; v++) {
        const Vector vector = load<Vector>(address + sizeof(Vector) * v);
        positions[4 * v + 1] = vector.x;
        positions[4 * v + 2] = vector.y;
        positions[4 * v + 3] = vector.z;
        positions[4 * v + 4] = vector.w;
      }
    } else {
      TENSORFERRY_UNROLL
      for (uint32_t k = 0; k < checkedAtOnce; k++)
        positions[k + 1] = k < many ? loadElement<4>(address + sizeof(uint32_t) * k, head.positionsWidth) : 0;
    }
    TENSORFERRY_UNROLL
    for (uint32_t k = 0; k < checkedAtOnce; k++) {
      const bool follows = positions[k] < positions[k + 1] || at + k == 0;
      if (k < many && (!follows || positions[k + 1] >= head.elements)) lower(parameter.result, at + k);
    }
  }
}

template <uint32_t size>
TENSORFERRY_DEVICE void writeChanges(const ChangeParameter& parameter, const ChangeRecord& head, const Place& place) {
  const ElementPlaces places(parameter.record, head.dimensionCount);
  const uint64_t step = static_cast<uint64_t>(place.blocks) * inFlight * blockThreads;
  TENSORFERRY_KEEP_LOOP
  for (uint64_t at = static_cast<uint64_t>(place.block) * inFlight * blockThreads + place.thread; at < head.room;
       at += step) {
    uint32_t positions[inFlight];
    typename BitsOfSize<size>::type values[inFlight];
    TENSORFERRY_UNROLL
    for (uint32_t k = 0; k < inFlight; k++) {
      const uint64_t change = at + k * blockThreads < head.room ? at + k * blockThreads : at;
      positions[k] = loadElement<4>(head.positions + sizeof(uint32_t) * change, head.positionsWidth);
      values[k] = loadElement<size>(head.values + size * change, head.valuesWidth);
    }
    TENSORFERRY_UNROLL
    for (uint32_t k = 0; k < inFlight; k++) {
      if (at + k * blockThreads >= head.room) continue;
      storeElement<size>(head.base + places.of(positions[k], false), head.baseWidth, values[k]);
    }
  }
}

TENSORFERRY_DEVICE void runChanges(const ChangeParameter& parameter, const Place& place) {
  const ChangeRecord head = view<ChangeRecord>(parameter.record);
  constexpr uint32_t teams = blockThreads / teamThreads;
  const uint32_t team = place.block * teams + place.thread / teamThreads, allTeams = place.blocks * teams;
  const uint32_t thread = place.thread % teamThreads;
  switch (parameter.step) {
    case ChangeStep::Compare:
      TENSORFERRY_KEEP_LOOP
      for (uint32_t tile = team; tile < parameter.tiles; tile += allTeams) {
        TENSORFERRY_FOR_SIZE(head.size, compareTile, parameter, head, tile, thread)
      }
      return;
    case ChangeStep::Scan:
      TENSORFERRY_KEEP_LOOP
      for (uint32_t group = team; group * groupTiles < parameter.tiles; group += allTeams)
        scanGroup(parameter, group, thread);
      return;
    case ChangeStep::Collect:
      TENSORFERRY_KEEP_LOOP
      for (uint32_t tile = team; tile < parameter.tiles; tile += allTeams) {
        TENSORFERRY_FOR_SIZE(head.size, collectTile, parameter, head, tile, thread)
      }
      return;
    case ChangeStep::Check:
      return checkPositions(parameter, head, place);
    case ChangeStep::Write:
      if (load<uint64_t>(parameter.result) != allAscend) return;
      TENSORFERRY_FOR_SIZE(head.size, writeChanges, parameter, head, place)
      return;
  }
}

}  // namespace
}  // namespace tensorferry::gpu
