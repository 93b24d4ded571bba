// SPDX-License-Identifier: Apache-2.0
/*
 * Quantized forms of one tensor, to and from, and largest magnitudes. Parsed on the JS thread, executed on pool threads.
 *
 * The table is that of QuantizeTable.ts in @tensorferry/native, read by tensorferry/tables/quantize_table.h.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <tensorferry/napi_jobs.h>

namespace tensorferry {

Result<std::shared_ptr<Job>> makeQuantizeJob(const uint64_t* words, size_t count);

}  // namespace tensorferry
