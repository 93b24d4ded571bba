// SPDX-License-Identifier: Apache-2.0
/**
 * Laws of mappings over random ones: ranks hold what a brute-force reading of the rules says, the way back is the identity on
 * the checkpoint, and the way back of the way back is the mapping again. Seeds are fixed; TENSORFERRY_TESTS=soak runs more.
 */
import { assert, describe, it } from "@effect/vitest"
import { elementCount } from "@tensorferry/core/base/Region"
import { type RandomMapping, randomMapping } from "@tensorferry/testing/names/randomMapping"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { placeOf } from "../../src/layout/ParallelConfig.ts"
import {
  type HeldTensor,
  heldPart,
  inverse,
  parseShardName,
  shardName,
  shardsOf,
  wayBack
} from "../../src/names/inverse.ts"
import { Mapping } from "../../src/names/Mapping.ts"
import { type MappedModel, mapModel } from "../../src/names/mapModel.ts"
import type { Assembly, Scalar } from "../../src/names/Strips.ts"
import { structureOf } from "../../src/placement/cutModel.ts"
import { expectedOn, firstNumbers } from "./mappingOracle.ts"

const count = isSoak ? 2000 : 40
const timeout = isSoak ? 900_000 : 120_000

const modelOf = (random: RandomMapping): MappedModel => {
  const { config, tensors, degrees, vocabularyMultiple, rules } = random
  // What a `--map` file would hold.
  const mapping = Schema.decodeUnknownSync(Mapping)(JSON.parse(JSON.stringify({ rules, others: "refuse" })))
  const structure = Result.getOrThrow(structureOf(tensors, { preset: "qwen3_moe", config, placement: {} }))
  const placement = { vocabulary: { multipleOf: vocabularyMultiple, of: "whole" as const } }
  return Result.getOrThrow(mapModel({ structure, tensors, mapping, config: degrees, placement }))
}

const worldOf = ({ degrees: { tp, pp, dp } }: RandomMapping): number => tp * pp * dp

const nameOf = (value: string, scalar: Scalar | undefined): string =>
  scalar === undefined
    ? value
    : scalar === "negExp"
      ? value.startsWith("log(-")
        ? value.slice(5, -1)
        : `-exp(${value})`
      : scalar === "logNeg"
        ? value.startsWith("-exp(")
          ? value.slice(5, -1)
          : `log(-${value})`
        : value.endsWith(`+${-scalar.add}`)
          ? value.slice(0, value.lastIndexOf("+"))
          : `${value}+${scalar.add}`

/** Elements of a tensor that is made of strips; each place must be written at most once. */
const elementsOf = (
  { shape, strips }: Assembly,
  valueOf: (source: string, at: number) => string
): ReadonlyArray<string | undefined> => {
  const elements = new Array<string | undefined>(elementCount(shape)).fill(undefined)
  for (const { source, offset, at, loops, scalar } of strips) {
    const step = (depth: number, place: ReadonlyArray<number>, from: number): void => {
      const loop = loops[depth]
      if (loop === undefined) {
        const own = place.reduce((sum, one, dim) => sum * shape[dim]! + one, 0)
        assert.isUndefined(elements[own], `element ${own} is written twice`)
        elements[own] = source === undefined ? "0" : nameOf(valueOf(source, from), scalar)
        return
      }
      for (let index = 0; index < loop.count; index++)
        step(
          depth + 1,
          place.map((one, dim) => (dim === loop.dim ? one + index * loop.step : one)),
          from + index * loop.source
        )
    }
    step(0, at, offset)
  }
  return elements
}

const forEachMapping = (seed: string, judge: (random: RandomMapping, model: MappedModel) => void) =>
  Effect.gen(function* () {
    for (const random of yield* Arbitrary.sampleEffect(randomMapping, { count, seed })) {
      try {
        judge(random, modelOf(random))
      } catch (cause) {
        const { rules, degrees, config } = random
        assert.fail(`${cause instanceof Error ? cause.message : cause}\n${JSON.stringify({ degrees, config, rules })}`)
      }
    }
  })

const numbersOf = (random: RandomMapping) => {
  const firsts = firstNumbers(random)
  return (source: string, at: number): string => String(firsts.get(source)! + at)
}

/** Values of all shards, by name. */
const valuesOf = (random: RandomMapping, shards: ReadonlyArray<HeldTensor>) =>
  new Map(shards.map((shard) => [shard.name, elementsOf(shard, numbersOf(random))]))

