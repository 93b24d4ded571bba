// SPDX-License-Identifier: Apache-2.0
/*
 * What all steps of quantized forms share: where an index lies, how scales are stored, codes by an encoding that only a
 * record tells. Pure but for the memory given.
 *
 * Invariant: the bits are those of quantize_rules.h, as on hosts.
 */
#pragma once

#include <tensorferry/quantize_rules.h>

#include "device.h"
#include "elements_of_four.h"
#include "locate.h"
#include "parameters.h"
#include "quantize_rows.h"

namespace tensorferry::gpu {
namespace {

/** Columns of one row and one block, and the place of that block's scale and maximum. */
struct FormCell {
  uint64_t plain, codes, scale, maximum;
  uint32_t columns;
  /** Of cells of one block only the first one writes its scale. */
  bool ownsScale;
};

/** Matrices before this one, as bytes. Uses the index up to the matrix's own part. */
TENSORFERRY_DEVICE void addMatrix(uint64_t table, const FormRecord& head, uint32_t matrix, FormCell& cell) {
  TENSORFERRY_KEEP_LOOP
  for (uint32_t d = 0; d < head.dimensionCount; d++) {
    const uint64_t at = table + head.dimensions + d * sizeof(FormDimension);
    uint32_t position = matrix;
    if (d + 1u < head.dimensionCount) {
      matrix = divide(position, load<uint32_t>(at + 8), load<uint32_t>(at + 12));
      position -= matrix * load<uint32_t>(at);
    }
    cell.plain += offsetOf(position, load<int64_t>(at + 16));
    cell.codes += offsetOf(position, load<int64_t>(at + 24));
    cell.scale += offsetOf(position, load<int64_t>(at + 32));
    cell.maximum += offsetOf(position, load<int64_t>(at + 40));
  }
}

/** Bytes of codes before so many columns: two of four bits share a byte. */
TENSORFERRY_DEVICE uint64_t codeOffset(const FormRecord& head, uint32_t column) {
  const bool halves = isPacked(formOf(static_cast<QuantizeRule>(head.rule)));
  return offsetOf(halves ? column / 2 : column, head.codesStep);
}

/** Which rows share a stored scale: those of a block, but for NVFP4 each has its own, whatever finds the maxima. */
TENSORFERRY_DEVICE uint32_t rowOfScale(const FormRecord& head, uint32_t row, uint32_t blockRow) {
  return formOf(static_cast<QuantizeRule>(head.rule)) == QuantizeForm::Nvfp4 ? row : blockRow;
}

TENSORFERRY_DEVICE FormCell cellAt(uint64_t table, const FormRecord& head, uint32_t index) {
  const uint32_t line = divide(index, head.byCells.multiplier, head.byCells.shift);
  const uint32_t number = index - line * head.cells;
  const uint32_t matrix = divide(line, head.byRows.multiplier, head.byRows.shift), row = line - matrix * head.rows;
  const uint32_t block = divide(number, head.byCellsOfBlock.multiplier, head.byCellsOfBlock.shift);
  const uint32_t part = number - block * head.cellsOfBlock;
  const uint32_t shifted = head.firstRow + row + head.originRow;
  const uint32_t blockRow = divide(shifted, head.byBlockRows.multiplier, head.byBlockRows.shift);
  // The first block may have begun before the first column.
  const uint64_t start = static_cast<uint64_t>(block) * head.blockColumns, end = start + head.blockColumns;
  uint64_t from = start > head.originColumn ? start - head.originColumn : 0, to = end - head.originColumn;
  from += part * cellColumns;
  to = to < head.columns ? to : head.columns;
  to = to < from + cellColumns ? to : from + cellColumns;
  const uint64_t maxima = head.areMaximaInTable != 0 ? table + head.maxima : head.maxima;
  const auto column = static_cast<uint32_t>(from);
  FormCell cell{head.plain + offsetOf(row, head.plainRow) + offsetOf(column, head.plainStep),
                head.codes + offsetOf(row, head.codesRow) + codeOffset(head, column),
                head.scales + offsetOf(rowOfScale(head, head.firstRow + row, blockRow), head.scalesRow) +
                    offsetOf(block, head.scalesStep),
                maxima + offsetOf(blockRow, head.maximaRow) + offsetOf(block, head.maximaStep),
                to > from ? static_cast<uint32_t>(to - from) : 0,
                false};
  addMatrix(table, head, matrix, cell);
  const bool isFirstRow = head.firstRow + row == 0 || shifted == blockRow * head.blockRows;
  cell.ownsScale = part == 0 && (isFirstRow || rowOfScale(head, 1, 0) == 1);
  return cell;
}

/** The bits of a value by its type. A NaN of 16 bits keeps its sign, but for float16, as rules have it. */
TENSORFERRY_DEVICE float plainValue(uint32_t type, uint32_t bits) {
  if (type == static_cast<uint32_t>(DType::BFloat16)) return floatOf(bits << 16);
  if (type == static_cast<uint32_t>(DType::Float16)) return Float16::decode(bits);
  return floatOf(bits);
}

TENSORFERRY_DEVICE float loadPlain(uint32_t type, uint64_t address, uint32_t width) {
  if (type == static_cast<uint32_t>(DType::Float32)) return floatOf(loadElement<4>(address, width));
  return plainValue(type, loadElement<2>(address, width));
}

/** As bytes of the type of scales. What no byte of float8_e8m0fnu stands for becomes NaN. */
TENSORFERRY_DEVICE void storeScale(const FormRecord& head, uint64_t address, uint32_t stored) {
  if (formOf(static_cast<QuantizeRule>(head.rule)) != QuantizeForm::Fp8)
    return store<uint8_t>(address, static_cast<uint8_t>(stored));
  const uint32_t byte = stored >> 23;
  switch (static_cast<DType>(head.scaleType)) {
    case DType::BFloat16:
      return storeElement<2>(address, 1, static_cast<uint16_t>(encodeBFloat16(floatOf(stored))));
    case DType::Float16:
      return storeElement<2>(address, 1, static_cast<uint16_t>(Float16::encode(floatOf(stored))));
    case DType::Float32:
      return storeElement<4>(address, address % 4 == 0 ? 4 : 1, stored);
    default: {
      const bool isPower = (stored & 0x7fffffu) == 0 && byte != 0 && byte <= 254;
      return store<uint8_t>(address, static_cast<uint8_t>(stored == 0x400000u ? 0 : isPower ? byte : 255));
    }
  }
}

/** What `readScaled` takes. */
TENSORFERRY_DEVICE uint32_t loadScale(const FormRecord& head, uint64_t address) {
  if (formOf(static_cast<QuantizeRule>(head.rule)) != QuantizeForm::Fp8) return load<uint8_t>(address);
  switch (static_cast<DType>(head.scaleType)) {
    case DType::BFloat16:
      return bitsOf(decodeBFloat16(loadElement<2>(address, 1)));
    case DType::Float16:
      return bitsOf(Float16::decode(loadElement<2>(address, 1)));
    case DType::Float32:
      return loadElement<4>(address, 1);
    default:
      return bitsOf(decodeFloat8E8M0(load<uint8_t>(address)));
  }
}

template <typename Source>
TENSORFERRY_DEVICE uint32_t codeBy(Encoding encoding, float value, float factor, Source source) {
  switch (encoding) {
#define TENSORFERRY_CODE(NAME) \
  case Encoding::NAME:         \
    return codeOf<Encoding::NAME>(value, factor, source);
    TENSORFERRY_CODE(Float8Product)
    TENSORFERRY_CODE(Float8RoundedProduct)
    TENSORFERRY_CODE(Float8Quotient)
    TENSORFERRY_CODE(Float8RoundedQuotient)
    TENSORFERRY_CODE(Float4Product)
    TENSORFERRY_CODE(Float4RoundedProduct)
    TENSORFERRY_CODE(Float4Quotient)
    TENSORFERRY_CODE(Float4QuotientOrSeven)
    TENSORFERRY_CODE(Float4SignEven)
    TENSORFERRY_CODE(Float4SignUp)
    TENSORFERRY_CODE(Float4NotAbove)
    TENSORFERRY_CODE(Float4NoMinusZero)
#undef TENSORFERRY_CODE
  }
  return 0;
}

/** What `FormStep::Prepare` found; nothing for forms without a global scale. */
TENSORFERRY_DEVICE GlobalScaling settledGlobal(uint64_t table, const FormRecord& head) {
  if (formOf(static_cast<QuantizeRule>(head.rule)) != QuantizeForm::Nvfp4) return {};
  const uint64_t at = table + head.settled;
  return {load<float>(at), load<float>(at + 4), load<float>(at + 8)};
}

}  // namespace
}  // namespace tensorferry::gpu
