// SPDX-License-Identifier: Apache-2.0
/*
 * Sums of a base and a product of two narrow matrices.
 *
 * Made on the JS thread, run on pool threads. Invariant: the bits do not depend on how the work is spread.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <tensorferry/napi_jobs.h>

namespace tensorferry {

/** From a table as ProductTable.ts makes it, or InvalidArgument. */
Result<std::shared_ptr<Job>> makeProductJob(const uint64_t* words, size_t count);

}  // namespace tensorferry
