// SPDX-License-Identifier: Apache-2.0
/** Models as transformers saves them fit their configs; with any tensor gone or of another length, that tensor is named. */
import { readFileSync } from "node:fs"
import { gunzipSync } from "node:zlib"
import { assert, describe, it } from "@effect/vitest"
import * as Result from "effect/Result"
import { describeModel } from "../../src/describe/describeModel.ts"
import { findFamily } from "../../src/families/families.ts"
import type { ModelTensor } from "../../src/layout/ModelLayout.ts"
import { conflictingAlias, equalTensors } from "../../src/names/equalTensors.ts"
import { checkInventory } from "../../src/names/inventory/checkInventory.ts"
import type { ModelConfig } from "../../src/structure/ModelConfig.ts"

type Shapes = ReadonlyArray<readonly [name: string, shape: ReadonlyArray<number>]>

interface SmallModel {
  readonly config: ModelConfig
  readonly shapes: Shapes
}

const read = (): ReadonlyMap<string, SmallModel> => {
  const file = new URL("../data/models/small-models.json.gz", import.meta.url)
  const { models } = JSON.parse(gunzipSync(readFileSync(file)).toString("utf8")) as {
    readonly models: {
      readonly [type: string]: {
        readonly config: ModelConfig
        readonly tensors: { readonly [name: string]: ReadonlyArray<number> }
      }
    }
  }
  return new Map(
    Object.entries(models).map(([type, { config, tensors }]) => [type, { config, shapes: Object.entries(tensors) }])
  )
}

const models = read()

const structureOf = (config: ModelConfig, tensors: ReadonlyArray<ModelTensor>) => {
  const modelType = config.model_type as string
  return describeModel({ tensors, config, family: findFamily(modelType)!, modelType })
}

const tensorsOf = (shapes: Shapes): ReadonlyArray<ModelTensor> =>
  shapes.map(([name, shape]) => ({ name, dtype: "bfloat16", shape }))

const outcome = (config: ModelConfig, shapes: Shapes): string => {
  const tensors = tensorsOf(shapes)
  return Result.match(checkInventory(structureOf(config, tensors), tensors), {
    onSuccess: () => "fits",
    onFailure: ({ kind, subject }) => `${kind} ${subject}`
  })
}

/** What is said of a model with one tensor less, or one whose length along a dimension is another. */
const misjudged = ({ config, shapes }: SmallModel): ReadonlyArray<string> => {
  const wrong: Array<string> = []
  const expect = (changed: Shapes, wanted: string): void => {
    const found = outcome(config, changed)
    if (found !== wanted) wrong.push(`${found}, not ${wanted}`)
  }
  for (const [at, [name, shape]] of shapes.entries()) {
    expect(
      shapes.filter((_, other) => other !== at),
      `missing_source ${name}`
    )
    for (const dim of shape.keys()) {
      for (const by of [-1, 1]) {
        const changed = shape.map((length, which) => (which === dim ? length + by : length))
        expect(
          shapes.map((one, other) => (other === at ? [name, changed] : one)),
          `shape_mismatch ${name}`
        )
      }
    }
  }
  return wrong
}

const llama = models.get("llama")!
const experts = models.get("qwen3_moe")!

