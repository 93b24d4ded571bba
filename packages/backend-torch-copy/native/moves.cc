// SPDX-License-Identifier: Apache-2.0
/*
 * See moves.h.
 */
#include "moves.h"

#include <algorithm>
#include <cstring>
#include <string>

#include <tensorferry/memory/stream.h>

#include "kernels.h"
#include "remote.h"
#include "transpose.h"

namespace tensorferry {
namespace {

/** Bytes of one work item: small enough that cancelling is quick and threads share well, large enough to be cheap. */
constexpr uint64_t itemBytes = 2u << 20;

/** A batch that writes more than this leaves nothing useful in the caches, and stores past them. */
constexpr uint64_t streamingBytes = 16u << 20;

/** Shorter runs are stored as usual: their ends would be parts of lines. */
constexpr uint64_t shortRun = 256;

/** Cuts a move until every piece is at most `itemBytes` long. */
void cut(const Move& move, MoveList& items) {
  const uint64_t bytes = destinationBytes(move);
  if (bytes <= itemBytes || move.dimensionCount == 0) {
    items.add(move);
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
  const Matrix matrix{rows.length,     columns.length,    rows.destinationStep, columns.destinationStep,
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

void copyRun(uint8_t* destination, const uint8_t* source, uint64_t length, bool past) {
  if (past && length >= shortRun) {
    streamBytes(destination, source, length);
  } else {
    std::memcpy(destination, source, length);
  }
}

/** Copies rows of dense bytes. */
void copyRows(uint8_t* destination, const uint8_t* source, const Dimension& rows, uint64_t rowBytes, bool past) {
  const auto to = [&](uint64_t row) { return destination + static_cast<int64_t>(row) * rows.destinationStep; };
  const auto from = [&](uint64_t row) { return source + static_cast<int64_t>(row) * rows.sourceStep; };
  const Kernels& table = kernels();
  uint64_t row = 0;
  if (past && rowBytes >= shortRun) {
    for (; row + runsInTurn <= rows.length; row += runsInTurn) {
      uint8_t* destinations[runsInTurn];
      const uint8_t* sources[runsInTurn];
      for (size_t i = 0; i < runsInTurn; i++) {
        destinations[i] = to(row + i);
        sources[i] = from(row + i);
      }
      table.copyRunsPast(destinations, sources, rowBytes);
    }
    for (; row < rows.length; row++) table.copyRunPast(to(row), from(row), rowBytes);
  }
  for (; row < rows.length; row++) std::memcpy(to(row), from(row), rowBytes);
}

/** Asks for memory that will be read soon. */
void fetch(const uint8_t* from, size_t length) {
  for (size_t at = 0; at < length; at += cacheLine) __builtin_prefetch(from + at);
}

/** Converts elements of one type to another. */
struct Cast {
  uint8_t destinationType, sourceType;

  /** Converts the beginning of a dense run where there is a loop for it; the number of elements done. */
  uint64_t runPast(uint8_t* destination, const uint8_t* source, uint64_t length) const {
    const auto convert = kernels().convert[sourceType][destinationType];
    const auto convertPast = kernels().convertPast[sourceType][destinationType];
    const uint64_t size = dtypeBytes[destinationType], toLine = bytesToLine(destination), head = toLine / size;
    if (convertPast == nullptr || toLine % size != 0 || head > length) return 0;
    convert(destination, source, head);
    return head + convertPast(destination + toLine, source + head * dtypeBytes[sourceType], length - head);
  }

  void run(uint8_t* destination, int64_t destinationStep, const uint8_t* source, int64_t sourceStep, uint64_t length,
           bool past) const {
    const Kernels& table = kernels();
    const auto load = table.load[sourceType];
    const auto store = table.store[destinationType][static_cast<size_t>(wideOf(sourceType))];
    const auto convert = table.convert[sourceType][destinationType];
    const int64_t size = dtypeBytes[destinationType], sourceSize = dtypeBytes[sourceType];
    const bool isDense = destinationStep == size && sourceStep == sourceSize;
    alignas(64) uint8_t wide[blockElements * 8], converted[blockElements * 8];
    uint64_t done = isDense && past ? runPast(destination, source, length) : 0;
    for (; done < length; done += blockElements) {
      const size_t count = std::min<uint64_t>(blockElements, length - done);
      uint8_t* to = destination + static_cast<int64_t>(done) * destinationStep;
      const uint8_t* from = source + static_cast<int64_t>(done) * sourceStep;
      // While the processor computes, nothing else would ask for the source's next lines.
      if (isDense && length - done >= 2 * blockElements) fetch(from + count * sourceSize, count * sourceSize);
      if (isDense && convert != nullptr) {
        convert(converted, from, count);
      } else {
        load(wide, from, sourceStep, count);
        store(isDense ? converted : to, destinationStep, wide, count);
      }
      if (isDense) copyRun(to, converted, count * size, past);
    }
  }
};

/**
 * Casts a matrix whose destination is dense along the columns and whose source is dense along the rows: each tile is cast
 * in the order of its source and then transposed.
 */
template <typename T>
void castTransposed(const Cast& cast, uint8_t* destination, const uint8_t* source, const Matrix& matrix) {
  constexpr uint64_t tileRows = 256, tileColumns = 64;
  constexpr auto size = static_cast<int64_t>(sizeof(T));
  alignas(64) uint8_t tile[tileColumns * tileRows * sizeof(T)];
  for (uint64_t r = 0; r < matrix.rows; r += tileRows) {
    for (uint64_t c = 0; c < matrix.columns; c += tileColumns) {
      const uint64_t rows = std::min(tileRows, matrix.rows - r), columns = std::min(tileColumns, matrix.columns - c);
      const int64_t tileStep = static_cast<int64_t>(rows) * size;
      for (uint64_t i = 0; i < columns; i++) {
        const uint8_t* from =
            source + static_cast<int64_t>(r) * matrix.sourceRow + static_cast<int64_t>(c + i) * matrix.sourceColumn;
        cast.run(tile + static_cast<int64_t>(i) * tileStep, size, from, matrix.sourceRow, rows, false);
      }
      const Matrix turned{rows, columns, matrix.destinationRow, size, size, tileStep};
      transposeMatrix<T>(destination + static_cast<int64_t>(r) * matrix.destinationRow + static_cast<int64_t>(c) * size,
                         tile, turned);
    }
  }
}

void castMatrix(const Move& move, uint8_t* destination, const uint8_t* source, const Dimension& rows,
                const Dimension& columns, bool past) {
  const Cast cast{move.destinationType, move.sourceType};
  const Matrix matrix{rows.length,     columns.length,    rows.destinationStep, columns.destinationStep,
                      rows.sourceStep, columns.sourceStep};
  const bool turns =
      rows.length > 1 && columns.destinationStep == move.destinationSize && rows.sourceStep == move.sourceSize;
  if (turns) {
    switch (move.destinationSize) {
      case 1:
        return castTransposed<uint8_t>(cast, destination, source, matrix);
      case 2:
        return castTransposed<uint16_t>(cast, destination, source, matrix);
      case 4:
        return castTransposed<uint32_t>(cast, destination, source, matrix);
      default:
        return castTransposed<uint64_t>(cast, destination, source, matrix);
    }
  }
  for (uint64_t row = 0; row < rows.length; row++)
    cast.run(destination + static_cast<int64_t>(row) * rows.destinationStep, columns.destinationStep,
             source + static_cast<int64_t>(row) * rows.sourceStep, columns.sourceStep, columns.length, past);
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

/** A copy of dense bytes within this process, from one place to another. */
bool isRun(const Move& move) {
  if (move.kind != MoveKind::Copy || move.pid != 0 || move.destinationType != move.sourceType) return false;
  if (move.dimensionCount != 1 || move.destination == move.source) return false;
  const Dimension& run = move.dimensions[0];
  return run.destinationStep == move.destinationSize && run.sourceStep == move.sourceSize;
}

class MoveJob final : public Job {
 public:
  explicit MoveJob(MoveList items) : items_(std::move(items)) {
    // Small neighbours share a unit of work, so that taking one costs little against doing it.
    uint64_t bytes = 0, total = 0;
    for (size_t i = 0; i < items_.size(); i++) {
      const uint64_t next = items_.bytesOf(i);
      if (starts_.empty() || bytes + next > itemBytes / 4) {
        starts_.push_back(i);
        bytes = 0;
      }
      bytes += next + 64;
      total += next;
    }
    past_ = total > streamingBytes;
  }

  size_t count() const noexcept override { return starts_.size(); }

  void run(size_t index) noexcept override {
    if (index >= starts_.size()) return;
    const size_t end = index + 1 < starts_.size() ? starts_[index + 1] : items_.size();
    uint64_t moved = 0;
    for (size_t i = starts_[index]; i < end; i++) {
      if (shouldStop()) break;
      if (past_ && i + runsInTurn <= end && copyTogether(i)) {
        moved += runsInTurn * items_.bytesOf(i);
        i += runsInTurn - 1;
        continue;
      }
      const Move move = items_.at(i);
      if (move.pid == 0) {
        runLocalMove(move, past_);
      } else {
        Status status = caught("process_vm_readv", [&] { return runRemoteMove(move, *this); });
        if (!status.ok()) {
          status.item = move.index;
          fail(std::move(status));
          break;
        }
      }
      moved += items_.bytesOf(i);
    }
    finishStreaming();
    movedBytes.add(moved);
    if (cancelToken.isCancelled()) fail(failure(Code::Cancelled, "copy", "The copy was cancelled."));
  }

 private:
  /** Copies `runsInTurn` items at once where they are runs of one length; false, and nothing copied, where they are not. */
  bool copyTogether(size_t first) const noexcept {
    const uint64_t bytes = items_.bytesOf(first);
    if (bytes < shortRun || bytes >= splitRun) return false;
    uint8_t* destinations[runsInTurn];
    const uint8_t* sources[runsInTurn];
    for (size_t i = 0; i < runsInTurn; i++) {
      if (items_.bytesOf(first + i) != bytes) return false;
      const Move move = items_.at(first + i);
      if (!isRun(move)) return false;
      destinations[i] = pointer(move.destination);
      sources[i] = pointer(move.source);
    }
    kernels().copyRunsPast(destinations, sources, bytes);
    return true;
  }

  MoveList items_;
  std::vector<size_t> starts_;
  bool past_ = false;
};

}  // namespace

Result<MoveList> parseItems(const uint64_t* words, size_t count, bool refuseOverlap) {
  MoveList items;
  items.reserve(count / usualMoveWords);
  Status status = parseMoves(words, count, refuseOverlap, [&](const Move& move) { cut(move, items); });
  if (!status.ok()) return status;
  return items;
}

void runLocalMove(const Move& move, bool past) noexcept {
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
    for (size_t i = 0; i < count; i++)
      same = same && move.dimensions[i].destinationStep == move.dimensions[i].sourceStep;
    if (same) return;
  }
  for (;;) {
    if (casts) {
      castMatrix(move, destination, source, rows, columns, past);
    } else if (move.kind == MoveKind::Copy && !dense) {
      copyElements(move, destination, source, rows, columns);
    } else if (move.kind == MoveKind::Copy) {
      copyRows(destination, source, rows, columns.length * move.destinationSize, past);
    } else {
      for (uint64_t row = 0; row < rows.length; row++)
        fillRun(move, destination + static_cast<int64_t>(row) * rows.destinationStep, columns);
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

std::shared_ptr<Job> makeMoveJob(MoveList items) { return std::make_shared<MoveJob>(std::move(items)); }

}  // namespace tensorferry
