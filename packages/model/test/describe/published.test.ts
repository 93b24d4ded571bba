// SPDX-License-Identifier: Apache-2.0
/**
 * Published models in full size: with the config as it was published every tensor is known, nothing is missing, counts are those
 * of the config, and the degrees that are legal are those that engines run.
 */
import { readFileSync } from "node:fs"
import { gunzipSync } from "node:zlib"
import { assert, describe, it } from "@effect/vitest"
import * as Result from "effect/Result"
import { findFamily } from "../../src/families/families.ts"
import { type ModelTensor, parseParallelConfig } from "../../src/layout/ModelLayout.ts"
import { vllm } from "../../src/names/conventions/vllm.ts"
import { mapModel } from "../../src/names/mapModel.ts"
import { sideOf } from "../../src/names/namedLayouts.ts"
import { structureOf } from "../../src/placement/cutModel.ts"
import type { ModelConfig } from "../../src/structure/ModelConfig.ts"
import {
  describedFaults,
  expanded,
  headsAllow,
  type PatternTensors,
  type PublishedModel,
  widthsAllow
} from "../support/publishedModels.ts"

const data = new URL("../data/models/", import.meta.url)
const published: Readonly<Record<string, PublishedModel>> = JSON.parse(
  readFileSync(new URL("published.json", data), "utf8")
)
const recorded: Readonly<Record<string, ReadonlyArray<PatternTensors>>> = JSON.parse(
  gunzipSync(readFileSync(new URL("published-tensors.json.gz", data))).toString("utf8")
)

const models = Object.entries(published).map(([name, { config }]) => ({
  name,
  config,
  type: config.model_type as string,
  tensors: expanded(recorded[name]!)
}))

const modelOf = (name: string) => models.find((model) => model.name === name)!

const without = (config: ModelConfig, field: string): ModelConfig =>
  Object.fromEntries(Object.entries(config).filter(([name]) => name !== field))

const degrees = Array.from({ length: 64 }, (_, at) => at + 1)

describe("published models", () => {
  it("have tensors each, and no others", () => {
    assert.deepStrictEqual(Object.keys(recorded).sort(), Object.keys(published).sort())
  })

  for (const { name, type, config, tensors } of models) {
    it(`${name} is known tensor by tensor, and is cut by the degrees that its heads and widths bear`, () => {
      const { faults, summary } = describedFaults(type, config, tensors)
      assert.deepStrictEqual(faults, [])
      assert.deepStrictEqual(
        summary!.degrees.tp.filter((degree) => degree <= 64),
        degrees.filter((degree) => headsAllow(config, tensors, degree) && widthsAllow(config, tensors, degree))
      )
    })
  }
})

/** Names as an index has them beside those that transformers saves; each `[suffix, shape]` of a layer that predicts further tokens. */
const further = (layer: number, hidden: number, rows: number): ReadonlyArray<ModelTensor> =>
  (
    [
      ["enorm.weight", [hidden]],
      ["hnorm.weight", [hidden]],
      ["eh_proj.weight", [hidden, 2 * hidden]],
      ["embed_tokens.weight", [rows, hidden]],
      ["shared_head.norm.weight", [hidden]],
      ["shared_head.head.weight", [rows, hidden]]
    ] as const
  ).map(([suffix, shape]) => ({ name: `model.layers.${layer}.${suffix}`, dtype: "bfloat16", shape }))

/** A layer once more, under another number. */
const again = (tensors: ReadonlyArray<ModelTensor>, from: number, to: number): ReadonlyArray<ModelTensor> =>
  tensors.flatMap((tensor) =>
    tensor.name.startsWith(`model.layers.${from}.`)
      ? [{ ...tensor, name: tensor.name.replace(`.${from}.`, `.${to}.`) }]
      : []
  )

/** Projections of layers as fp8 with a scale for each block of 128 x 128. */
const inBlocks = (tensors: ReadonlyArray<ModelTensor>): ReadonlyArray<ModelTensor> =>
  tensors.flatMap((tensor): ReadonlyArray<ModelTensor> => {
    const { name, shape } = tensor
    if (!/(_proj|\.w[123])\.weight$/.test(name) || name.includes("eh_proj")) return [tensor]
    const scales = shape.map((length) => Math.ceil(length / 128))
    return [
      { name, dtype: "float8_e4m3fn", shape },
      { name: `${name}_scale_inv`, dtype: "float32", shape: scales }
    ]
  })

