// SPDX-License-Identifier: Apache-2.0
/*
 * How a test steers the simulated GPU driver and reads what it found. Part of the library's C interface; any thread.
 *
 * Settings are text: `key=value`, separated by commas, semicolons or white space, from the environment variable
 * TENSORFERRY_GPU_SIMULATOR at the first call and from `tensorferry_sim_configure` at any time. Keys:
 *
 *   devices=2            number of devices (0: cudaGetDeviceCount answers cudaErrorNoDevice)
 *   seed=1               order of work, poison, cuts of copies into pieces
 *   memory=8g            bytes of each device (suffix k, m, g)
 *   capability=9.0       compute capability
 *   processors=4         multiprocessors
 *   compiler=121         newest architecture that the run-time compiler knows (sm_121); it refuses the option for newer ones
 *   name=TEXT            name of the devices, without white space
 *   peers=all            or none, or pairs such as 0-1+2-3 (either direction): which devices can access each other
 *   ipc=1                0: no memory is exportable (legacy CUDA IPC), as with virtual-memory allocators
 *   node=NAME            processes with different names act as if on different machines (IPC refuses, devices are others)
 *   duplicates=0         1: NCCL accepts two ranks on one device
 *   pace=3               milliseconds between the steps of work that nobody waits for; 0: never
 *   query=50             percent of queries that let some work go on
 *   stuck=20000          milliseconds without progress after which a wait ends with the violation "stuck"
 *   report=FOLDER        write FOLDER/PID.json when the process exits
 *   fail=FUNCTION:N:CODE   the N-th call from now on answers CODE and does nothing (N = *: every call)
 *   hang=FUNCTION:N        the N-th call blocks until `clear`, reset, or `stuck` milliseconds have passed
 *   stall=FUNCTION:N       the work that the N-th call queues never runs (until its communicator is aborted, or reset)
 *   late=FUNCTION:N:CODE   the work that the N-th call queues fails: its device answers CODE from then on
 *   clear=faults           forgets all fail, hang, stall and late
 *   release=stalls         lets work go on that was stalled so far
 *
 * A setting counts from the moment it is made; live objects keep what they were made with.
 *
 * Names of HIP count as the CUDA names of the same functions.
 *
 * Violations, each recorded once or more where it is found, also where CUDA itself would answer success:
 *   memory     bad-free double-free free-in-use free-while-open out-of-bounds use-after-free write-after-free
 *              guard-overwritten bad-address wrong-direction
 *   handles    bad-handle double-destroy use-after-destroy wrong-device no-context call-in-host-function
 *   kernels    kernel-parameter launch-shape peer-access-not-enabled illegal-address
 *   processes  ipc-open-own ipc-open-freed bad-ipc-handle double-close close-in-use import-after-free import-after-destroy
 *   NCCL       nccl-before-success nccl-duplicate-device nccl-rank-twice nccl-size-mismatch group-not-started
 *   itself     stuck bad-setting
 *
 * The report is JSON:
 *   { "violations": [{ "name": TEXT, "detail": TEXT }], "violationCount": N, "pending": N,
 *     "live": { "memory": N, "memoryBytes": N, "virtualMemory": N, "hostMemory": N, "hostRegistrations": N, "streams": N,
 *               "events": N, "importedMemory": N, "importedEvents": N, "modules": N, "programs": N, "communicators": N },
 *     "calls": { FUNCTION: N }, "launches": { KERNEL: N },
 *     "bytes": { "hostToDevice": N, "deviceToHost": N, "deviceToDevice": N, "peer": N, "hostToHost": N, "set": N,
 *                "ncclSent": N, "ncclReceived": N },
 *     "nccl": { "groups": N, "operations": N, "maxGroup": N, "maxGroupPerPeer": N } }
 * "peer" counts copies between devices or to imported memory. "deviceToDevice" stays on one device.
 */
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Answers 0, or -1 when a part of the text was not understood (the rest counts; the violation "bad-setting" names it). */
int tensorferry_sim_configure(const char* text);

/** Writes the report, cut at `size` - 1 characters and ended by a zero; answers the length of all of it. */
size_t tensorferry_sim_report(char* buffer, size_t size);

/** Drops all work, objects, memory, counts and violations, ends every wait inside, and reads the environment again. */
void tensorferry_sim_reset(void);

/** Memory of the current device that cannot be exported by cudaIpcGetMemHandle; null when there is none left. */
void* tensorferry_sim_allocate_virtual(size_t size);

/** Answers a cudaError_t. cudaFree refuses such memory. */
int tensorferry_sim_free_virtual(void* pointer);

/** Lets all work run that can run now; answers how much is still queued. */
size_t tensorferry_sim_settle(void);

#ifdef __cplusplus
}
#endif
