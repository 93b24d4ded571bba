// SPDX-License-Identifier: Apache-2.0
/*
 * Casts: groups of four dense elements, or single elements wherever they lie, four to a thread either way.
 *
 * Invariant: a thread reads what it casts before it writes it, so that a region may be cast onto itself where both types
 * have one size. Rounding rules are those of casts.h.
 */
#pragma once

#include "device.h"
#include "elements_of_four.h"
#include "locate.h"
#include "parameters.h"

namespace tensorferry::gpu {
namespace {

/** Words of groups that a thread has read and not yet cast. */
inline constexpr uint32_t waitingWords = 16;

/** Reads groups, as many as fit. */
template <uint32_t size>
TENSORFERRY_DEVICE void loadGroups(uint32_t (&waiting)[waitingWords], const uint64_t (&from)[inFlight],
                                   uint32_t width) {
  constexpr uint32_t groups = waitingWords / size < inFlight ? waitingWords / size : inFlight;
  TENSORFERRY_UNROLL
  for (uint32_t k = 0; k < groups; k++) {
    uint32_t words[8];
    loadFour<size>(words, from[k], width);
    TENSORFERRY_UNROLL
    for (uint32_t i = 0; i < size; i++) waiting[k * size + i] = words[i];
  }
}

/** Takes the first group; the others move up. */
template <uint32_t size>
TENSORFERRY_DEVICE void takeGroup(uint32_t (&words)[8], uint32_t (&waiting)[waitingWords]) {
  TENSORFERRY_UNROLL
  for (uint32_t i = 0; i < size; i++) words[i] = waiting[i];
  TENSORFERRY_UNROLL
  for (uint32_t i = 0; i + size < waitingWords; i++) waiting[i] = waiting[i + size];
}

/** Reads single elements as one group. */
template <uint32_t size>
TENSORFERRY_DEVICE void gather(uint32_t (&waiting)[waitingWords], const uint64_t (&from)[inFlight], uint32_t width) {
  uint32_t words[8];
  TENSORFERRY_UNROLL
  for (uint32_t k = 0; k < four; k++) setElement<size>(words, k, loadElement<size>(from[k], width));
  TENSORFERRY_UNROLL
  for (uint32_t i = 0; i < size; i++) waiting[i] = words[i];
}

template <uint32_t size>
TENSORFERRY_DEVICE void scatter(const uint64_t (&to)[inFlight], uint32_t width, const uint32_t (&words)[8],
                                uint32_t limit) {
  TENSORFERRY_UNROLL
  for (uint32_t k = 0; k < four; k++)
    if (k < limit) storeElement<size>(to[k], width, elementOf<size>(words, k));
}

TENSORFERRY_DEVICE void moveCasts(uint64_t record, const UnitRecord& unit, const Place& place) {
  const MoveRecord& move = view<MoveRecord>(record);
  const uint64_t destination = move.destination, source = move.source;
  const uint32_t dimensionCount = move.dimensionCount, toType = move.destinationType, fromType = move.sourceType;
  const uint32_t toWidth = move.destinationWidth, fromWidth = move.sourceWidth;
  const uint32_t toSize = bytesOf(toType), fromSize = bytesOf(fromType);
  const bool inGroups = move.path == Path::CastsOfFour;
  // Groups of the widest elements are two at a time.
  const uint32_t atOnce = inGroups && fromSize == 8 ? 2 : inFlight;
  TENSORFERRY_KEEP_LOOP
  for (uint32_t i = place.thread; i < unit.count; i += atOnce * blockThreads) {
    uint32_t index[inFlight], waiting[waitingWords] = {};
    uint64_t to[inFlight], from[inFlight];
    TENSORFERRY_UNROLL
    for (uint32_t k = 0; k < inFlight; k++) {
      index[k] = unit.begin + least(i + k * blockThreads, unit.count - 1);
      to[k] = destination;
      from[k] = source;
    }
    locate(record + sizeof(MoveRecord), dimensionCount, index, to, from);
    const uint32_t left = (unit.count - i + blockThreads - 1) / blockThreads, limit = left < atOnce ? left : atOnce;
    if (inGroups) {
      TENSORFERRY_FOR_SIZE(fromSize, loadGroups, waiting, from, fromWidth)
    } else {
      TENSORFERRY_FOR_SIZE(fromSize, gather, waiting, from, fromWidth)
    }
    TENSORFERRY_KEEP_LOOP
    for (uint32_t round = 0; round < (inGroups ? limit : 1); round++) {
      uint32_t words[8] = {};
      TENSORFERRY_FOR_SIZE(fromSize, takeGroup, words, waiting)
      castFour(toType, fromType, words);
      if (inGroups) {
        TENSORFERRY_FOR_SIZE(toSize, storeFour, to[0], toWidth, words)
        TENSORFERRY_UNROLL
        for (uint32_t k = 0; k + 1 < inFlight; k++) to[k] = to[k + 1];
      } else {
        TENSORFERRY_FOR_SIZE(toSize, scatter, to, toWidth, words, limit)
      }
    }
  }
}

}  // namespace
}  // namespace tensorferry::gpu
