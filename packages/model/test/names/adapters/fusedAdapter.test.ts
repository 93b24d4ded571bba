// SPDX-License-Identifier: Apache-2.0
/**
 * Property: whatever is done to the tensors of a base, the products of an adapter that was mapped alike add up to what is
 * done to the products. Factors are small whole numbers, so sums are exact.
 */
import { assert, describe, it } from "@effect/vitest"
import { elementCount, type Shape } from "@tensorferry/core/base/Region"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type { AdapterChange, LowRank } from "../../../src/names/adapters/Adapter.ts"
import { type FusedProduct, fusedAdapter, joinProducts } from "../../../src/names/adapters/fusedAdapter.ts"
import {
  type Assembly,
  concat,
  expand,
  interleave,
  pad,
  split,
  squeeze,
  take,
  through,
  transpose,
  wholeAssembly
} from "../../../src/names/Strips.ts"
import { addProduct, valuesOf, writeStrip } from "./denseModel.ts"

interface Dice {
  /** A number from 0 on, below a limit. */
  readonly roll: (limit: number) => number
}

const dice = (seed: number): Dice => {
  let state = seed >>> 0
  return {
    roll: (limit) => {
      state = (Math.imul(state ^ (state >>> 15), 0x2c1b3c6d) + 0x9e3779b9) >>> 0
      return (state >>> 8) % limit
    }
  }
}

interface Source {
  readonly name: string
  readonly shape: Shape
  readonly change: LowRank
}

const source = (name: string, shape: Shape, { roll }: Dice): Source => ({
  name,
  shape,
  change: {
    _tag: "LowRank",
    target: name,
    shape,
    module: name,
    parameter: undefined,
    kind: "linear",
    rank: 1 + roll(3),
    alpha: 1,
    scale: 1 + roll(3),
    a: `${name}.a`,
    b: `${name}.b`,
    experts: shape.length === 3 ? shape[0]! : undefined,
    isTransposed: roll(2) === 1,
    magnitude: undefined
  }
})

/** Values of factors, and of the products themselves under the names of the base's tensors. */
const valuesFor = (sources: ReadonlyArray<Source>, { roll }: Dice): Map<string, Float64Array> => {
  const values = new Map<string, Float64Array>()
  const some = (count: number) => Float64Array.from({ length: count }, () => roll(7) - 3)
  for (const { name, shape, change } of sources) {
    const { rank, experts = 1, isTransposed, scale } = change
    const [rows, columns] = shape.slice(-2) as [number, number]
    const [out, input] = isTransposed ? [columns, rows] : [rows, columns]
    const [a, b] = [some(experts * rank * input), some(out * rank * experts)]
    values.set(change.a, a).set(change.b, b)
    const delta = new Float64Array(elementCount(shape))
    for (let expert = 0; expert < experts; expert++)
      for (let o = 0; o < out; o++)
        for (let i = 0; i < input; i++)
          for (let one = 0; one < rank; one++)
            delta[expert * rows * columns + (isTransposed ? i * columns + o : o * columns + i)]! +=
              scale * b[o * rank * experts + one * experts + expert]! * a[(expert * rank + one) * input + i]!
    values.set(name, delta)
  }
  return values
}

const cutOf = (part: Assembly, dim: number, ways: number, { roll }: Dice): Assembly => {
  const share = part.shape[dim]! / ways
  const rank = roll(ways)
  return Number.isInteger(share) ? take(part, dim, [rank * share, (rank + 1) * share]) : part
}

/** Parts cut, joined in one of the ways, cut again, turned and padded. */
const shuffled = (sources: ReadonlyArray<Source>, own: Dice): Assembly => {
  const { roll } = own
  const ways = 1 + roll(2)
  const isRows = roll(2) === 0
  const parts = sources.map(({ name, shape }) => cutOf(wholeAssembly(name, shape), isRows ? 0 : 1, ways, own))
  let joined = roll(2) === 0 ? concat(parts, 0) : interleave(parts, 2)
  joined = cutOf(joined, roll(2), 1 + roll(2), own)
  if (roll(3) === 0) joined = transpose(joined, [1, 0])
  if (roll(3) === 0) joined = pad(joined, roll(2), joined.shape[0]! + joined.shape[1]!)
  return roll(4) === 0 && joined.shape[0]! % 2 === 0 ? split(joined, 0, joined.shape[0]! / 2) : joined
}

const sumOf = (
  shape: Shape,
  products: ReadonlyArray<FusedProduct>,
  values: Map<string, Float64Array>
): Float64Array => {
  const sums = new Float64Array(elementCount(shape))
  for (const { change, lead, left, right } of products) {
    const start = lead.reduce((sum, place, dim) => sum + place * elementCount(shape.slice(dim + 1)), 0)
    addProduct(valuesOf(left, values), valuesOf(right, values), change.rank, change.scale, sums, start)
  }
  return sums
}

const Seed = Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 2 ** 31 }))

const changesOf = (sources: ReadonlyArray<Source>): ReadonlyMap<string, ReadonlyArray<AdapterChange>> =>
  new Map(sources.map(({ name, change }) => [name, [change]]))

