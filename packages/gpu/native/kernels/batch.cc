// SPDX-License-Identifier: Apache-2.0
/*
 * See batch.h. Chooses the path of each move and cuts it into units.
 */
#include "batch.h"

#include <cstring>
#include <utility>

#include <tensorferry/dtype.h>

#include "grid.h"

namespace tensorferry::gpu {
namespace {

/** Rows from this length on are copied as runs: their ends cost little then. */
constexpr uint64_t longRow = 2048;

/** So many accesses of a narrow width cost more than a run of wide ones with its ends. */
constexpr uint64_t narrowAccesses = 64;

/** Indices of a unit where each moves little. */
constexpr uint64_t unitIndices = 16 * 1024;

/** Runs that share a unit have at most so many parts together. */
constexpr uint32_t sharedParts = 64;

/** Elements along the destination in a tile of a transposition, and bytes along the source: what memory moves at once. */
constexpr uint64_t tileElements = 32;
constexpr uint64_t tileBytes = 32;

/** Bytes of a row of a square that is turned. */
constexpr uint64_t turnBytes = 16;

Status refuse(const Move& move, const char* detail) {
  Status status = failure(Code::InvalidArgument, "compileMoves", detail);
  status.item = move.index;
  return status;
}

bool isEmpty(const Move& move) {
  for (size_t i = 0; i < move.dimensionCount; i++)
    if (move.dimensions[i].length == 0) return true;
  return false;
}

/** What is wrong with a move; null where nothing is. */
const char* faultOf(const Move& move) {
  if (move.dimensionCount > maxDimensions) return "More than 16 dimensions.";
  if (move.pid != 0) return "A device cannot read the memory of another process by its number.";
  if (move.destinationType >= dtypeCount || move.sourceType >= dtypeCount) return "Unknown element type.";
  if (move.destinationSize == 0 || move.destinationSize != dtypeBytes[move.destinationType] || move.sourceSize == 0 ||
      move.sourceSize != dtypeBytes[move.sourceType])
    return "The sizes of elements are not those of their types.";
  if (move.destinationType != move.sourceType &&
      (move.kind == MoveKind::Fill || !isCastable(move.destinationType) || !isCastable(move.sourceType)))
    return "These types cannot be cast.";
  if (isEmpty(move)) return nullptr;
  uint64_t bytes = std::max(move.destinationSize, move.sourceSize);
  for (size_t i = 0; i < move.dimensionCount; i++)
    if (__builtin_mul_overflow(bytes, move.dimensions[i].length, &bytes))
      return "The move has more bytes than any device.";
  if (bytes > maxBytes) return "The move has more bytes than any device.";
  const auto destinationAt = [&](size_t i) {
    return std::pair{move.dimensions[i].length, move.dimensions[i].destinationStep};
  };
  const auto sourceAt = [&](size_t i) { return std::pair{move.dimensions[i].length, move.dimensions[i].sourceStep}; };
  if (!extentOf(move.destination, move.destinationSize, move.dimensionCount, destinationAt))
    return "The destination has a negative stride or leaves the address space.";
  if (move.kind == MoveKind::Copy && !extentOf(move.source, move.sourceSize, move.dimensionCount, sourceAt))
    return "The source has a negative stride or leaves the address space.";
  return nullptr;
}

bool isOntoItself(const Move& move) {
  bool same = move.kind == MoveKind::Copy && move.destinationType == move.sourceType && move.destination == move.source;
  for (size_t i = 0; i < move.dimensionCount; i++)
    same = same && move.dimensions[i].destinationStep == move.dimensions[i].sourceStep;
  return same;
}

Grid gridOf(const Move& move) {
  Grid grid{move.destination, move.source, 0, {}};
  for (size_t i = move.dimensionCount; i > 0; i--)
    if (move.dimensions[i - 1].length > 1) grid.append(move.dimensions[i - 1]);
  return grid;
}

/** Two dense regions of bytes along the innermost dimension, taken off the grid: how many bytes. */
uint64_t takeRow(Grid& grid, uint64_t size) {
  const Dimension& inner = grid.dimensions[0];
  const auto step = static_cast<int64_t>(size);
  if (grid.count == 0 || inner.destinationStep != step || inner.sourceStep != step) return size;
  const uint64_t bytes = inner.length * size;
  grid.remove(0);
  return bytes;
}

uint64_t stepsOfDestination(const Grid& grid) {
  uint64_t steps = 0;
  for (uint32_t i = 0; i < grid.count; i++) steps |= static_cast<uint64_t>(grid.dimensions[i].destinationStep);
  return steps;
}
uint64_t stepsOfSource(const Grid& grid) {
  uint64_t steps = 0;
  for (uint32_t i = 0; i < grid.count; i++) steps |= static_cast<uint64_t>(grid.dimensions[i].sourceStep);
  return steps;
}

/** What all records of one move have. */
struct Form {
  Path path;
  uint8_t destinationType, sourceType, destinationWidth, sourceWidth;
  bool isFill;
};

class Compiler {
 public:
  explicit Compiler(size_t moves) {
    records_.reserve(moves * sizeof(MoveRecord) / sizeof(uint64_t));
    units_.reserve(moves / 4 + 1);
  }