describe("random mappings", () => {
  it.effect(
    "give each rank the tensors and the elements that the rules say, each element once",
    () =>
      forEachMapping("oracle", (random, model) => {
        for (let rank = 0; rank < worldOf(random); rank++) {
          const expected = expectedOn(random, rank)
          const { tensors } = Result.getOrThrow(model.rankAt(placeOf(random.degrees, 0, rank)))
          assert.deepStrictEqual(tensors.map(({ name }) => name).sort(), [...expected.keys()].sort())
          for (const tensor of tensors) {
            const { shape, elements } = expected.get(tensor.name)!
            assert.deepStrictEqual(tensor.shape, shape, `rank ${rank}, ${tensor.name}`)
            assert.deepStrictEqual(elementsOf(tensor, numbersOf(random)), elements, `rank ${rank}, ${tensor.name}`)
          }
        }
      }),
    timeout
  )

  it.effect(
    "lead back to the checkpoint, element by element, each once",
    () =>
      forEachMapping("back", (random, model) => {
        const shards = Result.getOrThrow(shardsOf(model))
        const values = valuesOf(random, shards)
        const back = Result.getOrThrow(wayBack(model, random.tensors))
        const ignored = random.rules.flatMap((rule) => ("ignore" in rule ? [rule.ignore] : []))
        assert.deepStrictEqual(
          back.map(({ name }) => name),
          random.tensors.flatMap(({ name }) => (ignored.includes(name) ? [] : [name]))
        )
        for (const tensor of back) {
          const own = numbersOf(random)
          const wanted = Array.from({ length: elementCount(tensor.shape) }, (_, at) => own(tensor.name, at))
          assert.deepStrictEqual(
            elementsOf(tensor, (source, at) => values.get(source)![at]!),
            wanted,
            tensor.name
          )
        }
      }),
    timeout
  )

  it.effect(
    "come again as the way back of the way back, where an element was taken from",
    () =>
      forEachMapping("again", (random, model) => {
        const shards = Result.getOrThrow(shardsOf(model))
        const back = Result.getOrThrow(wayBack(model, random.tensors))
        const again = Result.getOrThrow(
          heldPart(
            back,
            shards.map(({ name, shape }) => ({ name, shape, dtype: "float32" as const }))
          )
        )
        const values = valuesOf(random, shards)
        let covered = 0
        for (const shard of again) {
          for (const [at, element] of elementsOf(shard, numbersOf(random)).entries()) {
            if (element === undefined) continue
            covered += 1
            assert.strictEqual(element, values.get(shard.name)![at], `${shard.name}, element ${at}`)
          }
        }
        assert.strictEqual(
          covered,
          back.reduce((sum, { shape }) => sum + elementCount(shape), 0)
        )
      }),
    timeout
  )

  it.effect(
    "take an element that several ranks hold from the lowest",
    () =>
      forEachMapping("lowest", (random, model) => {
        const values = valuesOf(random, Result.getOrThrow(shardsOf(model)))
        const lowest = new Map<string, number>()
        for (const [name, elements] of values) {
          const { rank } = parseShardName(name)
          for (const element of elements) {
            const number = /\d+/.exec(element!)![0]
            lowest.set(number, Math.min(lowest.get(number) ?? Number.POSITIVE_INFINITY, rank))
          }
        }
        for (const tensor of Result.getOrThrow(wayBack(model, random.tensors))) {
          const ranks = elementsOf(tensor, (source) => String(parseShardName(source).rank))
          const own = numbersOf(random)
          for (const [at, rank] of ranks.entries())
            assert.strictEqual(
              Number.parseInt(/\d+/.exec(rank!)![0], 10),
              lowest.get(own(tensor.name, at)),
              tensor.name
            )
        }
      }),
    timeout
  )

  it.effect(
    "are refused on the way back with what nobody holds, where a tensor of a rank is missing",
    () =>
      forEachMapping("missing", (random, model) => {
        const shards = Result.getOrThrow(shardsOf(model))
        const values = valuesOf(random, shards)
        const drop = shards[random.tensors.length % shards.length]!
        const rest = shards.filter((shard) => shard !== drop)
        const held = new Set(rest.flatMap(({ name }) => values.get(name)!.map((value) => /\d+/.exec(value!)![0])))
        const ignored = new Set(random.rules.flatMap((rule) => ("ignore" in rule ? [rule.ignore] : [])))
        const wanted = random.tensors.filter(({ name }) => !ignored.has(name))
        const own = numbersOf(random)
        const holes = wanted.flatMap(({ name, shape }) => {
          const missing = Array.from({ length: elementCount(shape) }, (_, at) => at).filter(
            (at) => !held.has(own(name, at))
          )
          return missing.length === 0 ? [] : [{ name, count: missing.length, first: missing[0]! }]
        })
        const made = inverse(rest, wanted)
        const [hole] = holes
        if (hole === undefined) assert.isTrue(Result.isSuccess(made), `without ${drop.name}`)
        else {
          assert.isTrue(Result.isFailure(made), `without ${drop.name}`)
          const { kind, subject, detail } = Result.getOrThrow(Result.flip(made))
          assert.deepStrictEqual([kind, subject], ["unwritten", hole.name])
          assert.include(detail, `${hole.count} of its elements, the first at ${hole.first}.`)
        }
      }),
    timeout
  )
})

describe("names of shards", () => {
  it("hold the rank and the tensor's name, whatever is in it", () => {
    assert.deepStrictEqual(parseShardName(shardName(12, "a:b.weight")), { rank: 12, name: "a:b.weight" })
  })
})
