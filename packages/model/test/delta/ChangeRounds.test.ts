// SPDX-License-Identifier: Apache-2.0
/**
 * Laws of updates of changes: any base, any change, any two layouts, names and forms give the bytes of whole updates, round
 * after round; and whatever happens to a list on its way, it is not written, and that region alone comes again.
 */
import { assert, describe, it } from "@effect/vitest"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import { tensorDict } from "@tensorferry/core/tensor/TensorDict"
import { meshPair } from "@tensorferry/testing/planning/meshArbitraries"
import { compact, dictOf, pairSpecs, pairText, plansOf, sidesOf } from "@tensorferry/testing/planning/meshSides"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { ModelTensor, ParallelConfig } from "../../src/layout/ModelLayout.ts"
import { mappedDict } from "../../src/names/mappedDict.ts"
import type { MappedLayout } from "../../src/names/mappedLayouts.ts"
import { namedLayouts } from "../../src/names/namedLayouts.ts"
import { damages, type RankOutcome, type Round, runUpdates, type UpdateCase } from "./updateSupport.ts"

const cases = isSoak ? 400 : 12

const meshCases = Effect.map(
  Arbitrary.sampleEffect(meshPair({ isPartial: false }), { count: cases, seed: 5 }),
  (pairs) =>
    pairs.map(compact).map((pair, at): UpdateCase => {
      const plans = plansOf(pairSpecs(pair, "balanced"), 2 ** 20, 1)
      return {
        text: pairText(pair),
        size: plans.length,
        planOf: (rank) => plans[rank]!,
        memoryOf: (rank) =>
          Effect.gen(function* () {
            const plan = plans[rank]!
            const { sources, targets } = yield* sidesOf(plan)
            const whole = (yield* sidesOf(plan)).targets
            return { source: dictOf(plan, sources), changes: dictOf(plan, targets), whole: dictOf(plan, whole) }
          }),
        // What checks more must give the same.
        options: at % 3 === 0 ? { verify: true } : {}
      }
    })
)

const llama = {
  model_type: "llama",
  hidden_size: 32,
  num_attention_heads: 8,
  num_key_value_heads: 2,
  head_dim: 4,
  num_hidden_layers: 1,
  intermediate_size: 48,
  vocab_size: 40
}

const llamaTensors = (
  [
    ["model.embed_tokens", [40, 32]],
    ["model.layers.0.self_attn.q_proj", [32, 32]],
    ["model.layers.0.self_attn.k_proj", [8, 32]],
    ["model.layers.0.self_attn.v_proj", [8, 32]],
    ["model.layers.0.self_attn.o_proj", [32, 32]],
    ["model.layers.0.mlp.gate_proj", [48, 32]],
    ["model.layers.0.mlp.up_proj", [48, 32]],
    ["model.layers.0.mlp.down_proj", [32, 48]],
    ["model.layers.0.input_layernorm", [32]],
    ["model.layers.0.post_attention_layernorm", [32]],
    ["model.norm", [32]],
    ["lm_head", [40, 32]]
  ] as const
).map(([name, shape]): ModelTensor => ({ name: `${name}.weight`, dtype: "bfloat16", shape }))

/** From the names and the fusions of one system to those of another: parts of tensors become others, interleaved by head. */
const namedCase = (from: readonly [string, ParallelConfig], to: readonly [string, ParallelConfig]): UpdateCase => {
  const layouts = Result.getOrThrow(
    namedLayouts(llamaTensors, {
      from: { convention: from[0], config: from[1] },
      to: { convention: to[0], config: to[1] },
      ranks: "collocated",
      family: { preset: "llama", config: llama, placement: {} }
    })
  )
  const side = (layout: MappedLayout, rank: number) =>
    Effect.gen(function* () {
      if (!layout.ranks.includes(rank)) return undefined
      const engine = yield* TensorEngine
      const tensors = new Map<string, Tensor>()
      for (const { name, dtype, shape } of layout.rankOf(rank).tensors) {
        const tensor = yield* engine.allocate(dtype, shape)
        yield* engine.fill(tensor, 0)
        tensors.set(name, tensor)
      }
      const dict = yield* Effect.fromResult(mappedDict(layout.rankOf(rank), layout.parametersOf(rank), tensors))
      return tensorDict(dict.tensors)
    })
  return {
    text: `${JSON.stringify(from)} to ${JSON.stringify(to)}`,
    size: layouts.size,
    planOf: layouts.planFor,
    memoryOf: (rank) =>
      Effect.all({
        source: side(layouts.source, rank),
        changes: side(layouts.destination, rank),
        whole: side(layouts.destination, rank)
      })
  }
}

