// SPDX-License-Identifier: Apache-2.0
/**
 * Shards of small models are the digests of the shards that they are made of, between many layouts; one bit that differs names
 * the tensor that has it, on its rank alone.
 */
import { readFileSync } from "node:fs"
import { writeFile } from "node:fs/promises"
import { join } from "node:path"
import { gunzipSync } from "node:zlib"
import { assert, describe, it } from "@effect/vitest"
import { makeInProcessGroups } from "@tensorferry/core/group/ProcessGroupInProcess"
import * as ReferenceEngine from "@tensorferry/testing/ReferenceEngine"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { allocateTensors, type HeldTensor, loadTensors } from "../../src/HeldTensors.ts"
import { type ModelLayout, parseParallelConfig } from "../../src/layout/ModelLayout.ts"
import { cutModel } from "../../src/placement/cutModel.ts"
import { differingByDigests, planDigestProof } from "../../src/proof/proveDigests.ts"
import { openSynthetic } from "../../src/SyntheticModel.ts"
import type { ModelConfig } from "../../src/structure/ModelConfig.ts"
import { scratchFolder } from "../checkpoint/checkpointSupport.ts"

const { models } = JSON.parse(
  gunzipSync(readFileSync(new URL("../data/models/small-models.json.gz", import.meta.url))).toString("utf8")
) as {
  readonly models: Readonly<
    Record<string, { readonly config: ModelConfig; readonly tensors: Readonly<Record<string, ReadonlyArray<number>>> }>
  >
}

const layoutOf = (type: string, degrees: string): ModelLayout => {
  const { config, tensors } = models[type]!
  const listed = Object.entries(tensors).map(([name, shape]) => ({ name, dtype: "bfloat16" as const, shape }))
  const rules = { rules: [], family: { preset: config.model_type as string, config, placement: {} } }
  return Result.getOrThrow(
    cutModel({ tensors: listed, rules, config: Result.getOrThrow(parseParallelConfig(degrees)) })
  )
}

/** What each rank finds to differ, where both sides were loaded from one model and then `change` was done to them. */
const differing = (
  type: string,
  [from, to]: readonly [string, string],
  change: (rank: number, source: ReadonlyArray<HeldTensor>, destination: ReadonlyArray<HeldTensor>) => void = () => {}
) =>
  Effect.gen(function* () {
    const file = join(yield* scratchFolder, "shapes.json")
    yield* Effect.promise(() => writeFile(file, JSON.stringify({ dtype: "BF16", tensors: models[type]!.tensors })))
    const model = yield* openSynthetic(`synthetic:${file}`)
    const [source, destination] = [layoutOf(type, from), layoutOf(type, to)]
    const proof = planDigestProof(source, destination)!
    assert.isDefined(proof)
    const groups = yield* makeInProcessGroups(Math.max(source.ranks.length, destination.ranks.length))
    return yield* Effect.forEach(
      groups,
      (group) =>
        Effect.gen(function* () {
          const own = yield* allocateTensors(source.tensorsOf(group.rank))
          const into = yield* allocateTensors(destination.tensorsOf(group.rank))
          yield* loadTensors(model, group, [...own, ...into], () => Effect.void, true)
          change(group.rank, own, into)
          return (yield* differingByDigests(proof, group, own, into)).map(({ local }) => local.name)
        }),
      { concurrency: "unbounded" }
    )
  }).pipe(Effect.scoped, Effect.provide(ReferenceEngine.layer()))

describe("digests of what sources hold", () => {
  for (const [type, from, to] of [
    ["llama", "tp=1", "tp=2"],
    ["llama", "tp=4", "tp=1,pp=2"],
    ["llama", "tp=2,dp=2", "tp=4"],
    ["mixtral", "tp=2,ep=2", "tp=1,pp=2"],
    ["qwen3_moe", "tp=1,dp=2,ep=2", "tp=2"]
  ] as const) {
    it.live(`${type} from ${from} to ${to}: those of destinations, and no others`, () =>
      Effect.gen(function* () {
        for (const names of yield* differing(type, [from, to])) assert.deepStrictEqual(names, [])
      })
    )
  }

  it.live("a bit of a destination that differs: its tensor, on its rank", () =>
    Effect.gen(function* () {
      const name = "model.layers.1.mlp.up_proj.weight"
      const found = yield* differing("llama", ["tp=1", "tp=2"], (rank, _, destination) => {
        if (rank === 1) destination.find(({ local }) => local.name === name)!.bytes![77]! ^= 4
      })
      assert.deepStrictEqual(found, [[], [name]])
    })
  )

  it.live("two rows in each other's place differ", () =>
    Effect.gen(function* () {
      const name = "lm_head.weight"
      const found = yield* differing("llama", ["tp=1", "tp=2"], (rank, _, destination) => {
        const { bytes } = destination.find(({ local }) => local.name === name)!
        const [first, second] = [bytes!.slice(0, 128), bytes!.slice(128, 256)]
        if (rank === 0) bytes!.set(second, 0)
        if (rank === 0) bytes!.set(first, 128)
      })
      assert.deepStrictEqual(found, [[name], []])
    })
  )

  it.live("a bit of a source that differs: its tensor, on each rank that has it", () =>
    Effect.gen(function* () {
      const name = "model.norm.weight"
      const found = yield* differing("llama", ["tp=1", "tp=2"], (rank, source) => {
        if (rank === 0) source.find(({ local }) => local.name === name)!.bytes![3]! ^= 1
      })
      assert.deepStrictEqual(found, [[name], [name]])
    })
  )

  it("sources that lack a part vouch for nothing", () => {
    const source = layoutOf("llama", "tp=2")
    const lacking = { ...source, ranks: [0] }
    assert.isUndefined(planDigestProof(lacking, source))
    assert.isDefined(planDigestProof(source, source))
  })
})
