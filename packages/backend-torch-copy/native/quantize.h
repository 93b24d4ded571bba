// SPDX-License-Identifier: Apache-2.0
/*
 * Block scaling of one tensor, to and from float8_e4m3fn data with one scale byte per 32 elements of the last dimension.
 * Parsed on the JS thread, executed on pool threads.
 *
 * Table, in 64-bit words: 0 to quantize or 1 to dequantize, scale rule, plain type, dimensions; addresses of the plain
 * tensor, of data and of scales; the shape; strides of the plain tensor, of data and of scales, in elements.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <tensorferry/napi_jobs.h>

namespace tensorferry {

Result<std::shared_ptr<Job>> makeQuantizeJob(const uint64_t* words, size_t count);

}  // namespace tensorferry
