// SPDX-License-Identifier: Apache-2.0
/**
 * The recorded parameters of every rank, with an adapter on every matrix of the checkpoint: the products of a parameter add
 * up to what the recorded mapping makes of the products of the checkpoint's tensors. Factors are small whole numbers, so
 * sums are exact.
 */
import { assert, describe, it } from "@effect/vitest"
import { elementCount } from "@tensorferry/core/base/Region"
import type { LowRank } from "@tensorferry/model/names/adapters/Adapter"
import { type FusedAdapter, fusedAdapter, joinProducts } from "@tensorferry/model/names/adapters/fusedAdapter"
import type { MappedTensor } from "@tensorferry/model/names/mapModel"
import type { Assembly } from "@tensorferry/model/names/Strips"
import * as Result from "effect/Result"
import {
  elementMap,
  firstNumbers,
  mapRecorded,
  type Named,
  type RecordedFamily,
  type RecordedNames
} from "../src/nameMappings.ts"
import { readGolden } from "../src/readGolden.ts"

const read = (file: string): RecordedNames => readGolden(...(file.split("/") as [string, string])) as RecordedNames

/** Values by the numbers of elements; number 0 is a zero. */
interface Numbered {
  readonly values: Float64Array
  readonly firsts: ReadonlyMap<string, number>
}

const numbered = (tensors: Named): Numbered => {
  const firsts = firstNumbers(tensors)
  const total = tensors.reduce((sum, [, shape]) => sum + elementCount(shape), 1)
  return { values: new Float64Array(total), firsts: new Map(tensors.map(([name], at) => [name, firsts[at]!])) }
}

const valuesOf = (assembly: Assembly, { values, firsts }: Numbered): Float64Array => {
  const { numbers, fault } = elementMap(assembly, firsts)
  assert.isUndefined(fault)
  return Float64Array.from(numbers, (number) => values[number]!)
}

const factor = (place: number, seed: number): number => ((((place + 1) * 2654435761 + seed * 40503) >>> 7) % 7) - 3

interface Adapted {
  readonly changes: ReadonlyMap<string, ReadonlyArray<LowRank>>
  readonly factors: Numbered
  readonly deltas: Numbered
}

/** An adapter for every matrix and every stack of them: ranks, scales and directions differ. */
const adapt = (sources: Named): Adapted => {
  const lowRanks = sources.flatMap(([name, shape], at): ReadonlyArray<LowRank> => {
    if ((shape.length !== 2 && shape.length !== 3) || shape.includes(1)) return []
    const experts = shape.length === 3 ? { experts: shape[0]!, isTransposed: at % 2 === 0 } : undefined
    const common = { target: name, shape, module: name, parameter: undefined, rank: 1 + (at % 3), magnitude: undefined }
    const scale = 1 + (at % 2)
    const turned = { experts: undefined, isTransposed: false, ...experts }
    return [{ _tag: "LowRank", kind: "linear", alpha: 1, scale, a: `${name}.A`, b: `${name}.B`, ...common, ...turned }]
  })
  const sizes = (one: LowRank) => {
    const [rows, columns] = one.shape.slice(-2) as [number, number]
    const [out, input] = one.isTransposed ? [columns, rows] : [rows, columns]
    return { out, input, ranks: one.rank * (one.experts ?? 1) }
  }
  const tensors = lowRanks.flatMap((one) => {
    const { out, input, ranks } = sizes(one)
    return [[one.a, [ranks, input]] as const, [one.b, [out, ranks]] as const]
  })
  const factors = numbered(tensors)
  for (let place = 1; place < factors.values.length; place++) factors.values[place] = factor(place, tensors.length)
  const deltas = numbered(sources)
  for (const one of lowRanks) {
    const { out, input, ranks } = sizes(one)
    const experts = one.experts ?? 1
    const [a, b] = [one.a, one.b].map((name) => factors.values.subarray(factors.firsts.get(name)!))
    const first = deltas.firsts.get(one.target)!
    for (let expert = 0; expert < experts; expert++)
      for (let row = 0; row < out; row++)
        for (let column = 0; column < input; column++) {
          let sum = 0
          for (let rank = 0; rank < one.rank; rank++)
            sum += b![row * ranks + rank * experts + expert]! * a![(expert * one.rank + rank) * input + column]!
          const within = one.isTransposed ? column * out + row : row * input + column
          deltas.values[first + expert * out * input + within] = sum * one.scale
        }
  }
  return { changes: new Map(lowRanks.map((one) => [one.target, [one]])), factors, deltas }
}

