// SPDX-License-Identifier: Apache-2.0
/**
 * The command's readers of files as targets of fuzzing. The last arguments of the process are a manifest that a real reshard
 * wrote, and saved plans between parallel layouts and between meshes; files are written beside the file for seeds, whose folder the harness removes.
 */
import { readFileSync, writeFileSync } from "node:fs"
import { dirname, join } from "node:path"
import type { ShardingRules } from "@tensorferry/core/layout/ShardingRules"
import { CheckpointError } from "@tensorferry/model/checkpoint/CheckpointError"
import { LayoutError, modelLayout } from "@tensorferry/model/layout/ModelLayout"
import { encodeManifest, readManifest } from "@tensorferry/model/Manifest"
import { ModelError } from "@tensorferry/model/ModelError"
import { type FuzzTarget, type FuzzTargets, fuzzMain } from "@tensorferry/testing/fuzz"
import { aliasBomb, mutateEncoded, mutateJson, mutateText, type Random } from "@tensorferry/testing/mutate"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { stringify } from "yaml"
import { countOps, faultsOf, readPlans } from "../../src/job/planFile.ts"
import { readLayoutFile, sideOf } from "../../src/model/LayoutFile.ts"
import { readRules } from "../../src/model/Rules.ts"

const [, , , , , seedFile = "", manifest = "", plans = "", meshPlans = ""] = process.argv
const file = join(dirname(seedFile), "input")

/** What a reader makes of the input, checked by `accept`; its own errors are refusals. */
const examined = <A>(
  read: Effect.Effect<A, unknown>,
  accept: (value: A) => Effect.Effect<void, string>
): Effect.Effect<"accepted" | "refused", string> =>
  Effect.flatMap(Effect.result(read), (result) => {
    if (Result.isSuccess(result)) return Effect.as(accept(result.success), "accepted")
    const error = result.failure
    return (error instanceof ModelError || error instanceof CheckpointError) && error.reason.remedy !== ""
      ? Effect.succeed("refused")
      : Effect.fail(`failed with something else than its error: ${String(error)}`)
  })

const written = (input: Uint8Array | string) => Effect.sync(() => writeFileSync(file, input))

/** What was accepted is written as it was understood and is accepted again, as the same. */
const readsBack = <A>(value: A, text: string, read: Effect.Effect<A, unknown>): Effect.Effect<void, string> =>
  Effect.gen(function* () {
    yield* written(text)
    const again = yield* Effect.mapError(read, (error) => `it is not read back: ${String(error)}`)
    if (JSON.stringify(again) !== JSON.stringify(value)) return yield* Effect.fail("it is read back as something else")
  })

const tensors = [
  { name: "model.embed_tokens.weight", dtype: "float32", shape: [7, 4] },
  { name: "model.layers.0.self_attn.q_proj.weight", dtype: "bfloat16", shape: [8, 4] },
  { name: "model.layers.1.mlp.down_proj.weight", dtype: "float4_e2m1fn", shape: [4, 6] },
  { name: "model.layers.1.experts.3.w1", dtype: "uint8", shape: [5] },
  { name: "scalar", dtype: "float64", shape: [] }
] as const

/** Rules that were accepted either lay a model out or are refused for what they do to it. */
const applies = (rules: ShardingRules): Effect.Effect<void, string> => {
  for (const config of [
    { tp: 3, pp: 2, dp: 1 },
    { tp: 2, pp: 1, dp: 2, ep: 4, etp: 1 }
  ]) {
    const layout = modelLayout({ tensors, rules, config })
    if (Result.isFailure(layout) && !(layout.failure instanceof LayoutError)) return Effect.fail(String(layout.failure))
  }
  return Effect.void
}

const plainRules = {
  layers: "model.layers.{}.",
  default: "replicate",
  rules: [
    { match: "model.layers.*.q_proj.weight", shard: 0, blocks: [1, 1], padToMultiple: 2 },
    { match: "model.embed*", shard: -1, stage: "first", heads: { count: 2, whenFewer: "replicate" } },
    { match: "*.experts.*", shard: "replicate", experts: "name" }
  ],
  aliases: [{ name: "lm_head.weight", of: "model.embed_tokens.weight" }]
} as const

const family = {
  layers: ["layers.{}.", "h.{}."],
  rules: [{ match: "*norm.weight", shard: "replicate", stage: "last" }]
}

/** YAML is changed as text; JSON, which is YAML too, by structure. */
const yamlMutant =
  (...values: ReadonlyArray<unknown>) =>
  (random: Random): Uint8Array => {
    const value = random.pick(values)
    const text = random.isOneIn(2) ? JSON.stringify(value) : stringify(value)
    const bomb = random.isOneIn(20) ? `${aliasBomb(1 + random.below(30), 1 + random.below(30))}\n` : ""
    const mutant = mutateEncoded(bomb + text, random, text.startsWith("{") && bomb === "" ? mutateJson : mutateText)
    // The parser of YAML is slow: mostly short texts, so that there are many.
    return random.isOneIn(20) ? mutant : mutant.subarray(0, 3000)
  }

/** Plans that are read are proved, and either have no fault or typed ones. */
const planTarget = (saved: string): FuzzTarget => ({
  mutant: (random) => mutateEncoded(readFileSync(saved, "utf8"), random),
  examine: (input) =>
    Effect.gen(function* () {
      yield* written(input)
      const read = yield* Effect.result(readPlans(file))
      if (Result.isFailure(read)) return yield* examined(Effect.fail(read.failure), () => Effect.void)
      const faults = faultsOf(read.success)
      if (faults.length > 0) return "refused"
      return countOps(read.success) >= 0 ? "accepted" : yield* Effect.fail("its operations cannot be counted")
    })
})

const targets: FuzzTargets = {
  plans: planTarget(plans),
  meshPlans: planTarget(meshPlans),
  manifest: {
    mutant: (random) => mutateEncoded(readFileSync(manifest, "utf8"), random),
    examine: (input) =>
      examined(Effect.andThen(written(input), readManifest(file)), (value) =>
        Effect.flatMap(Effect.mapError(encodeManifest(value), String), (text) =>
          readsBack(value, text, readManifest(file))
        )
      )
  },
  rules: {
    mutant: yamlMutant(plainRules, family),
    examine: (input) =>
      examined(Effect.andThen(written(input), readRules(file)), (value) =>
        Effect.andThen(readsBack(value, JSON.stringify(value), readRules(file)), applies(value))
      )
  },
  layout: {
    mutant: yamlMutant(
      { preset: "llama", from: "tp=2", to: { tp: 4, pp: 2, ...plainRules }, ranks: "disjoint" },
      { ...plainRules, from: { tp: 2, dp: 4, ep: 8 }, kvHeads: "rows" }
    ),
    examine: (input) =>
      examined(Effect.andThen(written(input), readLayoutFile(file)), (value) =>
        Effect.gen(function* () {
          yield* readsBack(value, JSON.stringify(value), readLayoutFile(file))
          for (const side of [value.from, value.to]) {
            if (side !== undefined) yield* examined(sideOf(file, side), () => Effect.void)
          }
        })
      )
  }
}

await Effect.runPromise(fuzzMain(targets, process.argv.slice(2)))
