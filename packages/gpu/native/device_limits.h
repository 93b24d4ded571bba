// SPDX-License-Identifier: Apache-2.0
/*
 * Numbers that hold for every device.
 */
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorferry::gpu {

/** Streams of a device. */
inline constexpr size_t streamCount = 8;

/** Longest region of memory: more than any device has, and far from where sums of sizes would wrap. */
inline constexpr uint64_t byteLimit = uint64_t{1} << 44;

}  // namespace tensorferry::gpu
