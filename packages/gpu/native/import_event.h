// SPDX-License-Identifier: Apache-2.0
/*
 * Events of other processes: waited for once, before memory is used that was shared together with them.
 *
 * On a thread that may block, with nothing held: the wait asks the event from time to time, and cancelling wakes it.
 * Invariant: an event that was opened is given back before the wait ends. Nothing here touches the event's owner.
 */
#pragma once

#include <chrono>

#include <tensorferry/cancel.h>

#include "device.h"
#include "waiting.h"

namespace tensorferry::gpu {

/** Ends when the event has been reached as often as its owner had recorded it. DeadlineExceeded where that takes too long. */
Status awaitImportedEvent(Device& device, const IpcHandle& handle, std::chrono::milliseconds limit, Waker& waker,
                          const CancelToken& token);

}  // namespace tensorferry::gpu
