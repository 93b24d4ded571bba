// SPDX-License-Identifier: Apache-2.0
/**
 * Variants of known families as published models have them: scales of activations and caches beside codes, scores in place
 * of a head. What ranks hold follows from what the tensors are for, whatever order a file lists them in.
 */
import { assert, describe, it } from "@effect/vitest"
import type { DType } from "@tensorferry/core/base/DType"
import * as Result from "effect/Result"
import { type ModelTensor, parseParallelConfig } from "../../src/layout/ModelLayout.ts"
import { cutModel, structureOf } from "../../src/placement/cutModel.ts"
import { type ModelConfig, parseModelConfig } from "../../src/structure/ModelConfig.ts"

type Named = readonly [name: string, dtype: DType, shape: ReadonlyArray<number>]

const tensorsOf = (tensors: ReadonlyArray<Named>): ReadonlyArray<ModelTensor> =>
  tensors.map(([name, dtype, shape]) => ({ name, dtype, shape }))

const cut = (tensors: ReadonlyArray<Named>, config: ModelConfig, degrees: string) =>
  cutModel({
    tensors: tensorsOf(tensors),
    rules: { rules: [], family: { preset: config.model_type as string, config, placement: {} } },
    config: Result.getOrThrow(parseParallelConfig(degrees))
  })

/** Shapes of a tensor on the ranks that hold it. */
const shapes = (made: ReturnType<typeof cut>, name: string): ReadonlyArray<string> => {
  const layout = Result.getOrThrow(made)
  return layout.ranks.flatMap((rank) =>
    layout.tensorsOf(rank).flatMap((tensor) => (tensor.name === name ? [`${rank}: [${tensor.shape}]`] : []))
  )
}

const layer = "model.layers.0"
const config: ModelConfig = {
  model_type: "llama",
  hidden_size: 64,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  head_dim: 16,
  num_hidden_layers: 1
}

describe("FP8 with one scale for each weight and one for what goes in", () => {
  // As meta-llama FP8 checkpoints of llm-compressor and nvidia's of ModelOpt name them; files list names in order.
  const stated = { ...config, quantization_config: { quant_method: "modelopt", quant_algo: "FP8" } }
  const linear = (name: string, rows: number, columns: number, more: ReadonlyArray<string> = []) =>
    [
      ...["input_scale", ...more].map((suffix): Named => [`${name}.${suffix}`, "float32", []]),
      [`${name}.weight`, "float8_e4m3fn", [rows, columns]],
      [`${name}.weight_scale`, "float32", []]
    ] satisfies ReadonlyArray<Named>
  const tensors: ReadonlyArray<Named> = [
    ...linear(`${layer}.self_attn.q_proj`, 64, 64),
    ...linear(`${layer}.self_attn.k_proj`, 32, 64, ["k_scale"]),
    ...linear(`${layer}.mlp.down_proj`, 64, 96)
  ]

  it("is read whichever of its scales comes first", () => {
    const structure = Result.getOrThrow(
      structureOf(tensorsOf(tensors), { preset: "llama", config: stated, placement: {} })
    )
    assert.deepStrictEqual(structure.unknown, [])
    for (const { kind } of structure.modules) assert.strictEqual(kind.form.name, "fp8 per tensor")
  })

  it("is cut with its scales whole on each rank", () => {
    const made = cut(tensors, stated, "tp=2")
    assert.deepStrictEqual(shapes(made, `${layer}.self_attn.k_proj.weight`), ["0: [16,64]", "1: [16,64]"])
    assert.deepStrictEqual(shapes(made, `${layer}.mlp.down_proj.weight`), ["0: [64,48]", "1: [64,48]"])
    for (const name of ["k_proj.k_scale", "k_proj.weight_scale", "k_proj.input_scale"])
      assert.deepStrictEqual(shapes(made, `${layer}.self_attn.${name}`), ["0: []", "1: []"])
  })
})

