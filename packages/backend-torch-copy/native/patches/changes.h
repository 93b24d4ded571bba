// SPDX-License-Identifier: Apache-2.0
/*
 * Searches for changed elements of tensors, and their writing.
 *
 * Made on the JS thread, run on pool threads. Invariant: what a search writes is in the order of positions, whichever thread
 * found it; a writing looks at every position before it writes one.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <tensorferry/napi_jobs.h>

namespace tensorferry {

/**
 * From a table as ChangeTable.ts makes it, or InvalidArgument. The job gives a number: of changes that were found; or, of a
 * writing, the place of the first position that it cannot take, or -1 where it wrote all.
 */
Result<std::shared_ptr<Job>> makeChangeJob(const uint64_t* words, size_t count);

}  // namespace tensorferry
