// SPDX-License-Identifier: Apache-2.0
/*
 * The kernels as plain C++, one thread after another, for the simulated driver. Any thread.
 */
#include <cstdlib>

#include <tensorferry_gpu/simulated_kernel.h>
#include "move_kernels.h"

namespace tensorferry::gpu {
namespace {

template <typename Parameter, void (*body)(const Parameter&, const Place&)>
void runThreads(const void* parameter, unsigned gridX, unsigned blockX) {
  const auto& given = *static_cast<const Parameter*>(parameter);
  for (unsigned block = 0; block < gridX; block++)
    for (unsigned thread = 0; thread < blockX; thread++) body(given, Place{block, gridX, thread});
}

/** Fewer threads would leave work undone, and more would do it twice: nobody launches that by intent. */
template <typename Parameter, void (*body)(const Parameter&, const Place&), unsigned threads = blockThreads>
void runBlocks(const void* parameter, unsigned gridX, unsigned blockX) {
  if (blockX != threads) std::abort();
  runThreads<Parameter, body>(parameter, gridX, blockX);
}

constexpr SimulatedKernel kernels[] = {
    {"tensorferry_move", sizeof(MoveParameter), &runBlocks<MoveParameter, runMove>},
    {"tensorferry_reduce", sizeof(ReduceParameter), &runBlocks<ReduceParameter, runReduce>},
    {"tensorferry_quantize", sizeof(QuantizeParameter), &runBlocks<QuantizeParameter, runQuantize>},
    {"tensorferry_forms", sizeof(FormParameter), &runBlocks<FormParameter, runForms>},
    {"tensorferry_tiles", sizeof(FormParameter), &runBlocks<FormParameter, runTiles, formThreads>},
    {"tensorferry_groups", sizeof(FormParameter), &runBlocks<FormParameter, runGroups, formThreads>},
    {"tensorferry_compare", sizeof(CompareParameter), &runBlocks<CompareParameter, runCompare>},
    {"tensorferry_changes", sizeof(ChangeParameter), &runBlocks<ChangeParameter, runChanges>},
    {"tensorferry_products", sizeof(ProductParameter), &runBlocks<ProductParameter, runProducts, productThreads>},
    {"tensorferry_digest", sizeof(DigestParameter), &runBlocks<DigestParameter, runDigest, digestThreads>},
    {"tensorferry_ring", sizeof(RingParameter), &runBlocks<RingParameter, runRing>},
    {"tensorferry_spin", sizeof(SpinParameter), &runThreads<SpinParameter, runSpin>},
};

}  // namespace
}  // namespace tensorferry::gpu

extern "C" const SimulatedKernel* tensorferry_simulated_kernels(size_t* count) {
  *count = sizeof tensorferry::gpu::kernels / sizeof tensorferry::gpu::kernels[0];
  return tensorferry::gpu::kernels;
}
