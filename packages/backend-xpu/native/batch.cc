// SPDX-License-Identifier: Apache-2.0
/*
 * See batch.h. Rows that are long or few are copied one by one; for the others the device has no command, so they pass
 * through host memory, where the processor arranges and casts them. Bytes between the rows of a destination are never
 * written, not even with what was there: somebody else may be writing them.
 */
#include "batch.h"

#include <chrono>

#include "host_moves.h"

namespace tensorferry::xpu {
namespace {

/** Rows at least so long, or so few, are worth a command each. */
constexpr uint64_t longRow = 512, fewRows = 64;
/** Commands between two looks at the token. */
constexpr size_t commandsPerTurn = 256;
/** Larger moves pass through the host in parts. */
constexpr uint64_t mostStaged = uint64_t{256} << 20;
constexpr auto patience = std::chrono::seconds(30);

/** A move by rows of bytes: `body(Rows)` for each group of rows at equal distances. */
template <typename Body>
Status eachRows(Move move, Body body) {
  Rows rows{0, 0, move.destinationSize, 1, 0, 0};
  auto& dimensions = move.dimensions;
  if (move.dimensionCount > 0 && dimensions[move.dimensionCount - 1u].destinationStep == move.destinationSize &&
      dimensions[move.dimensionCount - 1u].sourceStep == move.sourceSize)
    rows.length *= dimensions[--move.dimensionCount].length;
  if (move.dimensionCount > 0) {
    const Dimension& repeated = dimensions[--move.dimensionCount];
    rows.count = repeated.length;
    rows.destinationStep = static_cast<uint64_t>(repeated.destinationStep);
    rows.sourceStep = static_cast<uint64_t>(repeated.sourceStep);
  }
  Status status;
  Move outer = move;
  outer.destinationSize = 0;  // as in moveOnHost
  eachRun(outer, [&](int64_t to, int64_t from, uint64_t) {
    rows.destination = move.destination + static_cast<uint64_t>(to);
    rows.source = move.source + static_cast<uint64_t>(from);
    status = body(rows);
    return status.ok();
  });
  return status;
}

/** Bytes from the first to behind the last element of the source. */
uint64_t sourceSpan(const Move& move) noexcept {
  uint64_t span = move.sourceSize;
  for (size_t d = 0; d < move.dimensionCount; d++)
    span += (move.dimensions[d].length - 1) * static_cast<uint64_t>(move.dimensions[d].sourceStep);
  return span;
}

/** Drivers refuse to copy a region onto itself, which changes nothing anyway. */
bool isOntoItself(const Move& move) noexcept {
  if (move.destination != move.source || move.destinationType != move.sourceType) return false;
  return std::all_of(move.dimensions.begin(), move.dimensions.begin() + move.dimensionCount,
                     [](const Dimension& one) { return one.destinationStep == one.sourceStep; });
}

class BatchRun {
 public:
  BatchRun(Device& device, const CancelToken& token) noexcept : device_(device), token_(token) {}

  ~BatchRun() {
    for (void* memory : staging_) device_.driver().freeStaging(memory);
  }

  Status add(const Move& move) {
    if (token_.isCancelled()) return cancelled();
    if (move.kind == MoveKind::Fill) return fill(move);
    if (isOntoItself(move)) return {};
    const bool toDevice = device_.owns(move.destination), fromDevice = device_.owns(move.source);
    if (!toDevice && !fromDevice) {
      moveOnHost(move, reinterpret_cast<uint8_t*>(move.destination), reinterpret_cast<const uint8_t*>(move.source));
      return {};
    }
    return isForCommands(move) ? submit(move) : throughHost(move, toDevice, fromDevice);
  }

  /** Waits for all that was submitted. What a device that does not answer may use is not freed. */
  Status finish() {
    auto mark = device_.withQueue(QueueKind::Work, [](Queue& queue) { return queue.mark(); });
    if (!mark.ok()) mark = device_.withQueue(QueueKind::Work, [](Queue& queue) { return queue.mark(); });
    const Status status = mark.ok() ? waitFor(*mark.value(), token_, patience) : mark.status();
    if (!status.ok()) staging_.clear();
    return status;
  }

 private:
  static Status cancelled() { return failure(Code::Cancelled, "moves", "The batch was cancelled."); }

  /** Submits in turns, so that others get the queue and cancelling is noticed. */
  template <typename Body>
  Status command(Body body) {
    if (commands_++ % commandsPerTurn == 0 && token_.isCancelled()) return cancelled();
    return device_.withQueue(QueueKind::Work, body);
  }

  Status fill(const Move& move) {
    const auto byte = static_cast<uint8_t>(move.source);
    if (!device_.owns(move.destination)) {
      fillOnHost(move, reinterpret_cast<uint8_t*>(move.destination), byte);
      return {};
    }
    Move both = move;
    both.sourceSize = both.destinationSize;
    for (size_t d = 0; d < both.dimensionCount; d++) both.dimensions[d].sourceStep = both.dimensions[d].destinationStep;
    Status status;
    eachRun(both, [&](int64_t to, int64_t, uint64_t bytes) {
      status =
          command([&](Queue& queue) { return queue.fill(move.destination + static_cast<uint64_t>(to), byte, bytes); });
      return status.ok();
    });
    return status;
  }

