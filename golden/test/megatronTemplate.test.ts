// SPDX-License-Identifier: Apache-2.0
/** What a config and Megatron-Core's whole tensors say of a checkpoint is the checkpoint that the recordings were made from. */
import { assert, describe, it } from "@effect/vitest"
import type { ModelTensor } from "@tensorferry/model/layout/ModelLayout"
import { megatronTemplate } from "@tensorferry/model/names/inventory/megatronTemplate"
import { recordedSide } from "../src/recordedSides.ts"

const templateOf = (family: string, cases: string) => {
  const { sources, config, ranks } = recordedSide("megatron", family, cases)
  const stored = ranks[0]!.map(({ name, shape }): ModelTensor => ({ name, dtype: "float32", shape }))
  const made = megatronTemplate(stored, { preset: config.model_type as string, config, placement: {} })
  return { sources, made }
}

const sorted = (tensors: ReadonlyArray<readonly [string, ReadonlyArray<number>]>) =>
  tensors.map(([name, shape]) => `${name} ${shape.join()}`).sort()

describe("a checkpoint by its config", () => {
  for (const [family, cases] of [
    ["llama", "tp1"],
    ["llama_tied", "tp1"],
    ["qwen2", "tp1"],
    ["qwen3", "tp1"],
    ["qwen3_moe", "tp1ep1etp1"],
    ["deepseek_v3", "tp1ep1etp1"],
    ["glm4_moe", "tp1ep1etp1"]
  ] as const) {
    it(`${family} has the names and shapes of the recording`, () => {
      const { sources, made } = templateOf(family, cases)
      assert.deepStrictEqual(sorted(made!.map(({ name, shape }) => [name, shape])), sorted(sources))
    })
  }

  for (const [family, cases] of [
    ["gemma3", "tp1"],
    ["gpt_oss", "tp1ep1etp1"],
    ["nemotron_h", "tp1ep1etp1"]
  ] as const) {
    it(`${family}, whose names are others, is left to a checkpoint of the model`, () => {
      assert.isUndefined(templateOf(family, cases).made)
    })
  }
})
