// SPDX-License-Identifier: Apache-2.0
/** Merged values are those of the sums written out in full, however few rows are asked for at once. */
import { assert, describe, it } from "@effect/vitest"
import { elementCount, type Interval, type Shape } from "@tensorferry/core/base/Region"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type { AdapterChange, LowRank } from "../../../src/names/adapters/Adapter.ts"
import {
  checkCopies,
  columnSquares,
  mergeRows,
  mergeTensor,
  needsColumnSquares
} from "../../../src/names/adapters/mergeAdapter.ts"

/** Numbers between -1 and 1 that are not round. */
const noise = (count: number, seed: number): Float32Array =>
  Float32Array.from(
    { length: count },
    (_, at) => ((((at + 1) * 2654435761 + seed * 97531) >>> 4) % 20_011) / 10_007 - 1
  )

const lowRank = (shape: Shape, rank: number, more: Partial<LowRank>): LowRank => ({
  _tag: "LowRank",
  target: "w",
  shape,
  module: "w",
  parameter: undefined,
  kind: "linear",
  rank,
  alpha: 3,
  scale: 3 / rank,
  a: "a",
  b: "b",
  experts: shape.length === 3 ? shape[0]! : undefined,
  isTransposed: false,
  magnitude: undefined,
  ...more
})

const factorsOf = ({ shape, rank, isTransposed, experts = 1 }: LowRank): ReadonlyMap<string, Float32Array> => {
  const [rows, columns] = shape.slice(-2) as [number, number]
  const [out, input] = isTransposed ? [columns, rows] : [rows, columns]
  return new Map([
    ["a", noise(experts * rank * input, 1)],
    ["b", noise(out * rank * experts, 2)],
    ["m", noise(out, 3).map((value) => 2 + value)]
  ])
}

/** The sum by its definition, in float64: outputs by inputs, whichever way round the base is. */
const definition = (change: LowRank, base: Float32Array, values: ReadonlyMap<string, Float32Array>): Float64Array => {
  const { shape, rank, isTransposed, experts = 1, scale, magnitude } = change
  const [rows, columns] = shape.slice(-2) as [number, number]
  const [out, input] = isTransposed ? [columns, rows] : [rows, columns]
  const [a, b] = [values.get("a")!, values.get("b")!]
  const merged = Float64Array.from(base)
  const at = (expert: number, o: number, i: number) =>
    expert * rows * columns + (isTransposed ? i * columns + o : o * columns + i)
  for (let expert = 0; expert < experts; expert++)
    for (let o = 0; o < out; o++) {
      for (let i = 0; i < input; i++)
        for (let one = 0; one < rank; one++)
          merged[at(expert, o, i)]! +=
            scale * b[o * rank * experts + one * experts + expert]! * a[(expert * rank + one) * input + i]!
      if (magnitude === undefined) continue
      const norm = Math.hypot(...Array.from({ length: input }, (_, i) => merged[at(expert, o, i)]!))
      for (let i = 0; i < input; i++) merged[at(expert, o, i)]! *= values.get("m")![o]! / norm
    }
  return merged
}

const cases: ReadonlyArray<readonly [string, LowRank]> = [
  ["a matrix", lowRank([5, 7], 3, {})],
  ["a matrix with its inputs first", lowRank([5, 7], 3, { isTransposed: true })],
  ["a matrix with norms", lowRank([5, 7], 2, { magnitude: "m" })],
  ["a matrix with its inputs first and norms", lowRank([5, 7], 2, { isTransposed: true, magnitude: "m" })],
  ["a stack", lowRank([3, 4, 6], 2, {})],
  ["a stack with its inputs first", lowRank([3, 4, 6], 2, { isTransposed: true })]
]