  Status add(const Move& given) {
    Move move = given;
    if (move.kind == MoveKind::Fill) {
      // Only the destination counts, and the source's steps must not keep its dimensions apart.
      for (size_t i = 0; i < move.dimensionCount; i++)
        move.dimensions[i].sourceStep = move.dimensions[i].destinationStep;
      move.sourceType = move.destinationType;
      move.sourceSize = move.destinationSize;
      if (move.dimensionCount <= maxDimensions) normalise(move);
    }
    if (const char* fault = faultOf(move)) return refuse(move, fault);
    if (isEmpty(move) || isOntoItself(move)) return {};
    const uint64_t elements = destinationBytes(move) / move.destinationSize;
    const bool isFill = move.kind == MoveKind::Fill;
    Grid grid = gridOf(move);
    if (isFill) grid.source = (move.source & 0xff) * 0x0101010101010101ull;
    const bool added = move.destinationType == move.sourceType ? addCopy(grid, move, isFill) : addCast(grid, move);
    if (!added) return refuse(move, "The batch has more units than a table holds; cut it into smaller ones.");
    bytesWritten_ += elements * move.destinationSize;
    bytesRead_ += isFill ? 0 : elements * move.sourceSize;
    return {};
  }

  Status addComparison(const Move& move) {
    if (const char* fault = faultOf(move)) return refuse(move, fault);
    if (move.kind != MoveKind::Copy || move.destinationType != move.sourceType)
      return refuse(move, "Only two regions of one type are compared.");
    if (isEmpty(move)) return {};
    Grid grid = gridOf(move);
    bytesRead_ = 2 * destinationBytes(move);
    if (!addPieces(grid, takeRow(grid, move.destinationSize), move, false, true))
      return refuse(move, "The regions have more units than a table holds; compare them in parts.");
    return {};
  }

  Batch finish() {
    Batch batch;
    if (records_.size() % 2 != 0) records_.push_back(0);  // units are read 16 bytes at a time
    batch.unitsAt = static_cast<uint32_t>(records_.size());
    batch.unitCount = static_cast<uint32_t>(units_.size());
    batch.bytesRead = bytesRead_;
    batch.bytesWritten = bytesWritten_;
    batch.table = std::move(records_);
    const size_t words = units_.size() * sizeof(UnitRecord) / sizeof(uint64_t);
    batch.table.resize(batch.unitsAt + words);
    if (words > 0) std::memcpy(batch.table.data() + batch.unitsAt, units_.data(), words * sizeof(uint64_t));
    return batch;
  }

 private:
  bool addCopy(Grid& grid, const Move& move, bool isFill) {
    const uint64_t row = takeRow(grid, move.destinationSize);
    const uint64_t steps = stepsOfDestination(grid) | (isFill ? 0 : stepsOfSource(grid) | grid.source);
    const uint8_t width = commonWidth({row, grid.destination, steps});
    const bool isLong = row >= longRow || (width < 16 && row >= narrowAccesses * width);
    return grid.count == 0 || isLong ? addRuns(grid, row, isFill) : addPieces(grid, row, move, isFill, false);
  }

