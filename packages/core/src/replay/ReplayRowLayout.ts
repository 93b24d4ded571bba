// SPDX-License-Identifier: Apache-2.0
/**
 * How one replay row lies in memory: named columns of a fixed type and shape, packed one behind the other.
 *
 * Contract
 * - A column starts at a multiple of its element's size. Rows follow each other without a gap; their length is a multiple
 *   of 8 bytes, so that each column of a batch of rows is a strided view whose strides are whole elements.
 * - The layout is a function of the columns alone: whoever knows them computes the same offsets.
 * - Views never copy. A batch is a dense tensor of bytes, `[rows, rowBytes]`, on any device.
 */
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { bitsOf, byteLengthOf, DType } from "../base/DType.ts"
import { elementCount, formatShape, isRepresentable, rowMajorStrides, type Shape } from "../base/Region.ts"
import { isContiguous, type Tensor, type ViewFault } from "../tensor/Tensor.ts"
import { type ReplayRingError, replayRingError } from "./ReplayRingError.ts"

/** Rows start at multiples of this. */
export const rowAlignment = 8

const Length = Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 2 ** 31 - 1 }))

/** What a user states about a column. */
export const RowColumn = Schema.Struct({
  name: Schema.String.check(Schema.isMinLength(1), Schema.isMaxLength(200)),
  dtype: DType,
  /** Of one row; `[]` for a scalar. */
  shape: Schema.Array(Length).check(Schema.isMaxLength(16))
})
export type RowColumn = typeof RowColumn.Type

/** Columns of a row by name: type and shape of each. */
export const RowColumns = Schema.Array(RowColumn).check(Schema.isMinLength(1), Schema.isMaxLength(256))

/** A column and its place in each row, in bytes. */
export interface PlacedColumn extends RowColumn {
  /** Within the row. */
  readonly byteOffset: number
  readonly byteLength: number
}

/** Where each column lies in a row, in bytes. */
export interface RowLayout {
  readonly columns: ReadonlyArray<PlacedColumn>
  /** From one row to the next. */
  readonly rowBytes: number
}

/** A batch's columns by name: `[rows, ...shape]` each. */
export type ColumnViews = Readonly<Record<string, Tensor>>

const refuse = (detail: string): Result.Result<never, ReplayRingError> =>
  Result.fail(
    replayRingError("InvalidLayout", {
      detail,
      remedy: "Give 1 to 256 columns with different names, known element types and lengths below 2^31."
    })
  )

const roundUp = (value: number, unit: number): number => Math.ceil(value / unit) * unit

/** Places columns in the order given. */
export const makeRowLayout = (columns: ReadonlyArray<RowColumn>): Result.Result<RowLayout, ReplayRingError> => {
  const decoded = Schema.decodeResult(RowColumns)(columns)
  if (Result.isFailure(decoded)) return refuse(decoded.failure.message.replaceAll("\n", " "))
  const placed: Array<PlacedColumn> = []
  const names = new Set<string>()
  let end = 0
  let unit = rowAlignment
  for (const { name, dtype, shape } of decoded.success) {
    if (names.has(name)) return refuse(`Two columns are called "${name}".`)
    names.add(name)
    const bits = bitsOf(dtype)
    if (!isRepresentable(shape, bits)) return refuse(`Column ${name} of shape ${formatShape(shape)} is too large.`)
    const byteLength = byteLengthOf(dtype, elementCount(shape))
    const byteOffset = roundUp(end, Math.max(1, bits / 8))
    placed.push({ name, dtype, shape, byteOffset, byteLength })
    end = byteOffset + byteLength
    // Six-bit elements fill whole bytes in threes; all others divide eight bytes.
    if ((unit * 8) % bits !== 0) unit *= 3
  }
  const rowBytes = roundUp(Math.max(end, 1), unit)
  return rowBytes < 2 ** 31
    ? Result.succeed({ columns: placed, rowBytes })
    : refuse(`A row of ${rowBytes} bytes is too long.`)
}

/** The columns of a dense batch of bytes, `[rows, rowBytes]`, as strided views of the same memory. */
export const columnViews = (layout: RowLayout, batch: Tensor): Result.Result<ColumnViews, ViewFault> => {
  const [rows, rowBytes] = batch.shape
  if (batch.dtype !== "uint8" || batch.shape.length !== 2 || rowBytes !== layout.rowBytes || !isContiguous(batch)) {
    const detail =
      `${batch.dtype}${formatShape(batch.shape)} with strides [${batch.strides.join(",")}] is not a dense batch of rows ` +
      `of ${layout.rowBytes} bytes`
    return Result.fail({ _tag: "ViewFault", detail })
  }
  const views: Record<string, Tensor> = Object.create(null)
  for (const { name, dtype, shape, byteOffset } of layout.columns) {
    views[name] = {
      ...batch,
      dtype,
      shape: [rows!, ...shape],
      strides: [(layout.rowBytes * 8) / bitsOf(dtype), ...rowMajorStrides(shape)],
      byteOffset: batch.byteOffset + byteOffset
    }
  }
  return Result.succeed(views)
}

/** Writes one column of packed rows from its dense bytes, row after row. */
export const fillColumn = (
  layout: RowLayout,
  name: string,
  rows: Uint8Array,
  dense: Uint8Array
): Result.Result<void, ReplayRingError> => {
  const column = layout.columns.find((candidate) => candidate.name === name)
  if (column === undefined) return refuse(`There is no column "${name}".`)
  const count = rows.byteLength / layout.rowBytes
  const { byteLength, byteOffset } = column
  if (!Number.isInteger(count) || dense.byteLength !== count * byteLength) {
    return refuse(
      `${dense.byteLength} bytes for column ${name} do not fit ${rows.byteLength} bytes of rows: ` +
        `${byteLength} of each ${layout.rowBytes} bytes are the column's.`
    )
  }
  for (let row = 0; row < count; row++) {
    rows.set(dense.subarray(row * byteLength, (row + 1) * byteLength), row * layout.rowBytes + byteOffset)
  }
  return Result.void
}

/** Bytes that a batch takes. */
export const batchBytes = (layout: RowLayout, rows: number): number => rows * layout.rowBytes

/** The shape of a batch of so many rows, as bytes. */
export const batchShape = (layout: RowLayout, rows: number): Shape => [rows, layout.rowBytes]
