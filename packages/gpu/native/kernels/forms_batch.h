// SPDX-License-Identifier: Apache-2.0
/*
 * The compiler of quantized forms, for that of block scaling only. Pure; any thread.
 */
#pragma once

#include <tensorferry/tables/quantize_table.h>

#include "batch.h"

namespace tensorferry::gpu {

/** A table for `tensorferry_forms`. */
Result<Reduction> compileForms(const QuantizeTable& table);

}  // namespace tensorferry::gpu
