// SPDX-License-Identifier: Apache-2.0
/*
 * The source of all kernels as one text without includes, for the run-time compilers. Constant; any thread.
 *
 * Options that keep the bits: NVRTC `--std=c++17 --fmad=false` (and never `--use_fast_math`, `--ftz=true`,
 * `--prec-div=false`); hipRTC `-std=c++17 -ffp-contract=off` (and never `-ffast-math` or
 * `-fgpu-flush-denormals-to-zero`). Kernels: tensorferry_move, tensorferry_reduce, tensorferry_quantize,
 * tensorferry_forms, tensorferry_tiles, tensorferry_groups, tensorferry_compare, tensorferry_changes,
 * tensorferry_products, tensorferry_digest, tensorferry_ring, tensorferry_spin (not mangled).
 */
#pragma once

#include <cstddef>

namespace tensorferry::gpu {

extern const char* const kernelSource;
extern const size_t kernelSourceLength;

/** Parts that `TENSORFERRY_PART` chooses, from 1 on: each an image of its own. */
inline constexpr unsigned kernelParts = 5;

}  // namespace tensorferry::gpu
