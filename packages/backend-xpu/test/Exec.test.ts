// SPDX-License-Identifier: Apache-2.0
/**
 * Plans carried out with tensors of this backend: ranks of one process that share a device, every element judged.
 */
import { assert, describe, it } from "@effect/vitest"
import { type ModelTensor, modelLayout } from "@tensorferry/model/layout/ModelLayout"
import { oracle } from "@tensorferry/testing"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as TensorEngine from "../src/TensorEngine.ts"
import { assertClean, lackOf, optionsOf, resetSimulator, subjects, titleOf } from "./simulator.ts"

const tensors = (dtype: ModelTensor["dtype"]): ReadonlyArray<ModelTensor> => [
  { name: "layers.0.up.weight", dtype, shape: [7, 5] },
  { name: "layers.1.down.weight", dtype, shape: [5, 8] },
  { name: "norm.weight", dtype, shape: [11] }
]

const rosterOf = (tp: number, dtype: ModelTensor["dtype"] = "float32") =>
  Result.getOrThrow(
    modelLayout({
      tensors: tensors(dtype),
      rules: {
        rules: [
          { match: "*up.weight", shard: 0 },
          { match: "*down.weight", shard: 1 },
          { match: "norm.weight", shard: "replicate", stage: "last" }
        ]
      },
      config: { tp, pp: 1, dp: 1 },
      firstRank: 0
    })
  ).roster

for (const subject of subjects) {
  describe.skipIf(lackOf(subject) !== undefined)(titleOf(subject), () => {
    it.live("reshards tensors of the device, with rows and casts", () =>
      Effect.gen(function* () {
        if (subject === "level-zero") resetSimulator("seed=5")
        const engine = TensorEngine.layer(optionsOf(subject))
        for (const [from, to] of [
          [rosterOf(2), rosterOf(3)],
          [rosterOf(3), rosterOf(1)],
          [rosterOf(2), rosterOf(2, "bfloat16")]
        ] as const) {
          const faults = yield* oracle.runOracle(from, to, { engine })
          assert.deepStrictEqual(faults.map(oracle.describeFault), [])
        }
        if (subject === "level-zero") assertClean()
      })
    )
  })
}
