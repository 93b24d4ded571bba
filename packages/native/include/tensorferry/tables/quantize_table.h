// SPDX-License-Identifier: Apache-2.0
/*
 * A table of one conversion as QuantizeTable.ts writes it, read and checked. Pure; any thread.
 *
 * Invariant: matrices are the last two dimensions; what is checked here is all that the loops rely on.
 */
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "../dtype.h"
#include "../quantize_rules.h"
#include "../status.h"

namespace tensorferry {

enum class QuantizeOp : uint8_t { Quantize, Dequantize, Largest };

/** What a conversion reads or writes. */
enum Part : size_t { PlainPart, CodePart, ScalePart, MaximaPart, partCount };

/** One dimension before the columns: its length, and bytes from one position to the next in each part. */
struct OuterDimension {
  uint64_t length;
  std::array<int64_t, partCount> steps;
};

struct QuantizeTable {
  QuantizeOp op;
  QuantizeRule rule;
  uint8_t plainType, scaleType;
  bool hasMaxima, keepsGlobal, isOneMaximum;
  /** Rows and columns of a block; at least as large as the matrix where a block is all of it. */
  uint64_t blockRows, blockColumns;
  /** Where the tensor begins within its first block. */
  uint64_t originRow, originColumn;
  uint64_t addresses[partCount];
  uint64_t global;
  /** Matrices by their dimensions, then rows, then columns. */
  std::vector<OuterDimension> matrices;
  OuterDimension rows, columns;
  uint64_t matrixCount;

  uint64_t blocksDown() const noexcept { return blocksOver(rows.length, blockRows, originRow); }
  uint64_t blocksAcross() const noexcept { return blocksOver(columns.length, blockColumns, originColumn); }
  /** Rows of a group that share a maximum, where each has a scale of its own: tiles of 16x16. */
  uint64_t rowsOfMaximum() const noexcept {
    return rule == QuantizeRule::Nvfp4TransformerEngine16x16 && op == QuantizeOp::Quantize ? 16 : blockRows;
  }

  static uint64_t blocksOver(uint64_t length, uint64_t size, uint64_t origin) noexcept {
    return (origin + length + size - 1) / size;
  }
};

inline Result<QuantizeTable> readQuantizeTable(const uint64_t* words, size_t count) {
  constexpr size_t headWords = 15;
  const auto refuse = [](const char* detail) { return failure(Code::InvalidArgument, "quantize", detail); };
  if (count < headWords) return refuse("The table is too short.");
  const uint64_t op = words[0], rule = words[1], plainType = words[2], dimensions = words[3], scaleType = words[8];
  if (op > 2) return refuse("Unknown operation.");
  if (rule >= quantizeRuleCount) return refuse("Unknown rule.");
  if (plainType != static_cast<uint64_t>(DType::BFloat16) && plainType != static_cast<uint64_t>(DType::Float16) &&
      plainType != static_cast<uint64_t>(DType::Float32))
    return refuse("This element type has no quantized form.");
  if (dimensions == 0 || dimensions > 255) return refuse("From 1 to 255 dimensions are taken.");
  if (count != headWords + 5 * dimensions) return refuse("The table has the wrong length.");
  if (scaleType >= dtypeCount || dtypeBytes[scaleType] == 0 || dtypeBytes[scaleType] > 4)
    return refuse("Scales do not have this type.");
  QuantizeTable table{};
  table.op = static_cast<QuantizeOp>(op);
  table.rule = static_cast<QuantizeRule>(rule);
  table.plainType = static_cast<uint8_t>(plainType);
  table.scaleType = static_cast<uint8_t>(scaleType);
  table.hasMaxima = (words[9] & 1) != 0;
  table.keepsGlobal = (words[9] & 2) != 0;
  table.isOneMaximum = (words[9] & 4) != 0;
  for (size_t part : {PlainPart, CodePart, ScalePart}) table.addresses[part] = words[10 + part];
  table.global = words[13];
  table.addresses[MaximaPart] = words[14];
  const uint64_t* shape = words + headWords;
  const std::array<int64_t, partCount> sizes{dtypeBytes[plainType], 1, dtypeBytes[scaleType], 4};
  uint64_t elements = 1;
  const auto dimensionOf = [&](size_t d) {
    OuterDimension made{shape[d], {}};
    for (size_t part = 0; part < partCount; part++)
      made.steps[part] = static_cast<int64_t>(shape[dimensions * (1 + part) + d]) * sizes[part];
    return made;
  };
  for (size_t d = 0; d < dimensions; d++)
    if (__builtin_mul_overflow(elements, shape[d], &elements) || elements > (1ull << 48))
      return refuse("The tensors have more elements than any memory.");
  table.matrixCount = 1;
  for (size_t d = 0; d + 2 < dimensions; d++) {
    table.matrices.push_back(dimensionOf(d));
    table.matrixCount *= shape[d];
  }
  table.rows = dimensions > 1 ? dimensionOf(dimensions - 2) : OuterDimension{1, {}};
  table.columns = dimensionOf(dimensions - 1);
  table.blockRows = words[4] == 0 ? table.rows.length + 1 : words[4];
  table.blockColumns = words[5] == 0 ? table.columns.length + 1 : words[5];
  table.originRow = words[4] == 0 ? 0 : words[6];
  table.originColumn = words[5] == 0 ? 0 : words[7];
  if (table.originRow >= table.blockRows || table.originColumn >= table.blockColumns)
    return refuse("The tensor does not begin within its first block.");
  if (table.op == QuantizeOp::Largest) return table;
  const QuantizeForm form = formOf(table.rule);
  if (isPacked(form) && (table.columns.length % 2 != 0 || table.originColumn % 2 != 0))
    return refuse("Two columns share a byte.");
  if (form == QuantizeForm::Nvfp4 &&
      (words[4] != 1 || words[5] != 16 || table.originColumn != 0 ||
       (table.rule == QuantizeRule::Nvfp4TransformerEngine16x16 && table.originRow != 0) || table.global == 0))
    return refuse("NVFP4 has groups of 16 columns and a global scale.");
  if (form != QuantizeForm::Fp8 && form != QuantizeForm::Nvfp4 && (words[4] != 1 || words[5] != mxBlock))
    return refuse("The MX forms have blocks of 32 columns.");
  if (form == QuantizeForm::Nvfp4 && table.keepsGlobal && table.rule == QuantizeRule::Nvfp4Vllm)
    return refuse("The stored global scale of this rule does not say what groups are scaled by.");
  return table;
}

}  // namespace tensorferry