/** All products of a parameter, added up. */
const added = ({ shape }: MappedTensor, { products }: FusedAdapter, factors: Numbered): Float64Array => {
  const sums = new Float64Array(elementCount(shape))
  for (const { change, lead, left, right } of products) {
    const [rows, columns] = [left.shape[0]!, right.shape[1]!]
    const [a, b] = [valuesOf(left, factors), valuesOf(right, factors)]
    const start = lead.reduce((sum, place, dim) => sum + place * elementCount(shape.slice(dim + 1)), 0)
    for (let row = 0; row < rows; row++)
      for (let column = 0; column < columns; column++)
        for (let rank = 0; rank < change.rank; rank++)
          sums[start + row * columns + column]! +=
            change.scale * a[row * change.rank + rank]! * b[rank * columns + column]!
  }
  return sums
}

/** How many products the parameters of all ranks of a family have; each parameter is checked. */
const checkFamily = (engine: string, family: RecordedFamily): ReadonlyArray<number> =>
  family.cases.flatMap((one) => {
    const sources = one.sources ?? family.sources
    const { changes, factors, deltas } = adapt(sources)
    const { tensors } = Result.getOrThrow(mapRecorded(engine, family, one, sources))
    return tensors.map((tensor) => {
      const fused = Result.getOrThrow(fusedAdapter(tensor, { changes }))
      const wanted = Float64Array.from(elementMap(tensor, deltas.firsts).numbers, (number) => deltas.values[number]!)
      const own = added(tensor, fused, factors)
      const at = wanted.findIndex((value, element) => value !== own[element])
      assert.strictEqual(at, -1, `${one.id} ${tensor.name}, element ${at}: ${own[at]} instead of ${wanted[at]}`)
      return fused.products.length
    })
  })

describe.each(["names_vllm/names_vllm", "names_vllm/names_sglang", "names_megatron/names_megatron"])("%s", (file) => {
  const { engine, families } = read(file)
  for (const family of families) {
    const variant = family.variant === undefined ? "" : ` (${family.variant})`
    it(`${family.family}${variant}: the parts of an adapter are those of its base, on every rank`, () => {
      const counts = checkFamily(engine, family)
      assert.isAbove(Math.max(...counts), 0)
    })
  }
})

describe("a q, k and v that are one parameter on two ranks", () => {
  const { engine, families } = read("names_vllm/names_vllm")
  const [llama] = families
  const ranks = llama!.cases.filter(({ tp, pipeline }) => tp === 2 && pipeline === undefined)
  const products = ranks.map((one) => {
    const { changes } = adapt(llama!.sources)
    const { tensors } = Result.getOrThrow(mapRecorded(engine, llama!, one, llama!.sources))
    const tensor = tensors.find(({ name }) => name === "model.layers.0.self_attn.qkv_proj.weight")!
    return { tensor, products: Result.getOrThrow(fusedAdapter(tensor, { changes })).products }
  })

  it("have three products on each rank, with the rank's own rows behind each other", () => {
    const [heads, kvHeads, size] = [8, 2, 8]
    const [q, kv] = [(heads * size) / 2, (kvHeads * size) / 2]
    for (const { products: own } of products) {
      assert.deepStrictEqual(
        own.map(({ change, rows, columns }) => [change.target, rows, columns]),
        [
          ["model.layers.0.self_attn.q_proj.weight", [[0, q]], [[0, 48]]],
          ["model.layers.0.self_attn.k_proj.weight", [[q, q + kv]], [[0, 48]]],
          ["model.layers.0.self_attn.v_proj.weight", [[q + kv, q + 2 * kv]], [[0, 48]]]
        ]
      )
    }
  })

  it("have one product together, whose ranks are those of the three", () => {
    const [{ tensor, products: own }] = products as [(typeof products)[0]]
    const [first, ...rest] = own
    const { left, right, scales } = joinProducts([first!, ...rest])
    const rank = own.reduce((sum, { change }) => sum + change.rank, 0)
    assert.deepStrictEqual(
      [left.shape, right.shape],
      [
        [tensor.shape[0]!, rank],
        [rank, tensor.shape[1]!]
      ]
    )
    assert.strictEqual(scales.length, rank)
  })
})
