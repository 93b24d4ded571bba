// SPDX-License-Identifier: Apache-2.0
/*
 * A replay ring on the device: the steps of ring_steps.h over memory that kernels reach. An index has a thread, and a segment
 * or a row that is gathered a team.
 *
 * Invariant: beyond a team, threads exchange nothing within a launch but weights that only grow (`raise`), and words of which
 * all write the same.
 */
#pragma once

#include <tensorferry/replay/ring_steps.h>
#include "../device.h"
#include "../locate.h"
#include "../parameters.h"

namespace tensorferry::gpu {

using tensorferry::RingParameter;

namespace {

/** Memory of the device, by address. */
struct RingMemory {
  static constexpr bool isTogether = teamsAreTogether;
  template <typename T>
  TENSORFERRY_DEVICE static T load(uint64_t address) {
    return gpu::load<T>(address);
  }
  template <typename T>
  TENSORFERRY_DEVICE static void store(uint64_t address, T value) {
    gpu::store<T>(address, value);
  }
  TENSORFERRY_DEVICE static void raise(uint64_t address, uint32_t value) { gpu::raise(address, value); }

  template <typename T>
  TENSORFERRY_DEVICE static void copyBy(uint64_t to, uint64_t from, uint64_t bytes, uint32_t lane, uint32_t lanes) {
    const uint64_t step = sizeof(T) * lanes;
    uint64_t at = sizeof(T) * lane;
    TENSORFERRY_KEEP_LOOP
    for (; at + (inFlight - 1) * step < bytes; at += inFlight * step) {
      T values[inFlight];
      TENSORFERRY_UNROLL
      for (uint32_t k = 0; k < inFlight; k++) values[k] = gpu::load<T>(from + at + k * step);
      TENSORFERRY_UNROLL
      for (uint32_t k = 0; k < inFlight; k++) gpu::store<T>(to + at + k * step, values[k]);
    }
    TENSORFERRY_KEEP_LOOP
    for (; at < bytes; at += step) gpu::store<T>(to + at, gpu::load<T>(from + at));
  }

  /** The threads of a team copy as wide as the addresses allow. */
  TENSORFERRY_DEVICE static void copy(uint64_t to, uint64_t from, uint64_t bytes, uint32_t lane, uint32_t lanes) {
    const uint64_t bits = to | from | bytes;
    if (bits % 16 == 0) return copyBy<Vector>(to, from, bytes, lane, lanes);
    if (bits % 8 == 0) return copyBy<uint64_t>(to, from, bytes, lane, lanes);
    if (bits % 4 == 0) return copyBy<uint32_t>(to, from, bytes, lane, lanes);
    if (bits % 2 == 0) return copyBy<uint16_t>(to, from, bytes, lane, lanes);
    copyBy<uint8_t>(to, from, bytes, lane, lanes);
  }

  /** What differs between the shares of all threads of a team; plain C++ asks for each. */
  template <typename ShareOf>
  TENSORFERRY_DEVICE static RingRandom differenceOf(const RingLanes& own, const ShareOf& shareOf) {
    const RingRandom share = shareOf(own);
    const auto wordOf = [&](uint32_t RingRandom::* word) {
      return differenceOfTeam(share.*word, [&](uint32_t lane) { return shareOf(RingLanes{lane, own.lanes}).*word; });
    };
    return {wordOf(&RingRandom::a), wordOf(&RingRandom::b), wordOf(&RingRandom::c), wordOf(&RingRandom::d)};
  }
  template <typename ShareOf>
  TENSORFERRY_DEVICE static uint64_t sumOf(const RingLanes& own, const ShareOf& shareOf) {
    return sumOfTeam(shareOf(own), [&](uint32_t lane) { return shareOf(RingLanes{lane, own.lanes}); });
  }
};

TENSORFERRY_DEVICE void runRing(const RingParameter& parameter, const Place& place) {
  const uint32_t lanes = ringIsShared(parameter.step) ? teamThreads : 1;
  const uint64_t indices = ringIndices(parameter), teams = static_cast<uint64_t>(place.blocks) * (blockThreads / lanes);
  const uint64_t begin = static_cast<uint64_t>(place.block) * (blockThreads / lanes) + place.thread / lanes;
  RingSteps<RingMemory>::run(parameter, {begin, indices, teams, {place.thread % lanes, lanes}});
}

}  // namespace
}  // namespace tensorferry::gpu