  bool isForCommands(const Move& move) {
    if (move.destinationType != move.sourceType) return false;
    uint64_t length = 0, groups = 0;
    eachRows(move, [&](const Rows& rows) {
      length = rows.length;
      groups += takesRows(rows) ? 1 : rows.count;
      return groups > fewRows ? cancelled() : Status{};  // enough is known
    });
    return length >= longRow || groups <= fewRows;
  }

  bool takesRows(const Rows& rows) {
    auto answer =
        device_.withQueue(QueueKind::Work, [&](Queue& queue) -> Result<bool> { return queue.takesRows(rows); });
    return answer.ok() && answer.value();
  }

  Status submit(const Move& move) {
    return eachRows(move, [&](const Rows& rows) {
      if (rows.count == 1)
        return command([&](Queue& queue) { return queue.copy(rows.destination, rows.source, rows.length); });
      if (takesRows(rows)) return command([&](Queue& queue) { return queue.copyRows(rows); });
      for (uint64_t i = 0; i < rows.count; i++) {
        const uint64_t to = rows.destination + i * rows.destinationStep, from = rows.source + i * rows.sourceStep;
        Status status = command([&](Queue& queue) { return queue.copy(to, from, rows.length); });
        if (!status.ok()) return status;
      }
      return Status{};
    });
  }

  Result<uint8_t*> stage(uint64_t length) {
    staging_.reserve(staging_.size() + 1);
    auto memory = device_.driver().allocateStaging(length);
    if (!memory.ok()) return memory.status();
    staging_.push_back(memory.value());
    return static_cast<uint8_t*>(memory.value());
  }

  Status throughHost(const Move& move, bool toDevice, bool fromDevice) {
    if (destinationBytes(move) > mostStaged && move.dimensionCount > 0) return inHalves(move, toDevice, fromDevice);
    const auto* source = reinterpret_cast<const uint8_t*>(move.source);
    if (fromDevice) {
      const uint64_t span = sourceSpan(move);
      auto staged = stage(span);
      if (!staged.ok()) return staged.status();
      const auto to = reinterpret_cast<uint64_t>(staged.value());
      if (Status status = command([&](Queue& queue) { return queue.copy(to, move.source, span); }); !status.ok())
        return status;
      auto mark = device_.withQueue(QueueKind::Work, [](Queue& queue) { return queue.mark(); });
      if (!mark.ok()) return mark.status();
      if (Status status = waitFor(*mark.value(), token_, patience); !status.ok()) return status;
      source = staged.value();
    }
    if (!toDevice) {
      moveOnHost(move, reinterpret_cast<uint8_t*>(move.destination), source);
      return {};
    }
    auto packed = stage(destinationBytes(move));
    if (!packed.ok()) return packed.status();
    Move out = move, in = move;
    auto step = static_cast<int64_t>(move.destinationSize);
    for (size_t d = move.dimensionCount; d > 0; d--) {
      in.dimensions[d - 1].destinationStep = out.dimensions[d - 1].sourceStep = step;
      step *= static_cast<int64_t>(move.dimensions[d - 1].length);
    }
    moveOnHost(in, packed.value(), source);
    out.sourceType = out.destinationType;
    out.sourceSize = out.destinationSize;
    out.source = reinterpret_cast<uint64_t>(packed.value());
    normalise(out);
    return submit(out);
  }

  Status inHalves(const Move& move, bool toDevice, bool fromDevice) {
    Move first = move, second = move;
    Dimension& rest = second.dimensions[0];
    first.dimensions[0].length /= 2;
    rest.length -= first.dimensions[0].length;
    const auto skipped = static_cast<int64_t>(first.dimensions[0].length);
    second.destination += static_cast<uint64_t>(rest.destinationStep * skipped);
    second.source += static_cast<uint64_t>(rest.sourceStep * skipped);
    for (Move* half : {&first, &second}) {
      if (half->dimensions[0].length == 1) {
        std::copy(half->dimensions.begin() + 1, half->dimensions.begin() + half->dimensionCount,
                  half->dimensions.begin());
        half->dimensionCount--;
      }
      if (Status status = throughHost(*half, toDevice, fromDevice); !status.ok()) return status;
    }
    return {};
  }

  Device& device_;
  const CancelToken& token_;
  std::vector<void*> staging_;
  size_t commands_ = 0;
};

}  // namespace

Result<MoveList> readBatch(const uint64_t* words, size_t count) {
  MoveList moves;
  moves.reserve(count / usualMoveWords);
  Status status = parseMoves(words, count, true, [&](const Move& move) { moves.add(move); });
  if (!status.ok()) return status;
  for (size_t i = 0; i < moves.size(); i++)
    if (moves.at(i).pid != 0)
      return failure(Code::InvalidArgument, "moves", "Memory of other processes is out of reach.");
  return moves;
}

Status runBatch(Device& device, const MoveList& moves, const CancelToken& token, ProgressCounter& moved) {
  BatchRun run(device, token);
  Status status;
  for (size_t i = 0; status.ok() && i < moves.size(); i++) {
    status = run.add(moves.at(i));
    if (status.ok()) moved.add(moves.bytesOf(i));
  }
  Status finished = run.finish();
  return status.ok() ? finished : status;
}

}  // namespace tensorferry::xpu
