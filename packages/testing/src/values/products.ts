// SPDX-License-Identifier: Apache-2.0
/** What `TensorEngine.addProduct` must give, on dense numbers. Pure. */

/** `scale * b @ a`, row by row. */
export interface ProductFactors {
  readonly b: Float32Array
  readonly a: Float32Array
  readonly rank: number
  readonly scale: number
}

/** Sums in float64 in the order of the ranks, rounded once; then its scale and the sum with the base round to float32. */
export const sumWithProduct = (
  base: Float32Array,
  rows: number,
  columns: number,
  { a, b, rank, scale }: ProductFactors
): Float32Array => {
  const by = Math.fround(scale)
  const made = new Float32Array(rows * columns)
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      let sum = 0
      for (let one = 0; one < rank; one++) sum += b[row * rank + one]! * a[one * columns + column]!
      const at = row * columns + column
      made[at] = base[at]! + Math.fround(Math.fround(sum) * by)
    }
  }
  return made
}