describe("published files that have more than a model's own tensors", () => {
  const kindOfStacks = (type: string, config: ModelConfig, tensors: ReadonlyArray<ModelTensor>) =>
    Result.getOrThrow(structureOf(tensors, { preset: type, config, placement: {} })).stacks.map(
      ({ kind, layers }) => `${kind} ${layers.length}`
    )

  it("DeepSeek-V3: blocks of fp8, and a layer that predicts a further token", () => {
    const { type, config, tensors } = modelOf("DeepSeek-V3")
    const all = inBlocks([...tensors, ...again(tensors, 60, 61), ...further(61, 7168, 129280)])
    assert.deepStrictEqual(describedFaults(type, config, all).faults, [])
    assert.deepStrictEqual(kindOfStacks(type, config, all), ["language 61", "mtp 1"])
  })

  it("GLM-4.5-Air: a layer that predicts a further token", () => {
    const { type, config, tensors } = modelOf("GLM-4.5-Air")
    const all = [...tensors, ...again(tensors, 45, 46), ...further(46, 4096, 151552)]
    assert.deepStrictEqual(describedFaults(type, config, all).faults, [])
    assert.deepStrictEqual(kindOfStacks(type, config, all), ["language 46", "mtp 1"])
  })

  for (const name of ["Kimi-K2-Instruct", "MiniMax-M2"])
    it(`${name}: blocks of fp8`, () => {
      const { type, config, tensors } = modelOf(name)
      const { faults, summary } = describedFaults(type, config, inBlocks(tensors))
      assert.deepStrictEqual(faults, [])
      assert.include(
        summary!.forms.map(({ form }) => form),
        "fp8 block 128x128"
      )
    })

  it("gpt-oss-120b: experts in blocks of 32 numbers of four bits", () => {
    const { type, config, tensors } = modelOf("gpt-oss-120b")
    const all = tensors.flatMap((tensor): ReadonlyArray<ModelTensor> => {
      const { name, shape } = tensor
      if (!name.endsWith("_proj")) return [tensor]
      const [experts, inputs, outputs] = shape as [number, number, number]
      return [
        { name: `${name}_blocks`, dtype: "uint8", shape: [experts, outputs, inputs / 32, 16] },
        { name: `${name}_scales`, dtype: "uint8", shape: [experts, outputs, inputs / 32] }
      ]
    })
    assert.deepStrictEqual(describedFaults(type, config, all).faults, [])
  })
})

describe("a config that does not say whether the head is the embedding", () => {
  // What a family's own code takes then; the files of these have no head.
  for (const name of ["gemma-2b", "LFM2-8B-A1B", "medgemma-27b-it"])
    it(`ties it in ${name}`, () => {
      const { type, config, tensors } = modelOf(name)
      const { faults } = describedFaults(type, without(config, "tie_word_embeddings"), tensors)
      assert.deepStrictEqual(faults, [])
    })

  it("does not tie it in Llama-3.2-3B", () => {
    const { type, config, tensors } = modelOf("Llama-3.2-3B")
    const { faults } = describedFaults(type, without(config, "tie_word_embeddings"), tensors)
    assert.match(faults.join(), /^missing_source \(lm_head\.weight\)/)
  })
})

describe("degrees that an engine refuses", () => {
  const names = [
    "Qwen2.5-7B",
    "Llama-3.2-3B",
    "Qwen3-14B",
    "Phi-3-mini-4k-instruct",
    "GLM-4.5-Air",
    "Nemotron-Nano-9B-v2"
  ]
  for (const name of names)
    it(`are refused in the names of vLLM for ${name}`, { timeout: 60_000 }, () => {
      const { type, config, tensors } = modelOf(name)
      const family = { preset: type, config, placement: {} }
      const structure = Result.getOrThrow(structureOf(tensors, family))
      assert.isTrue(vllm.families?.includes(findFamily(type)!.name))
      const expert = config.moe_intermediate_size
      for (const degree of [1, 2, 3, 4, 5, 7, 8, 12, 16, 20, 28, 32]) {
        const side = { convention: "vllm", config: Result.getOrThrow(parseParallelConfig(`tp=${degree}`)) }
        const mapped = Result.flatMap(sideOf(side, structure, family, 0), (own) => mapModel({ ...own, tensors }))
        const isRun =
          headsAllow(config, tensors, degree) &&
          widthsAllow(config, tensors, degree) &&
          (typeof expert !== "number" || expert % degree === 0)
        assert.strictEqual(Result.isSuccess(mapped), isRun, `tp=${degree}`)
      }
    })
})
