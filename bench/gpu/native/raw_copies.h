// SPDX-License-Identifier: Apache-2.0
/*
 * The vendor's copy function alone, in a native loop: what the link carries, and what each way of telling that a copy has
 * ended costs it. For comparisons.
 */
#pragma once

#include <cstddef>
#include <cstdint>

#include <tensorferry/cancel.h>
#include <tensorferry_gpu/gpu_api.h>
#include <tensorferry_gpu/gpu_status.h>

namespace tensorferry::gpu {

/** What stands behind copies. */
enum class RawSignal : uint32_t {
  Nothing = 0,
  /** An event that tells time, or that does not. */
  TimedEvent = 1,
  Event = 2,
  /** A number that the device writes to host memory. */
  Value = 3,
};
inline constexpr uint32_t lastRawSignal = 3;

/** Dense slots, one behind the other on either side, and how they are copied. */
struct RawSlots {
  uint64_t destination, source;
  size_t bytes, slots;
  RawSignal signal;
  /** Copies take turns among so many streams. */
  size_t streams;
  /** The signal stands behind every so many copies of a stream. */
  size_t every;
};

/** Seconds until all copies were queued, and until they had ended. */
struct RawTimes {
  double submitting = 0, all = 0;
};

/** Makes so many copies, slot by slot, on streams of its own. Waits busily until they have ended: not for the JS thread. */
Result<RawTimes> timeRawCopies(const GpuApi& api, int ordinal, const RawSlots& raw, size_t count,
                               const CancelToken& token);

}  // namespace tensorferry::gpu