describe("checkInventory", () => {
  it("finds nothing wrong with any model as it was saved", () => {
    assert.isAbove(models.size, 50)
    assert.deepStrictEqual(
      [...models].flatMap(([type, { config, shapes }]) => {
        const found = outcome(config, shapes)
        return found === "fits" ? [] : [`${type}: ${found}`]
      }),
      []
    )
  })

  for (const type of ["llama", "qwen2", "qwen3_moe", "deepseek_v3", "gpt_oss", "nemotron_h", "qwen3_next", "jamba"]) {
    it(`names the tensor of ${type} that is gone, or of another length`, () => {
      assert.deepStrictEqual(misjudged(models.get(type)!), [])
    })
  }

  it("refuses layers, experts and names that the model does not have", () => {
    const more = ({ config, shapes }: SmallModel, name: string, shape: ReadonlyArray<number>): string =>
      outcome(config, [...shapes, [name, shape]])
    const { hidden_size: hidden } = llama.config as { readonly hidden_size: number }
    const layer = "model.layers.9.input_layernorm.weight"
    assert.strictEqual(more(llama, layer, [hidden]), `unexpected_source ${layer}`)
    const expert = "model.layers.0.mlp.experts.99.up_proj.weight"
    const [, shape] = experts.shapes.find(([name]) => name.endsWith("experts.0.up_proj.weight"))!
    assert.strictEqual(more(experts, expert, shape), `unexpected_source ${expert}`)
    const stray = "model.layers.0.self_attn.extra.weight"
    assert.strictEqual(more(llama, stray, [4]), `unexpected_source ${stray}`)
    for (const name of ["model.norm.extra", "model.layers.0.mlp.up_proj.weight.extra", "lm_head.bias"])
      assert.strictEqual(more(llama, name, [4]), `unexpected_source ${name}`)
    const again = llama.shapes[0]!
    assert.strictEqual(more(llama, ...again), `written_twice ${again[0]}`)
  })

  it("refuses a stack of experts beside the same experts one by one", () => {
    const { hidden_size: hidden, moe_intermediate_size: width } = experts.config as { readonly [field: string]: number }
    const count = experts.shapes.filter(([name]) => /layers\.0\.mlp\.experts\.\d+\.up_proj/.test(name)).length
    const stack = "model.layers.0.mlp.experts.gate_up_proj"
    assert.strictEqual(
      outcome(experts.config, [...experts.shapes, [stack, [count, 2 * width!, hidden!]]]),
      `written_twice ${stack}`
    )
  })

  it("refuses a bias of one of three, and one of three without", () => {
    const bias = "model.layers.0.self_attn.q_proj.bias"
    const [, [rows]] = llama.shapes.find(([name]) => name.endsWith("0.self_attn.q_proj.weight"))!
    assert.strictEqual(outcome(llama.config, [...llama.shapes, [bias, [rows!]]]), `unexpected_source ${bias}`)
    const qwen = models.get("qwen2")!
    assert.strictEqual(
      outcome(
        qwen.config,
        qwen.shapes.filter(([name]) => name !== bias)
      ),
      `missing_source ${bias}`
    )
  })

  it("wants a head unless it is the embedding, which may be stored under either name or both", () => {
    const tied: ModelConfig = { ...llama.config, tie_word_embeddings: true }
    const without = (gone: string): Shapes => llama.shapes.filter(([name]) => name !== gone)
    assert.strictEqual(outcome(llama.config, without("lm_head.weight")), "missing_source lm_head.weight")
    assert.strictEqual(outcome(tied, without("lm_head.weight")), "fits")
    assert.strictEqual(outcome(tied, without("model.embed_tokens.weight")), "fits")
    assert.strictEqual(outcome(tied, llama.shapes), "fits")
    const pairs = equalTensors(structureOf(tied, tensorsOf(llama.shapes)))
    assert.deepStrictEqual(pairs, [{ name: "lm_head.weight", of: "model.embed_tokens.weight" }])
    assert.strictEqual(conflictingAlias(pairs[0]!).kind, "conflicting_alias")
    assert.deepStrictEqual(equalTensors(structureOf(llama.config, tensorsOf(llama.shapes))), [])
    assert.deepStrictEqual(equalTensors(structureOf(tied, tensorsOf(without("lm_head.weight")))), [])
  })

  it("does not check what a config does not state", () => {
    assert.strictEqual(outcome({ model_type: "llama", tie_word_embeddings: false }, llama.shapes), "fits")
  })
})

describe("a config that states more layers than there can be", () => {
  it("ends at the first that is missing", () => {
    const { config, shapes } = models.get("llama")!
    const own: ModelConfig = { ...config, num_hidden_layers: 1_000_000_000 }
    const tensors = tensorsOf(shapes)
    const fault = Result.getOrThrow(Result.flip(checkInventory(structureOf(own, tensors), tensors)))
    assert.strictEqual(fault.kind, "missing_source")
    assert.match(fault.subject, /^model\.layers\.\d\.input_layernorm\.weight$/)
  })
})
