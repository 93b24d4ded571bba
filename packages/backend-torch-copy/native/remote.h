// SPDX-License-Identifier: Apache-2.0
/*
 * Reading another process's memory without its help (process_vm_readv). Any thread.
 *
 * Invariant: only bytes of the destination region are written; a lying peer can make the call fail, nothing more.
 */
#pragma once

#include <cstddef>
#include <cstdint>

#include <tensorferry/cancel.h>
#include <tensorferry/status.h>

#include "moves.h"

namespace tensorferry {

/** Runs one normalised move whose source is in the process `move.pid`. Stops between calls when told to. */
Status runRemoteMove(const Move& move, const Job& job);

/** Reads a few bytes at once. */
Status readProcess(int32_t pid, uint64_t address, void* into, size_t length);

}  // namespace tensorferry
