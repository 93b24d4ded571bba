// SPDX-License-Identifier: Apache-2.0
/**
 * How a batch lies in the memory that a ring gathers it into: whole rows one behind the other, or each column dense.
 *
 * Invariant: the layout is a function of the row layout, the windows and their length; kernels compute the same.
 */
import { type ColumnViews, columnViews, type RowLayout } from "@tensorferry/core/replay/ReplayRowLayout"
import { columnAlignment, type RingSample } from "@tensorferry/core/service/ReplayRingKernels"
import { sliceTensor, type Tensor, tensorView, type ViewFault } from "@tensorferry/core/tensor/Tensor"
import * as Result from "effect/Result"

/** What of a sample fixes how its batch lies. */
export type BatchForm = Pick<RingSample, "count" | "window" | "packing">

const roundUp = (value: number): number => Math.ceil(value / columnAlignment) * columnAlignment

/** First byte of each column in a batch of dense columns, and one behind the last. */
export const columnPlaces = (
  columns: ReadonlyArray<{ readonly byteLength: number }>,
  { count, window }: Pick<BatchForm, "count" | "window">
): ReadonlyArray<number> => {
  const places = [0]
  for (const { byteLength } of columns) places.push(places.at(-1)! + roundUp(count * window * byteLength))
  return places
}

/** Bytes of a batch. */
export const batchByteLength = (layout: RowLayout, form: BatchForm): number =>
  form.packing === "rows" ? form.count * form.window * layout.rowBytes : columnPlaces(layout.columns, form).at(-1)!

/**
 * The columns of a batch by name: `[count, ...shape]` each, or `[count, window, ...shape]` of windows of several rows.
 * `batch` has `batchByteLength` bytes.
 */
export const batchColumns = (
  layout: RowLayout,
  form: BatchForm,
  batch: Tensor
): Result.Result<ColumnViews, ViewFault> => {
  const { count, packing, window } = form
  const windows = window === 1 ? [count] : [count, window]
  const views: Record<string, Tensor> = Object.create(null)
  if (packing === "rows") {
    return Result.map(
      Result.flatMap(sliceTensor(batch, [[0, batchByteLength(layout, form)]]), (bytes) =>
        columnViews(layout, { ...bytes, shape: [count * window, layout.rowBytes], strides: [layout.rowBytes, 1] })
      ),
      (rows) => {
        for (const [name, view] of Object.entries(rows)) {
          const [step, ...within] = view.strides
          const strides = window === 1 ? view.strides : [window * step!, step!, ...within]
          views[name] = { ...view, shape: [...windows, ...view.shape.slice(1)], strides }
        }
        return views
      }
    )
  }
  const places = columnPlaces(layout.columns, form)
  for (const [at, { dtype, name, shape }] of layout.columns.entries()) {
    const view = tensorView(batch.storage, dtype, [...windows, ...shape], {
      byteOffset: batch.byteOffset + places[at]!
    })
    if (Result.isFailure(view)) return Result.fail(view.failure)
    views[name] = view.success
  }
  return Result.succeed(views)
}
