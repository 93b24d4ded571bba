/*
 * See moves.h.
 */
#include "moves.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "kernels.h"
#include "remote.h"
#include "transpose.h"

namespace tensorferry {
namespace {

/** Bytes of one work item: small enough that cancelling is quick and threads share well, large enough to be cheap. */
constexpr uint64_t itemBytes = 2u << 20;

Status badTable(size_t index, const char* detail) {
  Status status = failure(Code::InvalidArgument, "parseMoves", detail);
  status.item = static_cast<int64_t>(index);
  return status;
}

/** Cuts a move until every piece is at most `itemBytes` long. */
void cut(const Move& move, std::vector<Move>& items) {
  const uint64_t bytes = destinationBytes(move);
  if (bytes <= itemBytes || move.dimensionCount == 0) {
    items.push_back(move);
    return;
  }
  const Dimension outermost = move.dimensions[0];
  const uint64_t pieces = std::min(outermost.length, (bytes + itemBytes - 1) / itemBytes);
  for (uint64_t piece = 0; piece < pieces; piece++) {
    const uint64_t from = outermost.length / pieces * piece + std::min(piece, outermost.length % pieces);
    const uint64_t length = outermost.length / pieces + (piece < outermost.length % pieces ? 1 : 0);
    Move part = move;
    part.destination += static_cast<int64_t>(from) * outermost.destinationStep;
    if (move.kind == MoveKind::Copy) part.source += static_cast<int64_t>(from) * outermost.sourceStep;
    part.dimensions[0].length = length;
    if (length == 1) {
      std::copy(part.dimensions.begin() + 1, part.dimensions.begin() + part.dimensionCount, part.dimensions.begin());
      part.dimensionCount--;
    }
    cut(part, items);
  }
}

uint8_t* pointer(uint64_t address) { return reinterpret_cast<uint8_t*>(address); }

void copyElements(const Move& move, uint8_t* destination, const uint8_t* source, const Dimension& rows,
                  const Dimension& columns) {
  const Matrix matrix{rows.length,     columns.length,  rows.destinationStep, columns.destinationStep,
                      rows.sourceStep, columns.sourceStep};
  switch (move.destinationSize) {
    case 1:
      return copyMatrix<uint8_t>(destination, source, matrix);
    case 2:
      return copyMatrix<uint16_t>(destination, source, matrix);
    case 4:
      return copyMatrix<uint32_t>(destination, source, matrix);
    default:
      return copyMatrix<uint64_t>(destination, source, matrix);
  }
}

void castRun(const Move& move, uint8_t* destination, const uint8_t* source, const Dimension& columns) {
  const Kernels& table = kernels();
  const Wide wide = wideOf(move.sourceType);
  const auto load = table.load[move.sourceType];
  const auto store = table.store[move.destinationType][static_cast<size_t>(wide)];
  alignas(64) uint8_t block[blockElements * 8];
  for (uint64_t done = 0; done < columns.length; done += blockElements) {
    const size_t count = std::min<uint64_t>(blockElements, columns.length - done);
    load(block, source + static_cast<int64_t>(done) * columns.sourceStep, columns.sourceStep, count);
    store(destination + static_cast<int64_t>(done) * columns.destinationStep, columns.destinationStep, block, count);
  }
}

void fillRun(const Move& move, uint8_t* destination, const Dimension& columns) {
  const int byte = static_cast<int>(move.source & 0xff);
  if (columns.destinationStep == move.destinationSize) {
    std::memset(destination, byte, columns.length * move.destinationSize);
    return;
  }
  for (uint64_t i = 0; i < columns.length; i++)
    std::memset(destination + static_cast<int64_t>(i) * columns.destinationStep, byte, move.destinationSize);
}

class MoveJob final : public Job {
 public:
  explicit MoveJob(std::vector<Move> items) : items_(std::move(items)) {
    // Small neighbours share a unit of work, so that taking one costs little against doing it.
    uint64_t bytes = 0;
    for (size_t i = 0; i < items_.size(); i++) {
      const uint64_t next = destinationBytes(items_[i]);
      if (starts_.empty() || bytes + next > itemBytes / 4) {
        starts_.push_back(i);
        bytes = 0;
      }
      bytes += next + 64;
    }
  }

  size_t count() const noexcept override { return starts_.size(); }

  void run(size_t index) noexcept override {
    if (index >= starts_.size()) return;
    const size_t end = index + 1 < starts_.size() ? starts_[index + 1] : items_.size();
    for (size_t i = starts_[index]; i < end; i++) {
      if (shouldStop()) break;
      const Move& move = items_[i];
      if (move.pid == 0) {
        runLocalMove(move);
      } else {
        Status status = caught("process_vm_readv", [&] { return runRemoteMove(move, *this); });
        if (!status.ok()) {
          status.item = move.index;
          fail(std::move(status));
          break;
        }
      }
      movedBytes.add(destinationBytes(move));
    }
    if (cancelToken.isCancelled()) fail(failure(Code::Cancelled, "copy", "The copy was cancelled."));
  }

