// SPDX-License-Identifier: Apache-2.0
/*
 * The kernels. One source: NVRTC and hipRTC compile it at run time, nvcc in tests, plain C++ for the simulated driver.
 *
 * Invariants: a kernel takes one struct by value, and threads exchange nothing that they could not find out alone,
 * or from those before them in a team (`largestAmong`, `largestOfThreads`, `placesAmong`), so that running one thread after the other is a legal execution. Any number
 * of blocks gives the same result. Blocks have `blockThreads` threads.
 */
#pragma once

#include "cast_kernels.h"
#include "compare_kernel.h"
#include "copy_kernels.h"
#include "device.h"
#include "digests/digest_kernel.h"
#include "forms_kernel.h"
#include "parameters.h"
#include "patches/change_kernel.h"
#include "patches/product_kernel.h"
#include "patches/ring_kernel.h"
#include "quantize_kernel.h"
#include "reduce_kernel.h"
#include "turn_kernels.h"

namespace tensorferry::gpu {
namespace {

TENSORFERRY_DEVICE UnitRecord unitAt(const MoveParameter& parameter, uint32_t index) {
  return view<UnitRecord>(parameter.table + 8ull * parameter.unitsAt +
                          sizeof(UnitRecord) * static_cast<uint64_t>(index));
}

TENSORFERRY_DEVICE void runMove(const MoveParameter& parameter, const Place& place) {
  TENSORFERRY_KEEP_LOOP
  for (uint32_t u = place.block; u < parameter.unitCount; u += place.blocks) {
    const UnitRecord unit = unitAt(parameter, u);
    const uint64_t record = parameter.table + 8ull * unit.record;
    const Path path = view<MoveRecord>(record).path;
    if (path == Path::Runs) {
      moveRuns(parameter.table, unit, place);
    } else if (path == Path::Pieces) {
      movePieces(record, view<MoveRecord>(record).destinationWidth, unit, place);
    } else if (path == Path::Turns) {
      moveTurns(record, unit, place);
    } else {
      moveCasts(record, unit, place);
    }
  }
}

TENSORFERRY_DEVICE void runCompare(const CompareParameter& parameter, const Place& place) {
  Difference found = noDifference;
  TENSORFERRY_KEEP_LOOP
  for (uint32_t u = place.block; u < parameter.move.unitCount; u += place.blocks) {
    const UnitRecord unit = unitAt(parameter.move, u);
    comparePieces(parameter.move.table + 8ull * unit.record, unit, place, found);
  }
  if (found.bytes == 0) return;
  addTo(parameter.difference, found.bytes);
  lower(parameter.difference + 8, found.first);
}

TENSORFERRY_DEVICE void runReduce(const ReduceParameter& parameter, const Place& place) {
  for (uint32_t r = 0; r < parameter.records; r++)
    reduceRecord(parameter.table + 8ull * r * parameter.recordWords, place);
}

TENSORFERRY_DEVICE void runSpin(const SpinParameter& parameter, const Place&) {
  spinFor(parameter.nanoseconds, parameter.clockRate);
}

}  // namespace
}  // namespace tensorferry::gpu

#ifdef TENSORFERRY_ON_DEVICE

#define TENSORFERRY_KERNEL_FOR(NAME, PARAMETER, BODY, THREADS, RESIDENT)                                        \
  extern "C" __global__ void __launch_bounds__(tensorferry::gpu::THREADS, RESIDENT / tensorferry::gpu::THREADS) \
      NAME(const tensorferry::gpu::PARAMETER parameter) {                                                       \
    tensorferry::gpu::BODY(parameter, tensorferry::gpu::Place{blockIdx.x, gridDim.x, threadIdx.x});             \
  }

// Registers for 1024 threads of a processor.
#define TENSORFERRY_KERNEL(NAME, PARAMETER, BODY, THREADS) TENSORFERRY_KERNEL_FOR(NAME, PARAMETER, BODY, THREADS, 1024)

// Parts are compiled at the same time (kernelParts); without a number all of them are.
#ifndef TENSORFERRY_PART
#define TENSORFERRY_PART 0
#endif
#if TENSORFERRY_PART == 0 || TENSORFERRY_PART == 1
TENSORFERRY_KERNEL(tensorferry_move, MoveParameter, runMove, blockThreads)
TENSORFERRY_KERNEL(tensorferry_reduce, ReduceParameter, runReduce, blockThreads)
TENSORFERRY_KERNEL(tensorferry_compare, CompareParameter, runCompare, blockThreads)
TENSORFERRY_KERNEL(tensorferry_forms, FormParameter, runForms, blockThreads)
TENSORFERRY_KERNEL(tensorferry_ring, RingParameter, runRing, blockThreads)
TENSORFERRY_KERNEL(tensorferry_spin, SpinParameter, runSpin, blockThreads)
#endif
#if TENSORFERRY_PART == 0 || TENSORFERRY_PART == 2
TENSORFERRY_KERNEL(tensorferry_quantize, QuantizeParameter, runQuantize, blockThreads)
TENSORFERRY_KERNEL(tensorferry_changes, ChangeParameter, runChanges, blockThreads)
// A thread keeps the factors of its words, and reads eight vectors at once: 512 threads are enough for the memory.
TENSORFERRY_KERNEL_FOR(tensorferry_digest, DigestParameter, runDigest, digestThreads, 512)
#endif
#if TENSORFERRY_PART == 0 || TENSORFERRY_PART == 3
TENSORFERRY_KERNEL(tensorferry_tiles, FormParameter, runTiles, formThreads)
#endif
#if TENSORFERRY_PART == 0 || TENSORFERRY_PART == 4
TENSORFERRY_KERNEL(tensorferry_groups, FormParameter, runGroups, formThreads)
#endif
#if TENSORFERRY_PART == 0 || TENSORFERRY_PART == 5
// A thread keeps sums of 64 bits: registers for half as many threads.
TENSORFERRY_KERNEL_FOR(tensorferry_products, ProductParameter, runProducts, productThreads, 512)
#endif

#endif
