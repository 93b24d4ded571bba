// SPDX-License-Identifier: Apache-2.0
/*
 * Kernels for the simulator's own tests: each takes one struct and touches memory as a device would.
 */
#include <tensorferry_gpu/simulated_kernel.h>

#include <cstdint>
#include <cstring>

#include "test_kernels.h"

namespace {

void add(const void* parameter, unsigned, unsigned) {
  AddParameter values;
  std::memcpy(&values, parameter, sizeof values);
  for (uint64_t index = 0; index < values.count; index++)
    values.target[index] = values.source[index] + values.increment;
}

void gather(const void* parameter, unsigned, unsigned) {
  GatherParameter values;
  std::memcpy(&values, parameter, sizeof values);
  for (uint64_t index = 0; index < values.count; index++) values.target[index] = *values.table[index];
}

void scatter(const void* parameter, unsigned, unsigned) {
  ScatterParameter values;
  std::memcpy(&values, parameter, sizeof values);
  for (uint64_t index = 0; index < values.count; index++) *values.table[index] = values.value;
}

constexpr SimulatedKernel kernels[] = {{"test_add", sizeof(AddParameter), add},
                                       {"test_gather", sizeof(GatherParameter), gather},
                                       {"test_scatter", sizeof(ScatterParameter), scatter}};

}  // namespace

extern "C" const SimulatedKernel* tensorferry_simulated_kernels(size_t* count) {
  *count = sizeof kernels / sizeof kernels[0];
  return kernels;
}
