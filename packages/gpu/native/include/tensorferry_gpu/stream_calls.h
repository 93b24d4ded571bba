// SPDX-License-Identifier: Apache-2.0
/*
 * How another addon takes part in programs: its library's work goes onto their streams, as steps of the kind "call".
 *
 * An object is handed from one addon to the other as an external in JavaScript; both are built from the same headers, which
 * the version in the tag says. Members are called by the device's worker, with the device current, except where it says
 * otherwise. Nothing here waits for a device.
 * Invariant: who gives an object keeps its code loaded until the process ends.
 */
#pragma once

#include <cstddef>
#include <cstdint>

#include <tensorferry/type_tags.h>

#include "gpu_status.h"

namespace tensorferry::gpu {

class StreamCalls {
 public:
  /** Its last digit is the version of this interface. */
  static constexpr napi_type_tag typeTag{0x4b7e0d2f96c14a31, 0x8d51e2a70f3bc601};
  static constexpr const char* kind = "taker of calls";
  virtual ~StreamCalls() = default;

  /** What is wrong with the words of a call; null where nothing is. JS thread. */
  virtual const char* problemOf(const uint64_t* words, size_t count) const noexcept = 0;

  /** Queues what the words say. */
  virtual Status enqueue(const uint64_t* words, size_t count, StreamHandle stream) noexcept = 0;

  /** Whether something happened that ends the run early; asked again and again while it lasts. */
  virtual Status look() noexcept = 0;

  /** The run has failed: lets go of everything on its streams that waits for others. Asked again until they are done. */
  virtual void giveUp() noexcept = 0;

  /** All streams are done; whether what they did counts. */
  virtual Status finish() noexcept = 0;
};

}  // namespace tensorferry::gpu
