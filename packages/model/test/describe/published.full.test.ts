// SPDX-License-Identifier: Apache-2.0
/**
 * Every model type in full size, as transformers makes it of its class's own config, which most often is a published model's: no
 * tensor is unknown or missing, counts are the config's, and the degrees are those that engines run. The recorded tensors of
 * published models are those that transformers makes.
 */
import { readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { gunzipSync } from "node:zlib"
import { assert, describe, it } from "@effect/vitest"
import { pythonWith, runScript, withPython } from "@tensorferry/testing/machine/python"
import * as Effect from "effect/Effect"
import { modelTypes } from "../../src/families/families.ts"
import type { ModelConfig } from "../../src/structure/ModelConfig.ts"
import { scratchFolder } from "../checkpoint/checkpointSupport.ts"
import {
  describedFaults,
  expanded,
  headsAllow,
  type PatternTensors,
  type PublishedModel,
  widthsAllow
} from "../support/publishedModels.ts"

const python = pythonWith("torch", "transformers")
const data = new URL("../data/models/", import.meta.url)

type Made = Readonly<
  Record<
    string,
    { readonly absent: string } | { readonly config: ModelConfig; readonly tensors: ReadonlyArray<PatternTensors> }
  >
>

const make = (configs: Readonly<Record<string, ModelConfig>>) =>
  Effect.gen(function* () {
    const folder = yield* scratchFolder
    const [out, stated] = [join(folder, "made.json"), join(folder, "configs.json")]
    writeFileSync(stated, JSON.stringify(configs))
    yield* Effect.promise(() => runScript(python!, new URL("../fixtures/meta_models.py", import.meta.url), out, stated))
    return JSON.parse(readFileSync(out, "utf8")) as Made
  })

/** Numbers that a class of transformers has no default for. */
const stated: Readonly<Record<string, ModelConfig>> = {
  hunyuan_v1_dense: { head_dim: 128 },
  hunyuan_v1_moe: { head_dim: 128 },
  lfm2_moe: { layer_types: Array.from({ length: 32 }, (_, at) => (at % 4 === 2 ? "full_attention" : "conv")) },
  ministral: { head_dim: 128 }
}

/** Types that transformers does not make, and where their names come from. */
const absent: Readonly<Record<string, string>> = {
  internlm3: "published.json has it: its names are those of llama",
  kimi_k2: "published.json has it: its names are those of deepseek_v3",
  qwen: "its published index is beside published.json",
  qwen2_5_vl_text: "a part of qwen2_5_vl",
  qwen2_vl_text: "a part of qwen2_vl",
  qwen3_vl_moe_text: "a part of qwen3_vl_moe",
  qwen3_vl_text: "a part of qwen3_vl"
}

/** Types whose class needs further packages. */
const needing: ReadonlyArray<string> = ["gemma3n"]

/** A config that says nothing of the head: its class decides. */
const withoutTies = ({ tie_word_embeddings: _, ...config }: ModelConfig): ModelConfig =>
  config.text_config === undefined ? config : { ...config, text_config: withoutTies(config.text_config as ModelConfig) }

const degrees = Array.from({ length: 64 }, (_, at) => at + 1)
const limit = 300_000

describe("models of transformers in full size", () => {
  it.live.skipIf(python === undefined)(
    withPython(python, "every model type is known tensor by tensor and cut as engines cut it", "transformers"),
    () =>
      Effect.gen(function* () {
        const made = yield* make(
          Object.fromEntries(modelTypes.map((type) => [type, { model_type: type, ...stated[type] }]))
        )
        assert.deepStrictEqual(
          modelTypes.filter((type) => "absent" in made[type]! && !needing.includes(type)),
          Object.keys(absent)
        )
        const wrong: Array<string> = []
        for (const type of modelTypes) {
          const one = made[type]!
          if ("absent" in one) continue
          const tensors = expanded(one.tensors)
          const { faults, summary } = describedFaults(type, one.config, tensors)
          wrong.push(...faults.slice(0, 5).map((fault) => `${type}: ${fault}`))
          const found = summary?.degrees.tp.filter((degree) => degree <= 64)
          const wanted = degrees.filter(
            (degree) => headsAllow(one.config, tensors, degree) && widthsAllow(one.config, tensors, degree)
          )
          if (String(found) !== String(wanted)) wrong.push(`${type}: degrees ${found}, engines run ${wanted}`)
          // Published models of mistral3 have a head of their own, whatever its class takes.
          if (type === "mistral3") continue
          const unsaid = describedFaults(type, withoutTies(one.config), tensors).faults
          wrong.push(
            ...unsaid.slice(0, 5).map((fault) => `${type}, where its config says nothing of the head: ${fault}`)
          )
        }
        assert.deepStrictEqual(wrong, [])
      }),
    limit
  )

  it.live.skipIf(python === undefined)(
    withPython(python, "the recorded tensors of published models are those that it makes", "transformers"),
    () =>
      Effect.gen(function* () {
        const published = JSON.parse(readFileSync(new URL("published.json", data), "utf8")) as Readonly<
          Record<string, PublishedModel>
        >
        const recorded = JSON.parse(
          gunzipSync(readFileSync(new URL("published-tensors.json.gz", data))).toString("utf8")
        ) as Readonly<Record<string, ReadonlyArray<PatternTensors>>>
        const configs = Object.entries(published).map(([name, { class: like, config }]) => {
          // Its quantizers want a device.
          const { quantization_config: _, ...plain } = config
          return [name, { ...plain, ...(like === undefined ? {} : { model_type: like }) }] as const
        })
        const made = yield* make(Object.fromEntries(configs))
        for (const [name, patterns] of Object.entries(recorded)) {
          const one = made[name]!
          assert.deepStrictEqual(
            "absent" in one ? one.absent : new Set(one.tensors.map(String)),
            new Set(patterns.map(String))
          )
        }
      }),
    limit
  )
})
