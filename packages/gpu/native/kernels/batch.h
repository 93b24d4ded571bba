// SPDX-License-Identifier: Apache-2.0
/*
 * Compiles moves and reductions into the tables that kernels read. No GPU, no JavaScript; pure functions, any thread.
 *
 * Invariants: a compiled table does exactly what the moves say, whatever their shapes; what cannot be compiled is refused
 * with InvalidArgument and the number of the move. Addresses are not looked at: that they are valid on the device is the
 * caller's promise. Copies of a region onto itself are left out.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <tensorferry/moves.h>
#include <tensorferry/status.h>

#include "parameters.h"

namespace tensorferry::gpu {

/** A table of moves. Upload `table` to an address that is a multiple of 16. */
struct Batch {
  std::vector<uint64_t> table;
  /** Position of the units in the table, in words. */
  uint32_t unitsAt = 0;
  /** Zero where there is nothing to do: then nothing needs to be launched. */
  uint32_t unitCount = 0;
  uint64_t bytesRead = 0, bytesWritten = 0;
};

/** Units that a batch may have: tables of more would be larger than any device needs. */
inline constexpr uint32_t maxUnits = 1u << 24;

/** A table for `tensorferry_move`. */
Result<Batch> compileMoves(const MoveList& moves);

/** A table for `tensorferry_compare`, of one copy of equal types: its two sides are compared. */
Result<Batch> compileCompare(const Move& move);

/** One launch of a kernel of quantized forms. */
struct FormLaunch {
  FormRecord record;
  uint32_t usefulBlocks;
};

/** A table of one reduction, or of one conversion of quantized forms. */
struct Reduction {
  std::vector<uint64_t> table;
  /** Words behind the table that launches write before they read them. */
  uint64_t scratchWords = 0;
  /** Zero where there is nothing to do. */
  uint32_t records = 0;
  uint32_t recordWords = 0;
  /** Blocks beyond this find nothing to do. */
  uint32_t usefulBlocks = 0;
  uint64_t bytesRead = 0, bytesWritten = 0;
  /** Launches for quantized forms, in order; none where `records` are those of `tensorferry_quantize`. */
  std::vector<FormLaunch> launches;
};

/**
 * A table for `tensorferry_reduce`, from words as `makeReduceJob` of backend-torch-copy takes them (`encodeReduce` in
 * MoveTable.ts).
 */
Result<Reduction> compileReduce(const uint64_t* words, size_t count);

/**
 * A table of one conversion for `tensorferry_quantize`, or for the kernels of quantized forms where it has launches, from
 * words as QuantizeTable.ts makes them.
 */
Result<Reduction> compileQuantize(const uint64_t* words, size_t count);

/** One launch of `tensorferry_changes`. */
struct ChangeLaunch {
  ChangeStep step;
  uint32_t tiles;
  uint64_t firstTile;
  uint32_t usefulBlocks;
};

/** A search for changes, or their writing. */
struct ChangeWork {
  /** The record, and the result in the last two words: 8 bytes that the launches leave there. */
  std::vector<uint64_t> table;
  /** Words of the table, also once it has served. */
  size_t words = 0;
  /** Bytes of the device beside it, at a multiple of 256; what they hold does not matter. */
  uint64_t scratchBytes = 0;
  /** Bytes from the beginning of those to the counts of tiles, what teams count in, and the bits. */
  uint64_t countsAt = 0, cursorsAt = 0, bitsAt = 0;
  uint32_t allTiles = 0;
  std::vector<ChangeLaunch> launches;
};

/** Tiles that one segment of a search has at most: 2^28 elements, for 33 MiB beside the table. */
inline constexpr uint64_t searchTiles = 65'536;

/**
 * Work for `tensorferry_changes`, from words as ChangeTable.ts makes them. `segmentTiles` is a multiple of `groupTiles`.
 */
Result<ChangeWork> compileChanges(const uint64_t* words, size_t count, uint64_t segmentTiles = searchTiles);

/** The addition of a product. */
struct ProductWork {
  ProductParameter parameter{};
  uint32_t usefulBlocks = 0;
};

/** Work for `tensorferry_products`, from words as ProductTable.ts makes them. */
Result<ProductWork> compileProduct(const uint64_t* words, size_t count);

/** Digests of parts. */
struct DigestWork {
  /** Records, units and, in its last words, the results. */
  std::vector<uint64_t> table;
  uint32_t unitsAt = 0, resultsAt = 0, unitCount = 0;
  /** Words of results. */
  uint32_t results = 0;
};

/** Work for `tensorferry_digest`, from words as DigestTable.ts makes them. */
Result<DigestWork> compileDigest(const uint64_t* words, size_t count);
DigestParameter digestParameter(const DigestWork& work, DigestStep step, uint64_t table) noexcept;
/** Blocks of a launch that find something to do. */
inline uint32_t usefulBlocks(const DigestParameter& parameter) noexcept {
  const uint32_t perBlock = parameter.step == DigestStep::Clear ? digestThreads : digestThreads / teamThreads;
  return parameter.count / perBlock + (parameter.count % perBlock != 0 ? 1 : 0);
}

/** Where the result of changes lies whose table was uploaded. */
inline uint64_t changeResult(const ChangeWork& work, uint64_t table) noexcept { return table + 8 * (work.words - 2); }
ChangeParameter changeParameter(const ChangeWork& work, const ChangeLaunch& launch, uint64_t table,
                                uint64_t scratch) noexcept;

/** Parameters for tables that were uploaded to `address`. */
inline MoveParameter moveParameter(const Batch& batch, uint64_t address) noexcept {
  return {address, batch.unitsAt, batch.unitCount};
}
inline CompareParameter compareParameter(const Batch& batch, uint64_t address, uint64_t difference) noexcept {
  return {moveParameter(batch, address), difference};
}
inline ReduceParameter reduceParameter(const Reduction& reduction, uint64_t address) noexcept {
  return {address, reduction.records, reduction.recordWords};
}
inline QuantizeParameter quantizeParameter(const Reduction& quantization, uint64_t address) noexcept {
  return {address, quantization.records, quantization.recordWords};
}

inline FormParameter formParameter(const FormLaunch& launch, uint64_t address) noexcept {
  return {address, launch.record};
}

/** Bytes in a row. */
struct ByteRun {
  uint64_t destination, source, bytes;
};

/** The run that a normalised move is, where it copies bits between dense regions: a copy engine can do it. */
std::optional<ByteRun> byteRunOf(const Move& move) noexcept;

}  // namespace tensorferry::gpu
