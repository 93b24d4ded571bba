// SPDX-License-Identifier: Apache-2.0
/** What trainer and inference share: names, shapes, and the values of a step, so that each can check what it got. */
export const batch = "weights"
export const steps = 4

export interface Weight {
  readonly pair: string
  /** Of the whole tensor. */
  readonly shape: readonly [number, number]
}

/** One pair per layout: attention is cut by rows in training and by columns in inference, the norm is replicated. */
export const weights: ReadonlyArray<Weight> = [
  { pair: "attention", shape: [64, 32] },
  { pair: "norm", shape: [1, 32] }
]

export const valueAt = (step: number, row: number, column: number): number => (step * 31 + row * 7 + column) % 251

/** The values of a box, row-major. */
export const valuesOf = (step: number, rows: readonly [number, number], columns: readonly [number, number]) => {
  const values: Array<number> = []
  for (let row = rows[0]; row < rows[1]; row++) {
    for (let column = columns[0]; column < columns[1]; column++) values.push(valueAt(step, row, column))
  }
  return Float32Array.from(values)
}
