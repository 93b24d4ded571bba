// SPDX-License-Identifier: Apache-2.0
/*
 * Runs a kernel so that a wild address ends the kernel, not the process, as on a device.
 */
#pragma once

#include <cstdint>

#include <tensorferry_gpu/simulated_kernel.h>

namespace tensorferry::gpu::simulator {

/** False when the kernel touched memory that is not there; `address` is where. Under the world's lock. */
bool runGuarded(const SimulatedKernel& kernel, const void* parameter, unsigned grid, unsigned block,
                uintptr_t* address);

}  // namespace tensorferry::gpu::simulator
