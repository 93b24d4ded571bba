// SPDX-License-Identifier: Apache-2.0
/*
 * What kernels are given: one struct by value each, and tables that lie in device memory. Owns their layouts, which host and
 * device share.
 *
 * Invariants: a table holds no address of itself, so it may be uploaded anywhere (16-byte aligned) and run any number of
 * times. Every index is below 2^30 (`maxIndex`), so that positions are found with 32-bit divisions; addresses and steps
 * have 64 bits. Compiled by C++ and by the run-time compilers: no standard header beyond integers.h.
 */
#pragma once

#include <tensorferry/integers.h>

namespace tensorferry::gpu {

/** Threads per block of `tensorferry_move`, `tensorferry_reduce` and `tensorferry_compare`: neither more nor fewer. */
inline constexpr uint32_t blockThreads = 512;

/**
 * Neighbouring threads that share a part of a run, or a row of blocks. Only those that share a block exchange anything, so a
 * team need not be a whole warp.
 */
inline constexpr uint32_t teamThreads = 32;

/** Indices, and the lengths of dimensions, are at most this. */
inline constexpr uint32_t maxIndex = 1u << 30;

/** Bytes of a part, which one team copies. Parts begin where the destination is a multiple of `partAlignment`. */
inline constexpr uint32_t partBytes = 4096;
inline constexpr uint32_t partAlignment = 128;

/** Bytes of a unit, which one block copies. */
inline constexpr uint32_t unitBytes = 64 * 1024;

/** Division by a number that is known beforehand: `(high half of n * multiplier + n) >> shift` for n < 2 * maxIndex. */
struct Divisor {
  uint32_t multiplier, shift;
};

struct DimensionRecord {
  uint32_t length;
  uint32_t unused;
  Divisor divisor;
  /** Bytes between neighbours. */
  int64_t destinationStep, sourceStep;
};

enum class Path : uint8_t {
  /** Rows of dense bytes, cut into parts. An index is a part: parts of a row are neighbours. */
  Runs,
  /** Pieces of `destinationWidth` bytes, copied as they are. An index is a piece. */
  Pieces,
  /** Elements that are cast one by one. An index is an element. */
  Casts,
  /** Four dense elements at a time that are cast. An index is such a group. */
  CastsOfFour,
  /**
   * Squares of elements of two or four bytes, 16 bytes wide, that are turned. An index is a square. One more dimension follows
   * the record's own: bytes between the square's columns at the destination, and between its rows at the source.
   */
  Turns,
};

/** Whole moves or parts of one; followed by `dimensionCount` dimensions, the innermost first. */
struct MoveRecord {
  uint64_t destination;
  /** Address, or the byte to fill with in each of eight bytes. */
  uint64_t source;
  /** Runs: bytes of a row. Comparisons: place of the first byte in the order of the whole. */
  uint64_t length;
  /** Runs: parts of a row. */
  uint32_t parts;
  uint32_t partsMultiplier;
  uint8_t partsShift;
  Path path;
  uint8_t isFill;
  uint8_t dimensionCount;
  uint8_t destinationType, sourceType;
  /** Bytes that may be accessed at once: all addresses are multiples of it. At most 16. */
  uint8_t destinationWidth, sourceWidth;
};

/** What one block does at a time: indices of one record, or several records of the path Runs without dimensions. */
struct UnitRecord {
  /** Position of the first record in the table, in 8-byte words. */
  uint32_t record;
  uint32_t records;
  /** First index in the record; 0 where there are several. */
  uint32_t begin;
  /** Indices of one record, or the parts of all. */
  uint32_t count;
};

static_assert(sizeof(DimensionRecord) == 32 && sizeof(MoveRecord) == 40 && sizeof(UnitRecord) == 16, "shared layouts");

/** Parameter of `tensorferry_move`. Blocks take units in turn; any number of blocks will do. */
struct MoveParameter {
  /** Address of the table. */
  uint64_t table;
  /** Position of the first UnitRecord in the table, in 8-byte words. */
  uint32_t unitsAt;
  uint32_t unitCount;
};

/** What `tensorferry_compare` adds to; set to `noDifference` before the launch. */
struct Difference {
  /** Bytes that differ. */
  uint64_t bytes;
  /** The first byte that differs, counted in the order of the (normalised) move. */
  uint64_t first;
};

inline constexpr Difference noDifference{0, ~0ull};

/** Parameter of `tensorferry_compare`: a table made by `compileCompare`. */
struct CompareParameter {
  MoveParameter move;
  /** Address of a Difference. */
  uint64_t difference;
};

/**
 * One reduction; followed by `dimensionCount` ReduceDimensions, the innermost first, and then, for the destination and each
 * operand in turn, an address and its `dimensionCount` steps in bytes, the innermost first.
 */
struct ReduceRecord {
  /** Number of elements, or of groups of four dense elements. */
  uint32_t count;
  uint32_t operands;
  uint8_t op, type, dimensionCount;
  /** Elements at an index: 1 or 4. */
  uint8_t group;
  /** Bytes that may be accessed at once. */
  uint8_t width;
  uint8_t unused[3];
};

struct ReduceDimension {
  uint32_t length;
  uint32_t unused;
  Divisor divisor;
};

static_assert(sizeof(ReduceRecord) == 16 && sizeof(ReduceDimension) == 16, "shared layouts");

/** Parameter of `tensorferry_reduce`. Any number of blocks will do. */
struct ReduceParameter {
  /** Address of the first record; all are equally long. */
  uint64_t table;
  uint32_t records;
  /** Words of a record with what follows it. */
  uint32_t recordWords;
};

/** Neighbouring blocks that one team converts together. */
inline constexpr uint32_t blocksOfTeam = 32;

/**
 * Block scaling of one tensor; followed by `dimensionCount` QuantizeDimensions, the innermost first. An index is a block, or,
 * where `lastBlocks` is not 0, `blocksOfTeam` neighbours of a dense row; the last index of a row has `lastBlocks` only.
 */
struct QuantizeRecord {
  uint64_t plain, data, scales;
  /** Bytes between the elements of a block. */
  int64_t plainStep, dataStep;
  /** Rows: bytes between the scales of neighbours. */
  int64_t scaleStep;
  uint32_t count;
  uint8_t isQuantization, rule, type, dimensionCount;
  /** Bytes that may be accessed at once. */
  uint8_t plainWidth, dataWidth;
  uint8_t lastBlocks;
  uint8_t unused[5];
};

struct QuantizeDimension {
  uint32_t length;
  uint32_t unused;
  Divisor divisor;
  /** Bytes between neighbouring indices. */
  int64_t plainStep, dataStep, scaleStep;
};

static_assert(sizeof(QuantizeRecord) == 64 && sizeof(QuantizeDimension) == 40, "shared layouts");

/** Parameter of `tensorferry_quantize`. Any number of blocks will do. */
struct QuantizeParameter {
  /** Address of the first record; all are equally long. */
  uint64_t table;
  uint32_t records;
  /** Words of a record with what follows it. */
  uint32_t recordWords;
};

/** What one record of forms does. Steps of a conversion are launched one after the other. */
enum class FormStep : uint8_t {
  /** Zeroes maxima: an index is a word of four bytes. */
  Clear,
  /** Raises maxima by largest magnitudes. An index is a cell, as in all steps but the last two. */
  Search,
  /** Finds what the global scale settles: one index. */
  Prepare,
  /** Codes and scales, where maxima are known or a cell is a block; or values from those. */
  Convert,
  Read,
  /** Blocks of many rows. An index is a block, which all threads of a block of threads take together. */
  Tiles,
  /** Dense rows of narrow blocks. An index is 16 neighbours of a row. */
  Groups,
};

/** Columns of a cell at most: of one row and one block. */
inline constexpr uint32_t cellColumns = 32;
/** Neighbours that one thread takes in `FormStep::Groups`. */
inline constexpr uint32_t groupColumns = 16;
/**
 * Threads per block of `tensorferry_tiles` and `tensorferry_groups`: half as many as elsewhere, so that twice as many blocks
 * are at different stages of their work.
 */
inline constexpr uint32_t formThreads = 256;
/** Vectors of a tile that a thread holds: in 16 bits, a block of 128 by 128. Others it reads twice. */
inline constexpr uint32_t tileRounds = 8;

/**
 * Quantized forms: one step of a conversion. Matrices are the last two dimensions, from row `firstRow` on; its
 * FormDimensions are in the table, the innermost first. Addresses are those of the record's first row, but scales and maxima
 * of the matrix's first. `plainStep` and so on are bytes between columns, or what there is one of per block.
 */
struct FormRecord {
  uint64_t plain, codes, scales, global;
  /** Where maxima lie, and the three numbers of a GlobalScaling: addresses, or bytes from the beginning of the table. */
  uint64_t maxima, settled;
  int64_t plainRow, codesRow, scalesRow, maximaRow;
  int64_t plainStep, codesStep, scalesStep, maximaStep;
  uint32_t count, rows, cells, columns;
  uint32_t firstRow, blockRows, blockColumns, originRow, originColumn, cellsOfBlock;
  Divisor byCells, byRows, byCellsOfBlock, byBlockRows;
  uint8_t rule, plainType, scaleType, dimensionCount;
  FormStep step;
  /** Bytes that may be accessed at once. */
  uint8_t plainWidth, codesWidth;
  uint8_t hasMaxima, areMaximaInTable, isOneMaximum, keepsGlobal;
  /** Groups: all rows lie one after the other, in every part. */
  uint8_t isFlat;
  /** Bytes from the beginning of the table. */
  uint32_t dimensions;
};

struct FormDimension {
  uint32_t length;
  uint32_t unused;
  Divisor divisor;
  int64_t plainStep, codesStep, scalesStep, maximaStep;
};

static_assert(sizeof(FormRecord) == 200 && sizeof(FormDimension) == 48, "shared layouts");

/**
 * Parameter of `tensorferry_tiles`, `tensorferry_groups` and, for all other steps, `tensorferry_forms`. Any number of blocks
 * will do. The record comes by value: processors have parameters at hand, and would wait for memory.
 */
struct FormParameter {
  /** Address of the table: dimensions, what the global scale settles, and maxima that nobody gave. */
  uint64_t table;
  FormRecord record;
};

/** What one launch of `tensorferry_changes` does. Those of a search, or of a writing, come one after the other. */
enum class ChangeStep : uint32_t {
  /** Sets the bits of elements that differ, and counts those of each tile. An index is a tile. */
  Compare,
  /** Makes counts of tiles what comes before each in its group. An index is a group. */
  Scan,
  /** Writes positions and values. An index is a tile. */
  Collect,
  /** Looks for positions that cannot be written. An index is a change. */
  Check,
  /** Writes elements, where none was found. An index is a change. */
  Write,
};

/** Elements whose bits of difference have a byte, those of a tile, and tiles of a group. */
inline constexpr uint32_t octet = 8, tileElements = 4096, groupTiles = 256;
/** Positions that a thread looks at together. */
inline constexpr uint32_t checkedAtOnce = 8;

/** Result of a writing before it, and after it where all positions are right; else the place of a wrong one. */
inline constexpr uint64_t allAscend = ~0ull;

/**
 * Changes of one tensor; followed by `dimensionCount` ChangeAxes, the innermost first. `base` is the destination where
 * changes are written.
 */
struct ChangeRecord {
  uint64_t base, current, positions, values;
  uint64_t elements;
  /** Changes that there is room for, or that are written. */
  uint64_t room;
  uint8_t size, dimensionCount;
  /** Bytes that may be accessed at once. */
  uint8_t baseWidth, currentWidth, positionsWidth, valuesWidth;
  /** Elements of both sides follow one another, and eight of them are read at once. */
  uint8_t isWide;
  uint8_t unused;
};

struct ChangeAxis {
  uint64_t length;
  /** Bytes between neighbours. */
  int64_t baseStep, currentStep;
};

static_assert(sizeof(ChangeRecord) == 56 && sizeof(ChangeAxis) == 24, "shared layouts");

/** Parameter of `tensorferry_changes`. Any number of blocks will do. */
struct ChangeParameter {
  /** Addresses of the record, and of the result: 8 bytes. */
  uint64_t record, result;
  /** Numbers of changes, 4 bytes each: of all groups; of these tiles; and as many again for teams to count in. */
  uint64_t totals, counts, cursors;
  /** A byte for each octet of these tiles. A multiple of 16. */
  uint64_t bits;
  /** A multiple of `groupTiles`. */
  uint64_t firstTile;
  /** Tiles of this launch and of the whole tensor. */
  uint32_t tiles, allTiles;
  ChangeStep step;
  uint32_t unused;
};

/**
 * Threads per block of `tensorferry_products`, which takes tiles of a product. A thread has some rows of a tile, of four columns
 * each; teams lie below one another.
 */
inline constexpr uint32_t productThreads = 256, productRows = 8;
inline constexpr uint32_t productTileRows = productThreads / teamThreads * productRows,
                          productTileColumns = 4 * teamThreads;

/**
 * Parameter of `tensorferry_products`: the addition of a product. Any number of blocks will do. Steps are bytes between rows and
 * between columns.
 */
struct ProductParameter {
  uint64_t destination, base, b, a;
  int64_t destinationSteps[2], baseSteps[2], bSteps[2], aSteps[2];
  uint64_t tiles;
  uint32_t rows, columns, rank;
  float scale;
  uint8_t type, factorType;
  /** Bytes of an element that may be accessed at once. */
  uint8_t destinationWidth, baseWidth, bWidth, aWidth;
  /**
   * Whether four neighbours follow one another wherever a thread has some, and are accessed at once: columns of the
   * destination and of the base, ranks of a row of the factor `b`, and columns of `a`.
   */
  uint8_t isWide, isWideB, isWideA;
  uint8_t unused[7];
};

/** Threads per block of `tensorferry_digest`. */
inline constexpr uint32_t digestThreads = 256;

/** What one launch of `tensorferry_digest` does; that of sums follows that which clears. */
enum class DigestStep : uint32_t { Clear, Sum };

/**
 * Bytes of a part that follow one another, many times over; followed by `dimensionCount` DigestAxes, the innermost first. An
 * index is a block of a run, or a run where `blocks` is 0.
 */
struct DigestRecord {
  uint64_t address;
  /** Bytes from the beginning of the whole. */
  uint64_t position;
  uint64_t run;
  /** Blocks that a run takes part in at most. */
  uint64_t blocks;
  uint32_t part;
  /** Bits of each byte that count. */
  uint8_t mask;
  uint8_t dimensionCount;
  /** Bytes that may be accessed at once. */
  uint8_t width;
  uint8_t unused;
};

struct DigestAxis {
  uint64_t length;
  /** Bytes between neighbours, in memory and in the whole. */
  uint64_t step, positionStep;
};

/** What one team does at a time: indices of one record. */
struct DigestUnit {
  uint64_t first;
  /** Position of the record in the table, in 8-byte words. */
  uint32_t record;
  uint32_t count;
};

static_assert(sizeof(DigestRecord) == 40 && sizeof(DigestAxis) == 24 && sizeof(DigestUnit) == 16, "shared layouts");

/** Parameter of `tensorferry_digest`. Any number of blocks will do. */
struct DigestParameter {
  /** Address of the table. */
  uint64_t table;
  /** Positions of the units, and of two results for each part, in 8-byte words. */
  uint32_t unitsAt, resultsAt;
  /** Units, or results to clear. */
  uint32_t count;
  DigestStep step;
};

/** Parameter of `tensorferry_spin`: launch one block of one thread. */
struct SpinParameter {
  uint64_t nanoseconds;
  /** Kilohertz of the device's wall clock; read on AMD only (hipDeviceAttributeWallClockRate). */
  uint64_t clockRate;
};

}  // namespace tensorferry::gpu
