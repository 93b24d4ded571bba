// SPDX-License-Identifier: Apache-2.0
/*
 * How the simulated GPU driver finds the kernels that were compiled as plain C++.
 *
 * Each kernel takes exactly one parameter: a struct by value, `parameterBytes` long. `run` executes every block and thread
 * of a one-dimensional launch, one after the other, and returns when all are done.
 */
#pragma once

#include <cstddef>

struct SimulatedKernel {
  const char* name;
  size_t parameterBytes;
  void (*run)(const void* parameter, unsigned gridX, unsigned blockX);
};

extern "C" const SimulatedKernel* tensorferry_simulated_kernels(size_t* count);
