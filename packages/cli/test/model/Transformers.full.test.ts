// SPDX-License-Identifier: Apache-2.0
/**
 * Small random models that transformers itself makes and saves: describe knows every tensor of every family, our mapping
 * makes of the files what its own loader has in memory, and a model that went through four ranks and back gives the same
 * logits, bit by bit.
 */
import { spawnSync } from "node:child_process"
import { copyFileSync, readFileSync } from "node:fs"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import type { Cutting } from "@tensorferry/model/Cutting"
import { modelTypes } from "@tensorferry/model/families/families"
import { openModel } from "@tensorferry/model/openModel"
import { structureOf } from "@tensorferry/model/placement/cutModel"
import { parseModelConfig } from "@tensorferry/model/structure/ModelConfig"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { afterAll, beforeAll } from "vitest"
import { scratch } from "../support/command.ts"
import { runJob } from "../support/inProcess.ts"
import { memoryFault } from "../support/namesInMemory.ts"
import { reportsOf } from "../support/throughLayouts.ts"

const python = process.env.TENSORFERRY_PYTHON ?? "python3"
const script = fileURLToPath(new URL("../fixtures/transformers_models.py", import.meta.url))
const hasTransformers = spawnSync(python, ["-c", "import torch, transformers, safetensors"]).status === 0
const missing = hasTransformers ? "" : ` (skipped: ${python} has no transformers)`

/** Types whose models are code of their own publishers; the tower of gemma3n has 300 million parameters at its least. */
const unmade = new Set(["qwen", "internlm3", "kimi_k2", "gemma3n"])

/** One model type of each shape of architecture. */
const moved = [
  "llama",
  "qwen2",
  "qwen3",
  "gemma2",
  "gemma3_text",
  "phi3",
  "glm4",
  "olmo2",
  "cohere2",
  "mixtral",
  "qwen3_moe",
  "qwen2_moe",
  "deepseek_v3",
  "glm4_moe",
  "gpt_oss",
  "llama4_text",
  "granitemoe",
  "qwen3_next",
  "qwen3_5_moe_text",
  "nemotron_h",
  "falcon_h1",
  "bamba",
  "jamba",
  "mamba2",
  "minimax_m2",
  "lfm2_moe",
  "olmo_hybrid"
] as const

const runScript = (...args: ReadonlyArray<string>) => {
  const ended = spawnSync(python, [script, ...args], { encoding: "utf8", timeout: 280_000, maxBuffer: 2 ** 26 })
  assert.strictEqual(ended.status, 0, `${ended.stdout}${ended.stderr}`)
  return ended.stdout.trim().split("\n")
}

const familyOf = (folder: string): NonNullable<Cutting["family"]> => {
  const config = Result.getOrThrow(parseModelConfig(readFileSync(join(folder, "config.json"), "utf8")))
  return { preset: config.model_type as string, config, placement: {} }
}

describe.skipIf(!hasTransformers)(`models of transformers${missing}`, () => {
  const folder = scratch()
  let made: ReadonlyArray<string> = []
  beforeAll(() => {
    if (!hasTransformers) return
    made = runScript("make", folder.path, ...modelTypes.filter((type) => !unmade.has(type)))
  }, 300_000)
  afterAll(() => folder[Symbol.dispose]())

  it.live("have no tensor that describe does not know", () =>
    Effect.gen(function* () {
      assert.isAtLeast(made.length, 45)
      for (const type of made) {
        const own = join(folder.path, type)
        const { tensors } = yield* Effect.scoped(openModel(own))
        const structure = Result.getOrThrow(structureOf(tensors, familyOf(own)))
        assert.deepStrictEqual(structure.unknown, [], type)
      }
    })
  )

  it("have in memory what our mapping makes of their files, and give the files again", () => {
    const folders = made.map((type) => join(folder.path, type))
    runScript("memory", ...folders)
    const faults = folders.map((own) => [own, memoryFault(own, familyOf(own))] as const)
    assert.deepStrictEqual(
      faults.filter(([, fault]) => fault !== undefined),
      []
    )
  }, 300_000)

  it.live(
    "give the same logits after four ranks and back",
    () =>
      Effect.gen(function* () {
        const types = moved.filter((type) => made.includes(type))
        assert.isAtLeast(types.length, 12)
        const pairs: Array<string> = []
        for (const type of types) {
          const own = join(folder.path, type)
          const rules: Cutting = { rules: [], family: familyOf(own) }
          const [there, back] = [join(folder.path, `${type}-there`), join(folder.path, `${type}-back`)]
          reportsOf(yield* runJob({ checkpoint: own, from: "tp=1", to: "tp=2,pp=2", rules, out: there }))
          reportsOf(yield* runJob({ checkpoint: there, from: "tp=2,pp=2", to: "tp=1", rules, out: back }))
          copyFileSync(join(own, "config.json"), join(back, "config.json"))
          pairs.push(own, back)
        }
        runScript("same", ...pairs)
      }),
    600_000
  )
})
