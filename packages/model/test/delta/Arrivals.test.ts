// SPDX-License-Identifier: Apache-2.0
/**
 * Updates of changes to quantized destinations: the bytes of whole updates, whoever quantizes, by every form and layout of
 * scales; and of what travels, only codes and scales that changed where the sender quantizes.
 */
import { assert, describe, it } from "@effect/vitest"
import { indexRosters, planRank } from "@tensorferry/core/planner/RosterPlanner"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import {
  codeShapeOf,
  codeTypeOf,
  hasGlobal,
  layoutOf,
  mxfp8Recipe,
  type QuantizationRecipe,
  type QuantizedTensor,
  quantizationRecipe,
  scaleShapeOf,
  scaleTypesOf
} from "@tensorferry/core/tensor/QuantizedTensor"
import { tensorDict } from "@tensorferry/core/tensor/TensorDict"
import { quantize } from "@tensorferry/core/transform/Quantize"
import { ownMaxima } from "@tensorferry/core/transform/QuantizeWork"
import { laidOutShape } from "@tensorferry/core/transform/ScaleLayouts"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { type ModelTensor, modelLayout } from "../../src/layout/ModelLayout.ts"
import { type Round, runUpdates, type UpdateCase } from "./updateSupport.ts"

const tensors: ReadonlyArray<ModelTensor> = [
  { name: "a.up.weight", dtype: "bfloat16", shape: [64, 96] },
  { name: "a.down.weight", dtype: "bfloat16", shape: [16, 192] },
  { name: "a.experts.weight", dtype: "bfloat16", shape: [2, 16, 64] }
]
const rules = {
  rules: [
    { match: "*up.weight", shard: 0 as const },
    { match: "*down.weight", shard: 1 as const },
    { match: "*experts.weight", shard: "replicate" as const }
  ]
}

const rosterOf = (tp: number, firstRank: number) =>
  Result.getOrThrow(modelLayout({ tensors, rules, config: { tp, pp: 1, dp: 1 }, firstRank })).roster

interface Form {
  readonly recipe: QuantizationRecipe
  readonly side: "sender" | "receiver"
  /** Regions of the update that cut no block. */
  readonly tp: number
}

const emptyLike = Effect.fnUntraced(function* (shape: ReadonlyArray<number>, recipe: QuantizationRecipe) {
  const engine = yield* TensorEngine
  const scales = laidOutShape(layoutOf(recipe), scaleShapeOf(recipe, shape)!)
  return {
    _tag: "QuantizedTensor",
    data: yield* engine.allocate(codeTypeOf(recipe), codeShapeOf(recipe, shape)),
    scale: yield* engine.allocate(scaleTypesOf(recipe)[0]!, scales),
    ...(hasGlobal(recipe) ? { global: yield* engine.allocate("float32", [1]) } : {}),
    recipe
  } satisfies QuantizedTensor
})

const caseOf = ({ recipe, side, tp }: Form): UpdateCase => {
  const index = Result.getOrThrow(indexRosters(rosterOf(2, 0), rosterOf(tp, 1)))
  const size = tp + 1
  const plans = Array.from({ length: size }, (_, rank) => planRank(index, rank))
  const destination = Effect.fnUntraced(function* (rank: number) {
    const side = plans[rank]!.destinationTensors
    if (side.length === 0) return undefined
    const entries: Array<readonly [string, QuantizedTensor]> = []
    for (const { name, shape } of side) entries.push([name, yield* emptyLike(shape, recipe)])
    return tensorDict(entries)
  })
  const source = Effect.fnUntraced(function* (rank: number) {
    const engine = yield* TensorEngine
    const side = plans[rank]!.sourceTensors
    if (side.length === 0) return undefined
    return tensorDict(
      yield* Effect.forEach(side, ({ name, shape, dtype }) =>
        Effect.map(engine.allocate(dtype, shape), (tensor) => [name, tensor] as const)
      )
    )
  })
  // A global scale is known of the whole before any part is quantized; values of the tests stay below it.
  const maxima = hasGlobal(recipe) ? () => ({ values: Float32Array.of(2 ** -9) }) : ownMaxima
  return {
    text: `${recipe.name}/${recipe.rule} ${layoutOf(recipe)} by the ${side}`,
    size,
    planOf: (rank) => plans[rank]!,
    memoryOf: (rank) => Effect.all({ source: source(rank), changes: destination(rank), whole: destination(rank) }),
    options: {
      transform: quantize(side === "sender" ? { side, recipe: { ...recipe, layout: "rowMajor" }, maxima } : { maxima })
    }
  }
}

const forms: ReadonlyArray<Form> = (["sender", "receiver"] as const).flatMap((side) => [
  { side, tp: 1, recipe: mxfp8Recipe("rceil") },
  { side, tp: 3, recipe: mxfp8Recipe("ocp_floor") },
  { side, tp: 1, recipe: mxfp8Recipe("rceil", "swizzled") },
  { side, tp: 2, recipe: quantizationRecipe("mxfp4", "triton_up") },
  { side, tp: 2, recipe: quantizationRecipe("nvfp4", "modelopt") },
  { side, tp: 2, recipe: quantizationRecipe("fp8", "deepgemm_fp32", "rowMajor", [8, 16]) }
])

const rounds: ReadonlyArray<Round> = [
  { share: 1 },
  { share: 0.002 },
  { share: 0 },
  { share: 0.3, damage: "bit" },
  { share: 0.01, damage: "missed" },
  { share: 0.01 }
]

describe("updates of changes to quantized tensors", () => {
  it.live.each(forms)("give the bytes of whole updates: $recipe.name, $recipe.layout, by the $side", (form) =>
    Effect.gen(function* () {
      const one = caseOf(form)
      const outcomes = yield* runUpdates(one, rounds)
      assert.deepStrictEqual(
        outcomes.flatMap(({ faults }) => faults),
        []
      )
      const sum = (round: number, of: (copy: { remoteBytesSent: number; localBytes: number }) => number) =>
        outcomes.reduce((total, { reports }) => total + of(reports[round]!.copy), 0)
      const sent = (round: number) => sum(round, (copy) => copy.remoteBytesSent + copy.localBytes)
      const whole = outcomes.reduce((total, { wholeBytes }) => total + wholeBytes[1]!, 0)
      assert.strictEqual(sent(0), whole, "the first update is a whole one")
      if (form.side === "sender") {
        assert.isBelow(sent(1), 0.35 * whole)
        // Scales that a transform gathers come in any case.
        if (layoutOf(form.recipe) === "rowMajor") assert.strictEqual(sent(2), 0)
        else assert.isBelow(sent(2), 0.1 * whole)
        assert.isAbove(
          outcomes.reduce((total, { damaged }) => total + damaged[3]! + damaged[4]!, 0),
          0
        )
      } else if (layoutOf(form.recipe) === "rowMajor" && form.tp !== 3) assert.strictEqual(sent(2), 0)
    })
  )
})
