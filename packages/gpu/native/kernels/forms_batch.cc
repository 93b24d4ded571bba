// SPDX-License-Identifier: Apache-2.0
/*
 * See batch.h. Compiles conversions of quantized forms into launches: what searches for maxima, what they settle, and the
 * conversion itself. Maxima that nobody gave lie behind the dimensions.
 */
#include <algorithm>
#include <array>
#include <cstring>

#include <tensorferry/tables/quantize_table.h>

#include "batch.h"
#include "forms_batch.h"
#include "grid.h"

namespace tensorferry::gpu {
namespace {

Status refuse(const char* detail) { return failure(Code::InvalidArgument, "compileQuantize", detail); }

/** Vectors of a tile at least and at most: fewer leave threads idle, more are read twice from far away. */
constexpr uint64_t leastTile = formThreads, mostTile = 128ull * formThreads;

/** What all records of one conversion share. */
struct Form {
  const QuantizeTable& table;
  FormRecord head;
  std::vector<FormDimension> dimensions;
  Reduction made;

  /** Rows of one record, so that its indices are few enough. */
  uint64_t rowsOfRecord(uint64_t perRow) const {
    return std::max<uint64_t>(1, maxIndex / std::max<uint64_t>(1, perRow * table.matrixCount));
  }

  void add(const FormRecord& record, uint64_t perBlock) {
    made.launches.push_back({record, static_cast<uint32_t>((record.count + perBlock - 1) / perBlock)});
  }

  /** Launches whose indices are `perRow` to each of so many rows; `rowStep` rows of the matrix are one of them. */
  void addRows(FormStep step, uint64_t rows, uint64_t perRow, uint64_t rowStep, uint64_t perBlock) {
    const uint64_t chunk = std::min(rows, rowsOfRecord(perRow));
    for (uint64_t from = 0; from < rows; from += chunk) {
      FormRecord record = head;
      const uint64_t length = std::min(chunk, rows - from);
      record.step = step;
      record.rows = static_cast<uint32_t>(length);
      record.firstRow = static_cast<uint32_t>(from * rowStep);
      record.count = static_cast<uint32_t>(length * perRow * table.matrixCount);
      record.byRows = divisorOf(record.rows);
      record.cells = static_cast<uint32_t>(perRow);
      record.byCells = divisorOf(record.cells);
      record.plain += from * rowStep * static_cast<uint64_t>(head.plainRow);
      record.codes += from * rowStep * static_cast<uint64_t>(head.codesRow);
      if (step == FormStep::Tiles) record.scales += from * static_cast<uint64_t>(head.scalesRow);
      add(record, perBlock);
    }
  }

  /** From here on records have the dimensions as they are now. */
  void placeDimensions() {
    const size_t at = made.table.size();
    head.dimensions = static_cast<uint32_t>(8 * at);
    made.table.resize(at + dimensions.size() * sizeof(FormDimension) / 8);
    if (!dimensions.empty())
      std::memcpy(made.table.data() + at, dimensions.data(), dimensions.size() * sizeof(FormDimension));
  }