describe("scales of a quantized cache", () => {
  const tensors = (length: number): ReadonlyArray<Named> => [
    [`${layer}.self_attn.k_proj.weight`, "bfloat16", [32, 64]],
    [`${layer}.self_attn.k_scale`, "float32", [length]],
    [`${layer}.self_attn.v_scale`, "float32", [length]]
  ]

  it("are one number on each rank", () => {
    assert.deepStrictEqual(shapes(cut(tensors(1), config, "tp=2"), `${layer}.self_attn.v_scale`), ["0: [1]", "1: [1]"])
  })

  it("are refused where there is one for each head, which nothing here says how to cut", () => {
    const made = cut(tensors(2), config, "tp=2")
    assert.isTrue(Result.isFailure(made))
    assert.match(
      String(Result.isFailure(made) && made.failure.message),
      /k_scale.*its shape \[2\] is not that of one number/
    )
  })
})

describe("scores of a classifier or a reward model in place of a head", () => {
  const tensors: ReadonlyArray<Named> = [
    ["model.embed_tokens.weight", "bfloat16", [96, 64]],
    [`${layer}.self_attn.k_proj.weight`, "bfloat16", [32, 64]],
    ["model.layers.1.self_attn.k_proj.weight", "bfloat16", [32, 64]],
    ["model.norm.weight", "bfloat16", [64]],
    ["score.weight", "bfloat16", [1, 64]],
    ["score.bias", "bfloat16", [1]]
  ]

  it.each([true, false])("are whole on the last stage, and the embedding is no head (tied: %s)", (tied) => {
    const made = cut(tensors, { ...config, num_hidden_layers: 2, tie_word_embeddings: tied }, "tp=2,pp=2")
    assert.deepStrictEqual(shapes(made, "score.weight"), ["2: [1,64]", "3: [1,64]"])
    assert.deepStrictEqual(shapes(made, "score.bias"), ["2: [1]", "3: [1]"])
    assert.deepStrictEqual(shapes(made, "lm_head.weight"), [])
    assert.deepStrictEqual(shapes(made, "model.embed_tokens.weight"), ["0: [48,64]", "1: [48,64]"])
  })
})

describe("maps of experts by layer", () => {
  const moe: ModelConfig = { ...config, model_type: "qwen3_moe", num_hidden_layers: 2, num_experts: 2 }
  const tensors: ReadonlyArray<Named> = [0, 1].map((expert) => [
    `${layer}.mlp.experts.${expert}.up_proj.weight`,
    "bfloat16",
    [8, 64]
  ])
  const placed = (experts: Record<string, ReadonlyArray<ReadonlyArray<number>>>) =>
    cutModel({
      tensors: tensorsOf(tensors),
      rules: { rules: [], family: { preset: "qwen3_moe", config: moe, placement: { experts } } },
      config: Result.getOrThrow(parseParallelConfig("tp=2,ep=2"))
    })

  it("place what they name, also where files hold some of the layers", () => {
    const maps = { "0": [[1], [0]], "1": [[0], [1]] }
    assert.deepStrictEqual(shapes(placed(maps), `${layer}.mlp.experts.1.up_proj.weight`), ["0: [8,64]"])
  })

  it.each(["x", "2", "00", "-1", "1.0"])("are refused for a layer that no such model has: %s", (name) => {
    const made = placed({ "0": [[1], [0]], [name]: [[0], [1]] })
    assert.match(
      String(Result.isFailure(made) && made.failure.message),
      new RegExp(`is for layer ${name}, which the model`)
    )
  })
})

describe("a config of lists inside one another", () => {
  const nested = (levels: number, text = ""): string =>
    `{"model_type":"llama","a":"${text}","b":${"[".repeat(levels)}${"]".repeat(levels)}}`

  it("is refused where there are too many of them, whatever its strings hold", () => {
    assert.isTrue(Result.isSuccess(parseModelConfig(nested(200, "[".repeat(1000)))))
    const refused = Result.getOrThrow(Result.flip(parseModelConfig(nested(100_000))))
    assert.strictEqual(refused, "it has more than 256 objects and lists inside one another")
  })
})
