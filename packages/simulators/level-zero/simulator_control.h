// SPDX-License-Identifier: Apache-2.0
/*
 * How a test steers the simulated Level Zero driver and reads what it found. Part of the library's C interface; any thread.
 *
 * The real loader opens the library where ZE_ENABLE_ALT_DRIVERS names it. Settings are text: `key=value`, separated by
 * white space, from the environment variable TENSORFERRY_LEVEL_ZERO_SIMULATOR at the first call and from
 * `tensorferry_level_zero_configure` at any time. Keys:
 *
 *   devices=1            number of devices
 *   seed=1               order of work, poison, cuts of copies into pieces
 *   memory=1g            bytes of each device (suffix k, m, g)
 *   name=TEXT            name of the devices, without white space
 *   api=1.4              version of the interface; from 1.7 on lists that keep the order are accepted
 *   timestamps=1         0: no events with times; tickBits=32: width of their counter
 *   import=1             0: the driver has no functions that import host memory
 *   hostmemory=1         0: no memory of the host can be allocated
 *   pace=2               milliseconds between the steps of work that nobody waits for; 0: never
 *   query=30             percent of queries that let some work go on
 *   report=FILE          write the report there when the process exits
 *   fail=FUNCTION:N:CODE the N-th call from now on answers CODE and does nothing (N = *: every call)
 *   lost=N               the device is lost after N more commands
 *   fault=early-signal   events are signalled when their command starts
 *   fault=forget-waits   commands do not wait for events
 *   fault=forget-order   barriers and lists that keep the order do nothing
 *   clear=faults         forgets all fail, lost and fault
 *
 * Work runs as late as it may: when somebody waits for it, when a query lets it, or at the pace. What does not depend on
 * each other runs in any order, in pieces that mix. A piece reads its source when it runs.
 *
 * Violations: bad-handle, destroy-in-use, free-in-use, bad-free, use-after-free, out-of-bounds, reset-in-use, signal-twice,
 * context-in-use, pool-in-use, bad-release, bad-setting.
 *
 * The report is JSON: { "violations": [{ "name": TEXT, "detail": TEXT }], "pending": N, "commands": N,
 *   "live": { "contexts": N, "lists": N, "pools": N, "events": N, "deviceMemory": N, "hostMemory": N, "imports": N },
 *   "calls": { FUNCTION: N } }
 */
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Answers 0, or -1 when a part of the text was not understood. */
int tensorferry_level_zero_configure(const char* text);

/** Writes the report, cut at `size` - 1 characters and ended by a zero; answers the length of all of it. */
size_t tensorferry_level_zero_report(char* buffer, size_t size);

/** Drops all work, objects, counts and violations, and reads the environment again. */
void tensorferry_level_zero_reset(void);

#ifdef __cplusplus
}
#endif
