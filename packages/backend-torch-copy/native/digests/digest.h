// SPDX-License-Identifier: Apache-2.0
/*
 * Digests of the elements of tensors.
 *
 * Made on the JS thread, run on pool threads. Invariant: what is found does not depend on how the work is spread.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <tensorferry/napi_jobs.h>

namespace tensorferry {

/**
 * From a table as DigestTable.ts makes it, or InvalidArgument. The job gives a BigUint64Array: two halves of 64 bits for each
 * part, the low one first.
 */
Result<std::shared_ptr<Job>> makeDigestJob(const uint64_t* words, size_t count);

}  // namespace tensorferry
