// SPDX-License-Identifier: Apache-2.0
/** Which views write an element twice: held against a count of all elements, and answered at once for any strides. */
import { describe, expect, it } from "vitest"
import { elementCount } from "../../src/base/Region.ts"
import { sharesElements } from "../../src/tensor/Tensor.ts"

/** By marking the place of every index. */
const countsFewer = (shape: ReadonlyArray<number>, strides: ReadonlyArray<number>): boolean => {
  let places = [0]
  for (const [dim, length] of shape.entries()) {
    places = places.flatMap((place) => Array.from({ length }, (_, at) => place + at * strides[dim]!))
  }
  return new Set(places).size < elementCount(shape)
}

describe("views whose elements share memory", () => {
  it("are found for every small shape and stride", () => {
    let sharing = 0
    const lengths = [0, 1, 2, 3, 4]
    const steps = [0, 1, 2, 3, 4, 5, 7, 12]
    for (const a of lengths) {
      for (const b of lengths) {
        for (const c of [1, 3]) {
          for (const x of steps) {
            for (const y of steps) {
              for (const z of steps) {
                const [shape, strides] = [
                  [a, b, c],
                  [x, y, z]
                ]
                const shares = countsFewer(shape, strides)
                expect(sharesElements({ shape, strides }), `${shape} by ${strides}`).toBe(shares)
                if (shares) sharing++
              }
            }
          }
        }
      }
    }
    expect(sharing).toBeGreaterThan(1000)
  })

  it.each([
    [[2 ** 20, 2 ** 20], [2 ** 20, 1], false],
    [[2 ** 20, 2 ** 20], [1, 2 ** 20], false],
    [[2 ** 20, 2 ** 20], [2 ** 20 - 1, 1], true],
    [[2 ** 20, 2 ** 20], [0, 1], true],
    [[1000, 1000], [1001, 1000], false],
    [[1001, 1002], [1001, 1000], true],
    // Too entangled to be told apart: taken to share.
    [Array(16).fill(64), Array.from({ length: 16 }, (_, at) => 1_000_003 + 2 * at * at), true]
  ])("are judged at once: %j by %j", (shape, strides, shares) => {
    expect(sharesElements({ shape, strides })).toBe(shares)
  })
})