  /** A launch of one index, or of so many words. */
  void addOne(FormStep step, uint64_t count) {
    FormRecord record = head;
    record.step = step;
    record.count = static_cast<uint32_t>(count);
    add(record, blockThreads);
  }
};

bool isDense(const QuantizeTable& table) {
  return table.columns.steps[PlainPart] == dtypeBytes[table.plainType] && table.columns.steps[CodePart] == 1;
}

/** The widest access that all rows of a part allow. */
uint8_t widthOf(const QuantizeTable& table, Part part) {
  uint64_t bits = table.addresses[part] | static_cast<uint64_t>(table.columns.steps[part]);
  if (isDense(table) && part != MaximaPart) bits = table.addresses[part];
  if (table.rows.length > 1) bits |= static_cast<uint64_t>(table.rows.steps[part]);
  for (const OuterDimension& dimension : table.matrices)
    if (dimension.length > 1) bits |= static_cast<uint64_t>(dimension.steps[part]);
  return commonWidth({bits});
}

/** Whether blocks are tiles that threads take together. */
bool isTiled(const QuantizeTable& table) {
  const uint64_t vectors = table.blockRows * table.blockColumns * dtypeBytes[table.plainType] / 16;
  return table.op == QuantizeOp::Quantize && formOf(table.rule) == QuantizeForm::Fp8 && !table.hasMaxima &&
         table.originRow == 0 && table.originColumn == 0 && table.blockRows > 1 &&
         table.rows.length % table.blockRows == 0 && table.columns.length % table.blockColumns == 0 &&
         table.blockColumns * dtypeBytes[table.plainType] % 16 == 0 && vectors >= leastTile && vectors <= mostTile &&
         isDense(table) && widthOf(table, PlainPart) == 16 &&
         widthOf(table, CodePart) >= 16 / dtypeBytes[table.plainType];
}

/** Whether threads take 16 neighbours of dense rows. */
bool isGrouped(const QuantizeTable& table) {
  const uint64_t sharers = table.blockColumns / groupColumns;
  const bool isPower = sharers == 1 || sharers == 2 || sharers == 4 || sharers == 8;
  return table.op == QuantizeOp::Quantize && (!table.hasMaxima || formOf(table.rule) == QuantizeForm::Nvfp4) &&
         table.rowsOfMaximum() == 1 && table.originColumn == 0 && table.blockColumns % groupColumns == 0 && isPower &&
         table.columns.length % table.blockColumns == 0 && isDense(table) && widthOf(table, PlainPart) == 16 &&
         widthOf(table, CodePart) >= (isPacked(formOf(table.rule)) ? 8 : 16) &&
         table.rule != QuantizeRule::Nvfp4TransformerEngine4Over6;
}

/** Whether all rows of the one matrix lie one after the other, codes and scales too. */
bool isFlat(const QuantizeTable& table) {
  const auto columns = static_cast<int64_t>(table.columns.length);
  const auto codes = isPacked(formOf(table.rule)) ? columns / 2 : columns;
  const auto across = static_cast<int64_t>(table.blocksAcross());
  return table.matrixCount == 1 && table.rows.length * table.columns.length / groupColumns < maxIndex &&
         (table.rows.length == 1 || (table.rows.steps[PlainPart] == columns * table.columns.steps[PlainPart] &&
                                     table.rows.steps[CodePart] == codes &&
                                     table.rows.steps[ScalePart] == across * table.columns.steps[ScalePart]));
}

FormRecord headOf(const QuantizeTable& table) {
  FormRecord head{};
  head.plain = table.addresses[PlainPart];
  head.codes = table.addresses[CodePart];
  head.scales = table.addresses[ScalePart];
  head.maxima = table.addresses[MaximaPart];
  head.global = table.global;
  head.plainRow = table.rows.steps[PlainPart];
  head.codesRow = table.rows.steps[CodePart];
  head.scalesRow = table.rows.steps[ScalePart];
  head.maximaRow = table.rows.steps[MaximaPart];
  head.plainStep = table.columns.steps[PlainPart];
  head.codesStep = table.columns.steps[CodePart];
  head.scalesStep = table.columns.steps[ScalePart];
  head.maximaStep = table.columns.steps[MaximaPart];
  head.columns = static_cast<uint32_t>(table.columns.length);
  // A block that ends beyond the tensor ends with it here.
  head.blockRows = static_cast<uint32_t>(std::min(table.rowsOfMaximum(), table.originRow + table.rows.length));
  head.blockColumns = static_cast<uint32_t>(std::min(table.blockColumns, table.originColumn + table.columns.length));
  head.originRow = static_cast<uint32_t>(table.originRow);
  head.originColumn = static_cast<uint32_t>(table.originColumn);
  head.cellsOfBlock =
      static_cast<uint32_t>((std::min(table.blockColumns, table.columns.length) + cellColumns - 1) / cellColumns);
  head.byCells = head.byRows = divisorOf(1);
  head.byCellsOfBlock = divisorOf(head.cellsOfBlock);
  head.byBlockRows = divisorOf(head.blockRows);
  head.rule = static_cast<uint8_t>(table.rule);
  head.plainType = table.plainType;
  head.scaleType = table.scaleType;
  head.plainWidth = widthOf(table, PlainPart);
  head.codesWidth = widthOf(table, CodePart);
  head.hasMaxima = table.hasMaxima && formOf(table.rule) != QuantizeForm::Nvfp4;
  head.isOneMaximum = table.isOneMaximum;
  head.keepsGlobal = table.keepsGlobal;
  return head;
}

/** Maxima of their own behind the dimensions: dense, matrix by matrix. */
void placeMaxima(Form& form, uint64_t first, bool isOne) {
  const uint64_t across = form.table.blocksAcross();
  const uint64_t down = QuantizeTable::blocksOver(form.table.rows.length, form.head.blockRows, form.table.originRow);
  form.head.maxima = first;
  form.head.areMaximaInTable = 1;
  form.head.hasMaxima = !isOne;
  form.head.maximaStep = isOne ? 0 : 4;
  form.head.maximaRow = isOne ? 0 : static_cast<int64_t>(4 * across);
  int64_t step = isOne ? 0 : static_cast<int64_t>(4 * across * down);
  for (FormDimension& dimension : form.dimensions) {
    dimension.maximaStep = step;
    step *= dimension.length;
  }
  form.placeDimensions();
}

Status checkExtents(const QuantizeTable& table) {
  const uint64_t halves = isPacked(formOf(table.rule)) && table.op != QuantizeOp::Largest ? 2 : 1;
  for (size_t part = 0; part < partCount; part++) {
    if (part != PlainPart && table.op == QuantizeOp::Largest) continue;
    if (part == MaximaPart) continue;
    const auto dimensionAt = [&](size_t d) -> std::pair<uint64_t, int64_t> {
      if (d == 0) {
        const uint64_t length =
            part == ScalePart ? table.blocksAcross() : table.columns.length / (part == CodePart ? halves : 1);
        return {length, table.columns.steps[part]};
      }
      if (d == 1) return {part == ScalePart ? table.blocksDown() : table.rows.length, table.rows.steps[part]};
      return {table.matrices[d - 2].length, table.matrices[d - 2].steps[part]};
    };
    const uint64_t bytes = part == PlainPart   ? dtypeBytes[table.plainType]
                           : part == ScalePart ? dtypeBytes[table.scaleType]
                                               : 1;
    if (!extentOf(table.addresses[part], bytes, table.matrices.size() + 2, dimensionAt))
      return refuse("A tensor has a negative stride or leaves the address space.");
  }
  return {};
}

}  // namespace

Result<Reduction> compileForms(const QuantizeTable& table) {
  const uint64_t elements = table.matrixCount * table.rows.length * table.columns.length;
  if (elements == 0) return Reduction{};
  if (table.originRow + table.rows.length >= maxIndex || table.originColumn + table.columns.length >= maxIndex ||
      table.matrixCount >= maxIndex)
    return refuse("A dimension is longer than any device needs.");
  if (table.matrices.size() > 2 * maxDimensions) return refuse("More than 32 dimensions remain.");
  if (Status status = checkExtents(table); !status.ok()) return status;
  if (table.op == QuantizeOp::Largest && widthOf(table, MaximaPart) < 4)
    return refuse("Maxima do not lie at multiples of four bytes.");
  Form form{table, headOf(table), {}, {}};
  for (size_t d = table.matrices.size(); d > 0; d--) {
    const OuterDimension& from = table.matrices[d - 1];
    const auto length = static_cast<uint32_t>(from.length);
    form.dimensions.push_back({length, 0, divisorOf(length), from.steps[PlainPart], from.steps[CodePart],
                               from.steps[ScalePart], from.steps[MaximaPart]});
  }
  form.head.dimensionCount = static_cast<uint8_t>(form.dimensions.size());
  const bool isNvfp4 = formOf(table.rule) == QuantizeForm::Nvfp4 && table.op == QuantizeOp::Quantize;
  const bool tiles = isTiled(table), groups = isGrouped(table);
  const uint64_t across = table.blocksAcross(), rows = table.rows.length, cells = across * form.head.cellsOfBlock;
  if (cells >= maxIndex) return refuse("A dimension is longer than any device needs.");
  // A cell finds its own maximum where it is all of a block.
  const bool asksForAll = isNvfp4 && !table.hasMaxima && !table.keepsGlobal;
  const bool asksForBlocks = table.op == QuantizeOp::Quantize && !tiles && !groups && form.head.hasMaxima == 0 &&
                             (form.head.cellsOfBlock > 1 || form.head.blockRows > 1);
  const uint64_t down = QuantizeTable::blocksOver(rows, form.head.blockRows, table.originRow);
  const uint64_t blockWords = asksForBlocks ? (table.matrixCount * down * across + 1) / 2 : 0;
  if (blockWords >= maxIndex) return refuse("There are more blocks than any device needs.");
  // Dimensions come first, at most three times with other maxima; then one word for all, three numbers, and a word for each
  // block.
  const uint64_t behind = 3 * form.dimensions.size() * sizeof(FormDimension) / 8;
  form.head.settled = 8 * (behind + 1);
  const auto searchFor = [&](uint64_t first, uint64_t words, bool isOne) {
    placeMaxima(form, 8 * first, isOne);
    form.addOne(FormStep::Clear, 2 * words);
    form.addRows(FormStep::Search, rows, cells, 1, blockThreads);
  };
  form.placeDimensions();
  const FormRecord given = form.head;
  const std::vector<FormDimension> stated = form.dimensions;
  if (asksForAll) searchFor(behind, 1, true);
  if (isNvfp4 && !(groups && table.keepsGlobal)) form.addOne(FormStep::Prepare, 1);
  form.head = given;
  form.dimensions = stated;
  if (asksForBlocks) searchFor(behind + 4, blockWords, false);
  const uint64_t columns = table.columns.length;
  if (table.op == QuantizeOp::Largest) {
    form.addRows(FormStep::Search, rows, cells, 1, blockThreads);
  } else if (tiles) {
    form.head.cellsOfBlock = static_cast<uint32_t>(table.blockColumns * dtypeBytes[table.plainType] / 16);
    form.head.byCellsOfBlock = divisorOf(form.head.cellsOfBlock);
    form.addRows(FormStep::Tiles, rows / table.blockRows, across, table.blockRows, 1);
  } else if (groups) {
    form.head.cellsOfBlock = static_cast<uint32_t>(table.blockColumns / groupColumns);
    form.head.byCellsOfBlock = divisorOf(form.head.cellsOfBlock);
    form.head.isFlat = isFlat(table);
    if (form.head.isFlat != 0) {
      form.addRows(FormStep::Groups, 1, rows * columns / groupColumns, 1, formThreads);
    } else {
      form.addRows(FormStep::Groups, rows, columns / groupColumns, 1, formThreads);
    }
  } else {
    form.addRows(table.op == QuantizeOp::Quantize ? FormStep::Convert : FormStep::Read, rows, cells, 1, blockThreads);
  }
  const uint64_t settled = asksForBlocks || isNvfp4 ? 4 : 0;
  form.made.scratchWords = behind - form.made.table.size() + settled + blockWords;
  form.made.records = 1;
  const uint64_t plain = elements * dtypeBytes[table.plainType];
  const uint64_t stored = elements / (isPacked(formOf(table.rule)) ? 2 : 1) +
                          table.matrixCount * table.blocksDown() * across * dtypeBytes[table.scaleType];
  form.made.bytesRead = table.op == QuantizeOp::Dequantize ? stored : plain;
  form.made.bytesWritten = table.op == QuantizeOp::Dequantize ? plain : table.op == QuantizeOp::Quantize ? stored : 0;
  return std::move(form.made);
}

}  // namespace tensorferry::gpu