const at = (tp: number, pp = 1, dp = 1): ParallelConfig => ({ tp, pp, dp })
const namedCases = [
  namedCase(["megatron", at(2)], ["vllm", at(4)]),
  namedCase(["hf", at(1)], ["sglang", at(2)]),
  namedCase(["vllm", at(4)], ["megatron", at(2, 1, 2)])
]

const plainRounds: ReadonlyArray<Round> = [{ share: 1 }, { share: 0.02 }, { share: 0 }, { share: 0.95 }, { share: 0.1 }]

const sum = (outcomes: ReadonlyArray<RankOutcome>, of: (outcome: RankOutcome) => number) =>
  outcomes.reduce((total, outcome) => total + of(outcome), 0)

describe("updates of changes", () => {
  it.live("give the bytes of whole updates between names and fusions of systems", () =>
    Effect.gen(function* () {
      for (const one of namedCases) {
        const outcomes = yield* runUpdates(one, plainRounds)
        assert.deepStrictEqual(
          outcomes.flatMap(({ faults }) => faults),
          []
        )
        assert.isAbove(
          sum(outcomes, ({ reports }) => reports[1]!.listed),
          5,
          one.text
        )
      }
    })
  )

  it.live(
    "write no list that was damaged, and bring that region again",
    () =>
      Effect.gen(function* () {
        let [damaged, whole] = [0, 0]
        const all = [...(yield* meshCases), ...namedCases]
        for (const [seed, one] of all.entries()) {
          const rounds = [1, 0.05, 0.3, 0.05, 0.2, 0.05].map((share, round): Round => {
            return round % 3 === 0 ? { share } : { share, damage: damages[(seed + round) % damages.length]! }
          })
          const outcomes = yield* runUpdates(one, rounds, seed)
          assert.deepStrictEqual(
            outcomes.flatMap(({ faults }) => faults),
            []
          )
          for (const round of rounds.keys()) {
            const harmed = sum(outcomes, (each) => each.damaged[round]!)
            damaged += harmed
            // Each is found by its rank, which all ranks report, and nothing else comes again.
            for (const { reports } of outcomes) assert.strictEqual(reports[round]!.repaired, harmed, one.text)
            if (round > 0) whole += sum(outcomes, ({ reports }) => reports[round]!.whole)
          }
        }
        assert.isAbove(damaged, 40)
        assert.isAbove(whole, 0)
      }),
    isSoak ? 3_000_000 : 120_000
  )

  it.live("bring everything to who lost all, and one tensor to who lost that", () =>
    Effect.gen(function* () {
      for (const one of namedCases.slice(0, 2)) {
        const rounds: ReadonlyArray<Round> = [
          { share: 1 },
          { share: 0.02, lost: { rank: 0, all: false } },
          { share: 0.02, lost: { rank: 1, all: true } },
          { share: 0.02 }
        ]
        const outcomes = yield* runUpdates(one, rounds)
        assert.deepStrictEqual(
          outcomes.flatMap(({ faults }) => faults),
          []
        )
        const whole = rounds.map((_, round) => sum(outcomes, ({ reports }) => reports[round]!.whole))
        assert.isAbove(whole[1]!, 0, one.text)
        assert.isAbove(whole[2]!, whole[1]!, one.text)
        assert.isAbove(whole[0]!, whole[2]!, one.text)
        assert.strictEqual(whole[3], 0, one.text)
      }
    })
  )

  it.live("send about the bytes of their changes", () =>
    Effect.gen(function* () {
      for (const one of namedCases) {
        const outcomes = yield* runUpdates(one, [{ share: 1 }, { share: 0.05 }])
        const [sent, changed] = [
          sum(outcomes, ({ reports }) => reports[1]!.copy.remoteBytesSent + reports[1]!.copy.localBytes),
          sum(outcomes, ({ reports }) => reports[1]!.changedElements)
        ]
        assert.strictEqual(sent, changed * (2 + 2))
        assert.isBelow(sent, 0.2 * sum(outcomes, ({ wholeBytes }) => wholeBytes[1]!))
      }
    })
  )
})
