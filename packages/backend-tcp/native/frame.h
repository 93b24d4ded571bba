// SPDX-License-Identifier: Apache-2.0
/*
 * What travels on a lane after the handshake: frames of 32 bytes, little-endian; a chunk's frame is followed by its bytes.
 * Chunks go from the dialer to the listener, everything else the other way.
 *
 * Plain values; any thread.
 */
#pragma once

#include <bit>
#include <cstdint>

namespace tensorferry::tcp {

static_assert(std::endian::native == std::endian::little, "Frames are written as they lie in memory.");

enum class FrameKind : uint32_t {
  /** The receiver can take this run of a program: its memory waits. `chunk` is the last run that it has whole. */
  ready = 1,
  /** Bytes of a run. */
  chunk,
  /** The receiver has the chunk. */
  have,
  /** The receiver does not take this run any more, or never did. */
  withdrawn,
};

struct Frame {
  FrameKind kind;
  uint32_t program;
  uint64_t run;
  uint64_t chunk;
  /** Bytes that follow. */
  uint64_t length;
};
static_assert(sizeof(Frame) == 32);

/** All chunks but the last of a stream have this many bytes. */
inline constexpr uint64_t chunkBytes = uint64_t{1} << 20;

}  // namespace tensorferry::tcp
