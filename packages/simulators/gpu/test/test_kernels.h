// SPDX-License-Identifier: Apache-2.0
/*
 * The parameters of the test kernels.
 */
#pragma once

#include <cstdint>

/** target[i] = source[i] + increment. */
struct AddParameter {
  uint32_t* target;
  const uint32_t* source;
  uint64_t count;
  uint32_t increment;
  uint32_t unused;
};

/** *table[i] = value, where the table lies in device memory. */
struct ScatterParameter {
  uint32_t* const* table;
  uint64_t count;
  uint32_t value;
  uint32_t unused;
};

/** target[i] = *table[i], where the table lies in device memory. */
struct GatherParameter {
  uint32_t* target;
  const uint32_t* const* table;
  uint64_t count;
};
