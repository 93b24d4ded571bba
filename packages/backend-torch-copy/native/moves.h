// SPDX-License-Identifier: Apache-2.0
/*
 * Strided copies, casts, fills and reads of other processes' memory, as one job over one table of moves.
 *
 * Owns how moves are cut into work items. Parsing happens on the JS thread, execution on pool threads.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <tensorferry/moves.h>
#include <tensorferry/napi_jobs.h>
#include <tensorferry/status.h>

namespace tensorferry {

/** Parses a table and cuts its moves into items that threads can share. `refuseOverlap` as in `parseMoves`. */
Result<MoveList> parseItems(const uint64_t* words, size_t count, bool refuseOverlap);

/** Runs one normalised move whose source is in this process; `past` stores past the caches where that is possible. */
void runLocalMove(const Move& move, bool past) noexcept;

std::shared_ptr<Job> makeMoveJob(MoveList items);

}  // namespace tensorferry
