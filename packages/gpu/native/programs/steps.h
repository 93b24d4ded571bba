// SPDX-License-Identifier: Apache-2.0
/*
 * A program's table of steps, checked and as structs. Pure; any thread. The form of the table is in StepTable.ts.
 *
 * Invariant: of a parsed program, events are recorded before they are waited for, groups are balanced and hold nothing but
 * sends and receives of their stream, spans begin once and then end once, and numbers are in range. That addresses are
 * valid is the caller's promise.
 */
#pragma once

#include <cstdint>
#include <vector>

#include <tensorferry/replay/ring_words.h>
#include <tensorferry/status.h>
#include <tensorferry_gpu/stream_calls.h>

namespace tensorferry::gpu {

enum class StepKind : uint8_t {
  Copy = 1,
  Moves,
  Reduce,
  Record,
  Wait,
  BeginGroup,
  Send,
  Receive,
  EndGroup,
  Span,
  Progress,
  Spin,
  Call,
  Quantize,
  Changes,
  Product,
  Digest,
  Ring,
  HostCopy,
};

struct Step {
  StepKind kind;
  uint8_t stream;
  /** Of a span: whether it ends. */
  bool isEnd = false;
  /** Table of moves, reduction, event, peer, span, call or launch of a ring. */
  uint32_t number = 0;
  /** Destination of a copy, the memory of a send or receive, or of the result of changes or digests. */
  uint64_t address = 0;
  uint64_t source = 0;
  /** Bytes, or nanoseconds of a spin. */
  uint64_t amount = 0;
};

/** Where the own table of a reduction, block scaling or changes lies in the table of steps. */
struct WordRange {
  size_t first, count;
};

struct StepList {
  std::vector<Step> steps;
  std::vector<WordRange> reductions, quantizations, changes, products, digests;
  /** By value: launches of a ring's kernel have no tables. */
  std::vector<RingParameter> rings;
  /** Words of calls, and where each call's own lie among them. */
  std::vector<uint64_t> callWords;
  std::vector<WordRange> calls;
  size_t events = 0, spans = 0;
  bool usesCommunicator = false;
};

struct StepLimits {
  size_t moveTables;
  /** Ranks of the communicator; 0 where there is none. */
  uint32_t ranks;
  /** Who takes part; null where nobody does. */
  const StreamCalls* calls = nullptr;
};

inline constexpr uint64_t eventLimit = 65'536;

/** Parses a table. `item` of a failure is the number of the step. Zero-size copies and messages are dropped. */
Result<StepList> parseSteps(const uint64_t* words, size_t count, const StepLimits& limits);

}  // namespace tensorferry::gpu