describe("an adapter that is mapped as its base is", () => {
  it.prop("adds up to the mapped products", [Seed], ([seed]) => {
    const own = dice(seed)
    const sources = [4, 8, 12].slice(0, 1 + own.roll(3)).map((rows) => source(`w${rows}`, [rows, 6], own))
    const values = valuesFor(sources, own)
    const tensor = { name: "fused", ...shuffled(sources, own) }
    const { products } = Result.getOrThrow(fusedAdapter(tensor, { changes: changesOf(sources) }))
    assert.deepStrictEqual(sumOf(tensor.shape, products, values), valuesOf(tensor, values))
    // Whichever way, all ranks of one matrix are one product.
    const [first, ...rest] = products.filter(({ lead }) => lead.length === 0)
    if (first === undefined) return
    const { left, right, scales } = joinProducts([first, ...rest])
    const rank = scales.length
    const scaled = valuesOf(left, values).map((value, at) => value * scales[at % rank]!)
    const sums = new Float64Array(elementCount(tensor.shape))
    addProduct(scaled, valuesOf(right, values), rank, 1, sums)
    assert.deepStrictEqual(sums, valuesOf(tensor, values))
  })

  it.prop("adds up where it is one of a stack, or a stack of them", [Seed], ([seed]) => {
    const own = dice(seed)
    const stacked = source("experts", [4, 4, 6], own)
    const single = source("one", [4, 6], own)
    const sources = [stacked, single]
    const values = valuesFor(sources, own)
    const whole = cutOf(cutOf(wholeAssembly("experts", stacked.shape), 0, 2, own), 1 + own.roll(2), 1, own)
    const turned = own.roll(2) === 0 ? transpose(whole, [0, 2, 1]) : whole
    const alone = expand(wholeAssembly("one", single.shape), 0)
    const one = { name: "one of them", ...squeeze(take(wholeAssembly("experts", stacked.shape), 0, [2, 3]), 0) }
    const joined = { name: "more of them", ...(turned === whole ? concat([whole, alone], 0) : turned) }
    for (const tensor of [one, joined]) {
      const { products } = Result.getOrThrow(fusedAdapter(tensor, { changes: changesOf(sources) }))
      assert.deepStrictEqual(sumOf(tensor.shape, products, values), valuesOf(tensor, values))
    }
  })
})

describe("changes besides products", () => {
  const bias = { name: "fused.bias", ...concat([wholeAssembly("q.bias", [4]), wholeAssembly("k.bias", [2])], 0) }

  it("are strips of the adapter's tensors, in the places of the base's", () => {
    const changes = new Map<string, ReadonlyArray<AdapterChange>>([
      ["q.bias", [{ _tag: "Whole", target: "q.bias", tensor: "full", isNew: false }]],
      ["k.bias", [{ _tag: "Added", target: "k.bias", tensor: "more", scale: 3 }]]
    ])
    const fused = Result.getOrThrow(fusedAdapter(bias, { changes }))
    const values = new Map([
      ["full", new Float64Array([1, 2, 3, 4])],
      ["more", new Float64Array([5, 6])]
    ])
    const into = new Float64Array(6)
    for (const strip of fused.replaced) writeStrip(strip, bias.shape, values, into)
    for (const { strip, scale } of fused.added) writeStrip(strip, bias.shape, values, into, scale)
    assert.deepStrictEqual([...into], [1, 2, 3, 4, 15, 18])
    assert.deepStrictEqual(fused.products, [])
  })
})

describe("what is no product once it is mapped", () => {
  const own = dice(7)
  const { change } = source("w", [4, 6], own)
  const whole = wholeAssembly("w", [4, 6])
  const rows: AdapterChange = { _tag: "Rows", target: "w", tensor: "rows", rows: [1] }
  it.each<[string, Assembly, AdapterChange]>([
    ["norms", whole, { ...change, magnitude: "m" }],
    ["rows", whole, rows],
    ["functions of values", through(whole, "negExp"), change],
    [
      "rows and columns in one dimension",
      {
        shape: [24],
        strips: [
          {
            source: "w",
            offset: 0,
            at: [0],
            loops: [
              { dim: 0, count: 4, step: 6, source: 6 },
              { dim: 0, count: 6, step: 1, source: 1 }
            ]
          }
        ]
      },
      change
    ]
  ])("is refused: %s", (_, assembly, one) => {
    const fused = fusedAdapter({ name: "p", ...assembly }, { changes: new Map([["w", [one]]]) })
    assert.deepStrictEqual(Result.isFailure(fused) ? [fused.failure.kind, fused.failure.subject] : [], [
      "unsupported",
      "p"
    ])
  })

  it("is a sum still where numbers are added to values", () => {
    const fused = Result.getOrThrow(
      fusedAdapter({ name: "p", ...through(whole, { add: 1 }) }, { changes: new Map([["w", [change]]]) })
    )
    assert.strictEqual(fused.products.length, 1)
  })
})