  bool addRuns(const Grid& grid, uint64_t row, bool isFill) {
    const bool isKnown = stepsOfDestination(grid) % partAlignment == 0;
    const uint64_t past = isKnown ? grid.destination % partAlignment : partAlignment - 1;
    const uint64_t parts = (past + row + partBytes - 1) / partBytes;
    constexpr uint64_t perUnit = unitBytes / partBytes;
    if (parts > maxIndex || !hasRoom(grid.positions() * parts, perUnit)) return false;
    emitParts(grid, maxIndex / parts, [&](const Grid& part) {
      const Form form{Path::Runs, 0, 0, 1, 1, isFill};
      const uint32_t record = addRecord(part, form, row, static_cast<uint32_t>(parts));
      if (part.count == 0 && parts <= perUnit) {
        addSharedUnit(record, static_cast<uint32_t>(parts), row);
      } else {
        addUnits(record, part.positions() * parts, perUnit);
      }
    });
    return true;
  }

  /** Rows in pieces as wide as everything is aligned. `keepsOrder` numbers them as the move does. */
  bool addPieces(Grid grid, uint64_t row, const Move& move, bool isFill, bool keepsOrder) {
    const uint64_t steps = stepsOfDestination(grid) | (isFill ? 0 : stepsOfSource(grid) | grid.source);
    const uint8_t width = commonWidth({row, grid.destination, steps});
    const Form form{Path::Pieces, move.destinationType, move.sourceType, width, width, isFill};
    const bool isElement = row == width;
    if (!isElement) grid.insertInnermost({row / width, width, width});
    const uint64_t perUnit = std::min<uint64_t>(unitBytes / width, unitIndices);
    if (!hasRoom(grid.positions(), perUnit)) return false;
    uint64_t done = 0;
    const auto emit = [&](const Grid& part) {
      addUnits(addRecord(part, form, done, 0), part.positions(), perUnit);
      done += part.positions() * width;
    };
    if (isElement && !isFill && !keepsOrder) {
      if (!addTurns(grid, form, emit)) emitTiles(grid, width, width, emit);
    } else {
      emitParts(grid, maxIndex, emit);
    }
    return true;
  }

  /** The dimension along which the source is dense, where the destination is so along the innermost; 0 where it is not. */
  static uint32_t turningDimension(const Grid& grid, uint64_t size, uint64_t sourceSize) {
    uint32_t across = 0;
    for (uint32_t i = 1; i < grid.count; i++)
      if (grid.dimensions[i].sourceStep == static_cast<int64_t>(sourceSize)) across = i;
    const bool turns = across > 0 && grid.dimensions[0].destinationStep == static_cast<int64_t>(size) &&
                       grid.dimensions[0].sourceStep != static_cast<int64_t>(sourceSize);
    return turns ? across : 0;
  }

  /** Squares that are turned in registers, and what is left at the edges as `emit` has it. False where there are none. */
  template <typename Emit>
  bool addTurns(const Grid& grid, const Form& form, const Emit& emit) {
    const uint64_t size = form.destinationWidth;
    if (size != 2 && size != 4) return false;
    const uint32_t across = turningDimension(grid, size, size);
    if (across == 0) return false;
    const uint64_t side = turnBytes / size;
    for (const uint32_t index : {0u, across}) {
      const uint64_t length = grid.dimensions[index].length, rest = length % side;
      if (length < side) return false;
      if (rest == 0) continue;
      if (!addTurns(grid.part(index, 0, length - rest), form, emit)) return false;
      emitTiles(grid.part(index, length - rest, rest), size, size, emit);
      return true;
    }
    const Dimension along = grid.dimensions[0], over = grid.dimensions[across];
    uint64_t steps = grid.destination | grid.source | static_cast<uint64_t>(along.sourceStep) |
                     static_cast<uint64_t>(over.destinationStep);
    for (uint32_t i = 1; i < grid.count; i++)
      if (i != across)
        steps |= static_cast<uint64_t>(grid.dimensions[i].destinationStep) |
                 static_cast<uint64_t>(grid.dimensions[i].sourceStep);
    if (steps % turnBytes != 0) return false;
    const auto scaled = [](uint64_t length, const Dimension& dimension, uint64_t factor) {
      const auto by = static_cast<int64_t>(factor);
      return Dimension{length, dimension.destinationStep * by, dimension.sourceStep * by};
    };
    // Two squares side by side at the source are what memory moves at once there.
    const uint64_t columns = over.length / side, pair = columns % 2 == 0 ? 2 : 1;
    Grid squares{grid.destination, grid.source, 0, {}};
    if (pair > 1) squares.append(scaled(pair, over, side));
    if (along.length > side) squares.append(scaled(along.length / side, along, side));
    if (columns > pair) squares.append(scaled(columns / pair, over, side * pair));
    for (uint32_t i = 1; i < grid.count; i++)
      if (i != across) squares.append(grid.dimensions[i]);
    Form turned = form;
    turned.path = Path::Turns;
    const Dimension within{1, over.destinationStep, along.sourceStep};
    const uint64_t perUnit = unitBytes / (side * side * size);
    emitParts(squares, maxIndex, [&](const Grid& part) {
      const uint32_t record = addRecord(part, turned, 0, 0);
      addDimension(within);
      addUnits(record, part.positions(), perUnit);
    });
    return true;
  }