 private:
  std::vector<Move> items_;
  std::vector<size_t> starts_;
};

}  // namespace

void normalise(Move& move) noexcept {
  auto* first = move.dimensions.data();
  auto* last = first + move.dimensionCount;
  std::stable_sort(first, last, [](const Dimension& a, const Dimension& b) {
    return a.destinationStep != b.destinationStep ? a.destinationStep > b.destinationStep : a.sourceStep > b.sourceStep;
  });
  auto* merged = first;
  for (auto* next = first; next < last; next++) {
    if (next == first) continue;
    const auto length = static_cast<int64_t>(next->length);
    if (merged->destinationStep == next->destinationStep * length && merged->sourceStep == next->sourceStep * length) {
      *merged = {merged->length * next->length, next->destinationStep, next->sourceStep};
    } else {
      *++merged = *next;
    }
  }
  move.dimensionCount = static_cast<uint8_t>(first == last ? 0 : merged - first + 1);
}

uint64_t destinationBytes(const Move& move) noexcept {
  uint64_t bytes = move.destinationSize;
  for (size_t i = 0; i < move.dimensionCount; i++) bytes *= move.dimensions[i].length;
  return bytes;
}

Result<std::vector<Move>> parseMoves(const uint64_t* words, size_t count) {
  std::vector<Move> items;
  items.reserve(count / 6);  // about the number of moves: most have one to three dimensions
  size_t at = 0;
  for (uint32_t index = 0; at < count; index++) {
    if (count - at < 3) return badTable(index, "The table ends inside a move.");
    Move move;
    const uint64_t head = words[at];
    const uint8_t kind = head & 0xff;
    move.index = index;
    move.destinationType = (head >> 8) & 0xff;
    move.sourceType = (head >> 16) & 0xff;
    const size_t dimensions = (head >> 24) & 0xff;
    move.pid = static_cast<int32_t>(head >> 32);
    move.destination = words[at + 1];
    move.source = words[at + 2];
    at += 3;
    if (kind > 1) return badTable(index, "Unknown kind of move.");
    move.kind = static_cast<MoveKind>(kind);
    if (move.destinationType >= dtypeCount || move.sourceType >= dtypeCount) return badTable(index, "Unknown element type.");
    move.destinationSize = dtypeBytes[move.destinationType];
    move.sourceSize = dtypeBytes[move.sourceType];
    if (move.destinationSize == 0 || move.sourceSize == 0) return badTable(index, "Elements that share bytes travel as uint8.");
    const bool casts = move.destinationType != move.sourceType;
    if (casts && (!isCastable(move.destinationType) || !isCastable(move.sourceType) || move.pid != 0))
      return badTable(index, "These types cannot be cast here.");
    if (move.pid < 0) return badTable(index, "A process number is positive.");
    if ((count - at) / 3 < dimensions) return badTable(index, "The table ends inside a move.");
    bool empty = false;
    move.dimensionCount = 0;
    for (size_t d = 0; d < dimensions; d++) {
      empty = empty || words[at + d] == 0;
      if (words[at + d] == 1) continue;
      if (move.dimensionCount == maxDimensions) return badTable(index, "More than 16 dimensions are longer than 1.");
      move.dimensions[move.dimensionCount++] = {
          words[at + d], static_cast<int64_t>(words[at + dimensions + d]) * move.destinationSize,
          static_cast<int64_t>(words[at + 2 * dimensions + d]) * move.sourceSize};
    }
    at += 3 * dimensions;
    if (empty) continue;
    normalise(move);
    cut(move, items);
  }
  return items;
}

void runLocalMove(const Move& move) noexcept {
  constexpr Dimension single{1, 0, 0};
  const size_t count = move.dimensionCount;
  Dimension columns = count > 0 ? move.dimensions[count - 1] : Dimension{1, move.destinationSize, move.sourceSize};
  Dimension rows = count > 1 ? move.dimensions[count - 2] : single;
  const bool casts = move.destinationType != move.sourceType;
  const bool dense = !casts && columns.destinationStep == move.destinationSize && columns.sourceStep == move.sourceSize;
  const size_t outer = count > 2 ? count - 2 : 0;
  std::array<uint64_t, maxDimensions> position{};
  uint8_t* destination = pointer(move.destination);
  const uint8_t* source = move.kind == MoveKind::Copy ? pointer(move.source) : nullptr;
  if (destination == source && !casts) {
    bool same = true;
    for (size_t i = 0; i < count; i++) same = same && move.dimensions[i].destinationStep == move.dimensions[i].sourceStep;
    if (same) return;
  }
  for (;;) {
    if (move.kind == MoveKind::Copy && !casts && !dense) {
      copyElements(move, destination, source, rows, columns);
    } else {
      for (uint64_t row = 0; row < rows.length; row++) {
        uint8_t* to = destination + static_cast<int64_t>(row) * rows.destinationStep;
        if (move.kind == MoveKind::Fill) {
          fillRun(move, to, columns);
          continue;
        }
        const uint8_t* from = source + static_cast<int64_t>(row) * rows.sourceStep;
        if (casts) {
          castRun(move, to, from, columns);
        } else {
          std::memcpy(to, from, columns.length * move.destinationSize);
        }
      }
    }
    size_t dimension = outer;
    while (dimension > 0) {
      const Dimension& d = move.dimensions[dimension - 1];
      destination += d.destinationStep;
      if (source != nullptr) source += d.sourceStep;
      if (++position[dimension - 1] < d.length) break;
      position[dimension - 1] = 0;
      destination -= d.destinationStep * static_cast<int64_t>(d.length);
      if (source != nullptr) source -= d.sourceStep * static_cast<int64_t>(d.length);
      dimension--;
    }
    if (dimension == 0) return;
  }
}

std::shared_ptr<Job> makeMoveJob(std::vector<Move> items) { return std::make_shared<MoveJob>(std::move(items)); }

}  // namespace tensorferry
