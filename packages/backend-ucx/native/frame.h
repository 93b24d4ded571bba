// SPDX-License-Identifier: Apache-2.0
/*
 * The header of every message between two endpoints, little-endian. The bytes of a chunk, or what a layout says, follow.
 *
 * Plain values; any thread. Invariant: a ticket is a keyed code that only its sender and its receiver know, and every
 * message carries it: UCX does not say from whom a message comes.
 */
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace tensorferry::ucx {

static_assert(std::endian::native == std::endian::little, "Frames are written as they lie in memory.");

using Ticket = std::array<uint8_t, 16>;

enum class FrameKind : uint32_t {
  /** Is the peer there? It is answered by `welcome`, also while a transfer is under way. */
  hello = 1,
  welcome,
  /** The receiver can take this run of a program: its memory waits. `chunk` is the last run that it has whole. */
  ready,
  /** The sender wants to know where chunks may be written, which `layout` says. */
  layoutWanted,
  layout,
  /** Bytes of a run. */
  chunk,
  /** The sender has written `chunk` bytes of the run where the layout says, and they have arrived. */
  done,
  /** The receiver has the run whole. */
  have,
  /** The receiver does not take this run any more; what the sender writes, it stops first and then answers `stopped`. */
  withdrawn,
  /** The sender writes nothing of this run any more, and will not. */
  stopped,
};

struct Frame {
  FrameKind kind;
  uint32_t program;
  /** Who sends it, and its ticket. */
  uint32_t rank;
  uint32_t reserved;
  Ticket ticket;
  uint64_t run;
  uint64_t chunk;
  /** Of what the program exchanges: both ends mean the same parts. */
  uint64_t digest;
};
static_assert(sizeof(Frame) == 56);

/** All chunks but the last of a stream have this many bytes. */
inline constexpr uint64_t chunkBytes = uint64_t{256} << 10;

}  // namespace tensorferry::ucx
