// SPDX-License-Identifier: Apache-2.0
/** Scales and codes of a view are those of its elements, and a view that parts a block has none. */
import { assert, describe, it } from "@effect/vitest"
import { elementCount } from "@tensorferry/core/base/Region"
import { type QuantizationRecipe, quantizationRecipe } from "@tensorferry/core/tensor/QuantizedTensor"
import * as fc from "fast-check"
import { type ElementView, quantizedView } from "../../src/names/quantizedView.ts"

const recipes: ReadonlyArray<QuantizationRecipe> = [
  quantizationRecipe("mxfp8", "rceil"),
  quantizationRecipe("mxfp4", "triton_up"),
  quantizationRecipe("nvfp4", "modelopt"),
  quantizationRecipe("fp8", "deepgemm_fp32", "rowMajor", [4, 8]),
  quantizationRecipe("fp8", "deepgemm_fp32", "rowMajor", [1, 16]),
  quantizationRecipe("fp8", "deepgemm_fp32", "rowMajor", [1, 0])
]

/** Every position of a shape, with the offset that strides give it. */
const eachElement = (shape: ReadonlyArray<number>, visit: (index: ReadonlyArray<number>) => void): void => {
  for (let at = 0; at < elementCount(shape); at++) {
    let rest = at
    const index = shape.map(() => 0)
    for (let dim = shape.length - 1; dim >= 0; dim--) {
      index[dim] = rest % shape[dim]!
      rest = Math.floor(rest / shape[dim]!)
    }
    visit(index)
  }
}

const offsetOf = ({ offset, strides }: ElementView, index: ReadonlyArray<number>): number =>
  index.reduce((sum, position, dim) => sum + position * strides[dim]!, offset)

/** A tensor of matrices, and a view of every `step`th group of rows from a first row and column on. */
const cases = fc.record({
  recipe: fc.constantFrom(...recipes),
  matrices: fc.integer({ min: 1, max: 2 }),
  groups: fc.integer({ min: 1, max: 3 }),
  high: fc.integer({ min: 1, max: 3 }),
  step: fc.integer({ min: 1, max: 2 }),
  firstRow: fc.integer({ min: 0, max: 5 }),
  firstColumn: fc.integer({ min: 0, max: 40 }),
  wide: fc.integer({ min: 1, max: 3 }),
  isAligned: fc.boolean()
})

describe("a view of a quantized tensor", () => {
  it("has the scales and codes of its elements, where it parts no block", () => {
    fc.assert(
      fc.property(cases, ({ recipe, matrices, groups, high, step, firstRow, firstColumn, wide, isAligned }) => {
        const [rowUnit, columnUnit] = [recipe.block[0] || 1, recipe.block[1]]
        const columns = 96
        const per = recipe.name === "mxfp4" || recipe.name === "nvfp4" ? 2 : 1
        const unit = columnUnit === 0 ? columns : columnUnit
        const rowsOfGroup = high * rowUnit
        const from = isAligned ? (firstRow % 3) * rowUnit : firstRow
        const column = columnUnit === 0 ? 0 : isAligned ? (firstColumn % 2) * unit : firstColumn
        const length = columnUnit === 0 ? columns : Math.min(wide * unit, Math.floor((columns - column) / unit) * unit)
        const rows = from + groups * step * rowsOfGroup + rowUnit - (from % rowUnit || rowUnit)
        const shape = [matrices, rows + (rowUnit - (rows % rowUnit || rowUnit)), columns]
        const view: ElementView = {
          offset: from * columns + column,
          shape: [matrices, groups, rowsOfGroup, length],
          strides: [shape[1]! * columns, step * rowsOfGroup * columns, columns, 1]
        }
        const found = quantizedView(recipe, shape, view)
        const parts = from % rowUnit !== 0 || column % unit !== 0
        if (parts) return assert.isUndefined(found)
        assert.isDefined(found)
        const across = Math.ceil(columns / unit)
        const each = Math.ceil(shape[1]! / rowUnit) * across
        eachElement(view.shape, (index) => {
          const at = offsetOf(view, index)
          const [matrix, within] = [Math.floor(at / (shape[1]! * columns)), at % (shape[1]! * columns)]
          const [row, place] = [Math.floor(within / columns), within % columns]
          const scale = matrix * each + Math.floor(row / rowUnit) * across + Math.floor(place / unit)
          const [m, g, r, c] = index as [number, number, number, number]
          assert.strictEqual(offsetOf(found!.scales, [m, g, Math.floor(r / rowUnit), Math.floor(c / unit)]), scale)
          assert.strictEqual(offsetOf(found!.codes, [m, g, r, Math.floor(c / per)]), Math.floor(at / per))
        })
      }),
      { numRuns: 500 }
    )
  })

  it("is none where it is turned, or counts codes of half a byte", () => {
    const recipe = quantizationRecipe("mxfp4", "triton_up")
    assert.isUndefined(quantizedView(recipe, [64, 64], { offset: 0, shape: [64, 64], strides: [1, 64] }))
    assert.isUndefined(quantizedView(recipe, [4, 64], { offset: 1, shape: [4, 32], strides: [64, 1] }))
    // Steps of columns that leave their row.
    assert.isUndefined(quantizedView(recipe, [4, 64], { offset: 32, shape: [2, 32], strides: [32, 1] }))
    assert.isDefined(quantizedView(recipe, [4, 64], { offset: 32, shape: [4, 32], strides: [64, 1] }))
  })
})
