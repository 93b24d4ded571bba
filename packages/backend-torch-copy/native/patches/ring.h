// SPDX-License-Identifier: Apache-2.0
/*
 * Steps of a replay ring in host memory.
 *
 * Made on the JS thread, run on pool threads. Invariant: steps happen one after the other, in their order; a gather at the
 * end is spread over threads.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <tensorferry/napi_jobs.h>

namespace tensorferry {

/** From a table as RingSteps.ts makes it, or InvalidArgument. */
Result<std::shared_ptr<Job>> makeRingJob(const uint64_t* words, size_t count);

}  // namespace tensorferry
