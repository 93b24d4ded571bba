// SPDX-License-Identifier: Apache-2.0
/*
 * Conversions to and from quantized forms by any rule, and largest magnitudes: what quantize.h has no faster way for.
 * Made on the JS thread, executed on pool threads.
 */
#pragma once

#include <memory>

#include <tensorferry/napi_jobs.h>
#include <tensorferry/tables/quantize_table.h>

namespace tensorferry {

std::shared_ptr<Job> makeFormsJob(QuantizeTable table);

}  // namespace tensorferry