  bool addCast(const Grid& grid, const Move& move) {
    const int64_t size = move.destinationSize, sourceSize = move.sourceSize;
    const Dimension& inner = grid.dimensions[0];
    const bool isDense = grid.count > 0 && inner.destinationStep == size && inner.sourceStep == sourceSize;
    if (!isDense || inner.length < 4) return addCasts(grid, move, Path::Casts);
    const uint64_t rest = inner.length % 4;
    Grid groups = grid.part(0, 0, inner.length / 4 * 4);
    groups.dimensions[0] = {inner.length / 4, 4 * size, 4 * sourceSize};
    if (inner.length / 4 == 1) groups.remove(0);
    if (!addCasts(groups, move, Path::CastsOfFour)) return false;
    return rest == 0 || addCasts(grid.part(0, inner.length - rest, rest), move, Path::Casts);
  }

  bool addCasts(const Grid& grid, const Move& move, Path path) {
    const uint64_t group = path == Path::CastsOfFour ? 4 : 1;
    const uint64_t size = move.destinationSize, sourceSize = move.sourceSize;
    const Form form{path,
                    move.destinationType,
                    move.sourceType,
                    commonWidth({grid.destination, stepsOfDestination(grid)}),
                    commonWidth({grid.source, stepsOfSource(grid)}),
                    false};
    const uint64_t perUnit = std::min(unitBytes / (group * std::max(size, sourceSize)), unitIndices);
    if (!hasRoom(grid.positions(), perUnit)) return false;
    const auto emit = [&](const Grid& part) { addUnits(addRecord(part, form, 0, 0), part.positions(), perUnit); };
    if (path == Path::Casts) {
      emitTiles(grid, size, sourceSize, emit);
    } else {
      emitParts(grid, maxIndex, emit);
    }
    return true;
  }

  /**
   * Where one side is dense along one dimension and the other side along another, indices run through tiles, so that what
   * memory moves at once is used while it is near. Otherwise indices run as they are.
   */
  template <typename Emit>
  static void emitTiles(const Grid& grid, uint64_t size, uint64_t sourceSize, const Emit& emit) {
    const uint32_t across = turningDimension(grid, size, sourceSize);
    if (across == 0) return emitParts(grid, maxIndex, emit);
    const Dimension& inner = grid.dimensions[0];
    const uint64_t height = tileBytes / sourceSize;
    // What is left at the edges are grids of their own.
    for (const auto& [index, tile] : {std::pair{0u, tileElements}, std::pair{across, height}}) {
      const uint64_t length = grid.dimensions[index].length, rest = length % tile;
      if (length > tile && rest != 0) {
        emitTiles(grid.part(index, 0, length - rest), size, sourceSize, emit);
        return emitTiles(grid.part(index, length - rest, rest), size, sourceSize, emit);
      }
    }
    Grid tiled{grid.destination, grid.source, 0, {}};
    const auto within = [](Dimension dimension, uint64_t tile) {
      dimension.length = std::min(dimension.length, tile);
      return dimension;
    };
    tiled.append(within(inner, tileElements));
    tiled.append(within(grid.dimensions[across], height));
    for (uint32_t i = 0; i < grid.count; i++) {
      Dimension dimension = grid.dimensions[i];
      const uint64_t tile = i == 0 ? tileElements : i == across ? height : 1;
      if (tile > 1) {
        if (dimension.length <= tile) continue;
        const auto factor = static_cast<int64_t>(tile);
        dimension = {dimension.length / tile, dimension.destinationStep * factor, dimension.sourceStep * factor};
      }
      tiled.append(dimension);
    }
    emitParts(tiled, maxIndex, emit);
  }