describe.each(cases)("%s", (_, change) => {
  const values = factorsOf(change)
  const base = noise(elementCount(change.shape), 9)
  const width = change.shape.at(-1)!
  const total = base.length / width
  const whole = Result.getOrThrow(mergeTensor([change], change.shape, base, (name) => values.get(name)!))

  it("is the sum that its definition says", () => {
    const wanted = definition(change, base, values)
    const far = whole.findIndex((value, at) => Math.abs(value - wanted[at]!) > 4e-6)
    assert.strictEqual(far, -1)
    assert.notDeepEqual(whole, base)
  })

  it.prop(
    "has the same bits in any rows",
    [Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 1 << 20 }))],
    ([seed]) => {
      const from = seed % total
      const rows: Interval = [from, from + 1 + ((seed >> 8) % (total - from))]
      const sums = new Float64Array(width)
      const value = (name: string) => values.get(name)!
      // Squares may be summed in parts too.
      for (const part of [
        [0, from],
        [from, total]
      ] as const)
        columnSquares([change], { rows: part, width }, base.subarray(part[0] * width, part[1] * width), value, sums)
      const own = base.subarray(rows[0] * width, rows[1] * width)
      const squares = needsColumnSquares([change]) ? sums : undefined
      const merged = Result.getOrThrow(mergeRows([change], { rows, width }, own, value, squares))
      assert.deepStrictEqual(merged, whole.slice(rows[0] * width, rows[1] * width))
    }
  )
})

describe("changes of other kinds", () => {
  const value = (name: string): Float32Array =>
    name === "full"
      ? new Float32Array([1, 2, 3, 4])
      : name === "new rows"
        ? new Float32Array([9, 9, 8, 8])
        : new Float32Array([0.5, 1, 1.5, 2])
  const merged = (changes: ReadonlyArray<AdapterChange>, shape: Shape, base: ReadonlyArray<number>) => [
    ...Result.getOrThrow(mergeTensor(changes, shape, new Float32Array(base), value))
  ]
  const full: AdapterChange = { _tag: "Whole", target: "w", tensor: "full", isNew: false }

  it("replace a tensor, then add to it", () => {
    const added: AdapterChange = { _tag: "Added", target: "w", tensor: "bias", scale: 2 }
    assert.deepStrictEqual(merged([full, added], [4], [0, 0, 0, 0]), [2, 4, 6, 8])
    const some = mergeRows([full, added], { rows: [1, 3], width: 1 }, new Float32Array(2), value)
    assert.deepStrictEqual([...Result.getOrThrow(some)], [4, 6])
  })

  it("set rows, in the order in which they are stated", () => {
    const rows: AdapterChange = { _tag: "Rows", target: "w", tensor: "new rows", rows: [2, 0] }
    assert.deepStrictEqual(merged([rows], [3, 2], [1, 1, 2, 2, 3, 3]), [8, 8, 2, 2, 9, 9])
    const last = mergeRows([rows], { rows: [1, 3], width: 2 }, new Float32Array([2, 2, 3, 3]), value)
    assert.deepStrictEqual([...Result.getOrThrow(last)], [2, 2, 9, 9])
  })

  it("keep the base that was given", () => {
    const base = new Float32Array([0, 0, 0, 0])
    Result.getOrThrow(mergeTensor([full], [4], base, value))
    assert.deepStrictEqual([...base], [0, 0, 0, 0])
  })
})

describe("what cannot be merged as it is given", () => {
  it("is named: too few values of the base, and norms without squares", () => {
    const change = lowRank([2, 2], 1, { isTransposed: true, magnitude: "m" })
    const values = factorsOf(change)
    const merge = (count: number) =>
      mergeRows([change], { rows: [0, 2], width: 2 }, new Float32Array(count), (name) => values.get(name)!)
    const kinds = [merge(3), merge(4)].map((result) => (Result.isFailure(result) ? result.failure.kind : ""))
    assert.deepStrictEqual(kinds, ["shape_mismatch", "unsupported"])
  })

  it("are copies that differ from the base, and tied sides that differ from each other", () => {
    const values = new Map([
      ["copy", new Float32Array([1, 2, 3, 4, 5, 6])],
      ["turned", new Float32Array([1, 4, 2, 5, 3, 6])],
      ["other", new Float32Array([1, 4, 2, 5, 3, 7])]
    ])
    const check = (of: string, transposed: string) => {
      const adapter = {
        changes: new Map(),
        copies: [{ tensor: "copy", of }],
        tied: [{ tensor: "copy", transposed, rows: 2 }],
        untied: []
      }
      const value = (name: string) => values.get(name)!
      const result = checkCopies(adapter, value, value)
      return Result.isFailure(result) ? [result.failure.kind, result.failure.subject] : []
    }
    assert.deepStrictEqual(check("copy", "turned"), [])
    assert.deepStrictEqual(check("other", "turned"), ["unexpected_source", "copy"])
    assert.deepStrictEqual(check("copy", "other"), ["conflicting_alias", "copy"])
  })
})
