// SPDX-License-Identifier: Apache-2.0
/*
 * A batch of copies, casts and fills between memory of a device and of the host. On the device's worker.
 *
 * Invariant: when `runBatch` ends, nothing of the batch runs any more, also where it failed or was cancelled.
 */
#pragma once

#include <tensorferry/moves.h>

#include "device.h"

namespace tensorferry::xpu {

/** Parses and checks a table of moves. */
Result<MoveList> readBatch(const uint64_t* words, size_t count);

Status runBatch(Device& device, const MoveList& moves, const CancelToken& token, ProgressCounter& moved);

}  // namespace tensorferry::xpu