  bool hasRoom(uint64_t indices, uint64_t perUnit) const { return indices / perUnit + units_.size() < maxUnits; }

  /** Appends a record; its position in words. */
  uint32_t addRecord(const Grid& grid, const Form& form, uint64_t length, uint32_t parts) {
    const size_t at = records_.size();
    constexpr size_t recordWords = sizeof(MoveRecord) / sizeof(uint64_t);
    constexpr size_t dimensionWords = sizeof(DimensionRecord) / sizeof(uint64_t);
    records_.resize(at + recordWords + grid.count * dimensionWords);
    const Divisor divisor = divisorOf(std::max(parts, 1u));
    const MoveRecord record{grid.destination,
                            grid.source,
                            length,
                            parts,
                            divisor.multiplier,
                            static_cast<uint8_t>(divisor.shift),
                            form.path,
                            form.isFill,
                            static_cast<uint8_t>(grid.count),
                            form.destinationType,
                            form.sourceType,
                            form.destinationWidth,
                            form.sourceWidth};
    std::memcpy(records_.data() + at, &record, sizeof record);
    for (uint32_t i = 0; i < grid.count; i++) {
      const Dimension& from = grid.dimensions[i];
      const auto size = static_cast<uint32_t>(from.length);
      const DimensionRecord dimension{size, 0, divisorOf(size), from.destinationStep, from.sourceStep};
      std::memcpy(records_.data() + at + recordWords + i * dimensionWords, &dimension, sizeof dimension);
    }
    return static_cast<uint32_t>(at);
  }

  /** A dimension behind those of the last record. */
  void addDimension(const Dimension& dimension) {
    const size_t at = records_.size();
    const DimensionRecord record{static_cast<uint32_t>(dimension.length), 0, divisorOf(1), dimension.destinationStep,
                                 dimension.sourceStep};
    records_.resize(at + sizeof record / sizeof(uint64_t));
    std::memcpy(records_.data() + at, &record, sizeof record);
  }

  void addUnits(uint32_t record, uint64_t indices, uint64_t perUnit) {
    for (uint64_t at = 0; at < indices; at += perUnit)
      units_.push_back({record, 1, static_cast<uint32_t>(at), static_cast<uint32_t>(std::min(perUnit, indices - at))});
  }

  /** Small runs that follow one another share a unit. */
  void addSharedUnit(uint32_t record, uint32_t parts, uint64_t bytes) {
    const bool follows = sharedEnd_ == record && sharedBytes_ + bytes <= unitBytes;
    if (follows && units_.back().count + parts <= sharedParts) {
      units_.back().records++;
      units_.back().count += parts;
      sharedBytes_ += bytes;
    } else {
      units_.push_back({record, 1, 0, parts});
      sharedBytes_ = bytes;
    }
    sharedEnd_ = static_cast<uint32_t>(records_.size());
  }

  std::vector<uint64_t> records_;
  std::vector<UnitRecord> units_;
  uint64_t bytesRead_ = 0, bytesWritten_ = 0;
  /** Where the record behind the last shared unit would begin, and the unit's bytes. */
  uint32_t sharedEnd_ = ~0u;
  uint64_t sharedBytes_ = 0;
};

}  // namespace

Result<Batch> compileMoves(const MoveList& moves) {
  Compiler compiler(moves.size());
  for (size_t i = 0; i < moves.size(); i++) {
    Status status = compiler.add(moves.at(i));
    if (!status.ok()) return status;
  }
  return compiler.finish();
}

Result<Batch> compileCompare(const Move& move) {
  Compiler compiler(1);
  Status status = compiler.addComparison(move);
  if (!status.ok()) return status;
  return compiler.finish();
}

std::optional<ByteRun> byteRunOf(const Move& move) noexcept {
  if (move.kind != MoveKind::Copy || move.destinationType != move.sourceType || move.dimensionCount > 1 ||
      move.pid != 0)
    return std::nullopt;
  if (move.dimensionCount == 1 &&
      (move.dimensions[0].destinationStep != move.destinationSize || move.dimensions[0].sourceStep != move.sourceSize))
    return std::nullopt;
  return ByteRun{move.destination, move.source, destinationBytes(move)};
}

}  // namespace tensorferry::gpu
