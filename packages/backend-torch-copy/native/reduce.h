// SPDX-License-Identifier: Apache-2.0
/*
 * Reductions of several tensors into one, element by element, in the order of the operands. Parsed on the JS thread,
 * executed on pool threads.
 *
 * Table, in 64-bit words: operation, element type, dimensions, operands, destination address, one address per operand,
 * then the shape, the destination's strides and each operand's strides, in elements.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <tensorferry/napi_jobs.h>

namespace tensorferry {

Result<std::shared_ptr<Job>> makeReduceJob(const uint64_t* words, size_t count);

}  // namespace tensorferry
