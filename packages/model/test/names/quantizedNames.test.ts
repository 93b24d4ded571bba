// SPDX-License-Identifier: Apache-2.0
/**
 * Quantized checkpoints in the names of systems: scales go where their weights go, block by block. A form that a system has
 * no names for is refused, for joined codes beside scales that stay behind look right.
 *
 * What vLLM and SGLang call scales of experts is that of their layers of experts for FP8 in blocks (`w13_weight_scale_inv`),
 * and `FP8Experts` of transformers 5.17 calls them `gate_up_proj_scale_inv`.
 */
import { assert, describe, it } from "@effect/vitest"
import type { DType } from "@tensorferry/core/base/DType"
import { elementCount, type Shape } from "@tensorferry/core/base/Region"
import * as Result from "effect/Result"
import type { ModelTensor } from "../../src/layout/ModelLayout.ts"
import { placeOf } from "../../src/layout/ParallelConfig.ts"
import { mapModel } from "../../src/names/mapModel.ts"
import { materialize } from "../../src/names/materialize.ts"
import { sideOf } from "../../src/names/namedLayouts.ts"
import { structureOf } from "../../src/placement/cutModel.ts"
import type { ModelConfig } from "../../src/structure/ModelConfig.ts"
import { side } from "../support/smallModels.ts"

type Named = readonly [name: string, dtype: DType, shape: Shape]

interface Read {
  readonly config: ModelConfig
  readonly tensors: ReadonlyArray<Named>
}

const [hidden, heads, vocabulary, block] = [16, 4, 64, 4]

const dense = (name: string, shape: Shape): Named => [name, "bfloat16", shape]

/** Codes with one scale for each block of four rows and four columns, a byte each. */
const blocks = (name: string, rows: number, columns: number): ReadonlyArray<Named> => [
  [`${name}.weight`, "float8_e4m3fn", [rows, columns]],
  [`${name}.weight_scale_inv`, "float8_e8m0fnu", [Math.ceil(rows / block), Math.ceil(columns / block)]]
]

type Linear = typeof blocks

const layer = "model.layers.0"

const model = (
  type: string,
  linear: Linear,
  own: ReadonlyArray<Named>,
  { headDim = 4, kvHeads = 2, stated = {} }: { headDim?: number; kvHeads?: number; stated?: ModelConfig } = {}
): Read => ({
  config: {
    model_type: type,
    hidden_size: hidden,
    num_hidden_layers: 1,
    num_attention_heads: heads,
    num_key_value_heads: kvHeads,
    head_dim: headDim,
    vocab_size: vocabulary,
    quantization_config: { quant_method: "fp8", weight_block_size: [block, block] },
    ...stated
  },
  tensors: [
    dense("model.embed_tokens.weight", [vocabulary, hidden]),
    dense("model.norm.weight", [hidden]),
    dense("lm_head.weight", [vocabulary, hidden]),
    dense(`${layer}.input_layernorm.weight`, [hidden]),
    dense(`${layer}.post_attention_layernorm.weight`, [hidden]),
    ...linear(`${layer}.self_attn.q_proj`, heads * headDim, hidden),
    ...linear(`${layer}.self_attn.k_proj`, kvHeads * headDim, hidden),
    ...linear(`${layer}.self_attn.v_proj`, kvHeads * headDim, hidden),
    ...linear(`${layer}.self_attn.o_proj`, hidden, heads * headDim),
    ...own
  ]
})

const mlp = (linear: Linear, width = 8): ReadonlyArray<Named> => [
  ...linear(`${layer}.mlp.gate_proj`, width, hidden),
  ...linear(`${layer}.mlp.up_proj`, width, hidden),
  ...linear(`${layer}.mlp.down_proj`, hidden, width)
]

const experts = (linear: Linear, width = 8): ReadonlyArray<Named> => [
  dense(`${layer}.self_attn.q_norm.weight`, [4]),
  dense(`${layer}.self_attn.k_norm.weight`, [4]),
  dense(`${layer}.mlp.gate.weight`, [2, hidden]),
  ...[0, 1].flatMap((at) => [
    ...linear(`${layer}.mlp.experts.${at}.gate_proj`, width, hidden),
    ...linear(`${layer}.mlp.experts.${at}.up_proj`, width, hidden),
    ...linear(`${layer}.mlp.experts.${at}.down_proj`, hidden, width)
  ])
]

const moe = (linear: Linear, width = 8): Read =>
  model("qwen3_moe", linear, experts(linear, width), { stated: { num_experts: 2, moe_intermediate_size: width } })

const mapped = ({ config, tensors: named }: Read, to: string) => {
  const tensors = named.map(([name, dtype, shape]): ModelTensor => ({ name, dtype, shape }))
  const family = { preset: config.model_type as string, config, placement: {} }
  return Result.gen(function* () {
    const structure = yield* structureOf(tensors, family)
    const { mapping, placement } = yield* sideOf(side(to), structure, family, 0)
    const model = yield* mapModel({ structure, tensors, mapping, config: side(to).config, placement })
    return { model, ranks: yield* Result.all([0, 1].map((rank) => model.rankAt(placeOf(side(to).config, 0, rank)))) }
  })
}

const refusal = (read: Read, to: string): string => {
  const made = mapped(read, to)
  return Result.isFailure(made) ? made.failure.message : "accepted"
}

/** Bytes that tell where in which tensor they stand. */
const bytesOf = ({ tensors }: Read) => {
  const all = new Map(
    tensors.map(([name, dtype, shape], seed) => {
      const size = dtype === "bfloat16" ? 2 : 1
      return [
        name,
        Uint8Array.from({ length: elementCount(shape) * size }, (_, at) => (at * 7 + seed * 31 + (at >> 5)) & 255)
      ]
    })
  )
  return (name: string): Uint8Array => all.get(name)!
}

/** Rows of a matrix of bytes, and of those some columns. */
const rows = (
  bytes: Uint8Array,
  columns: number,
  from: number,
  to: number,
  left = 0,
  right = columns
): ReadonlyArray<number> =>
  Array.from({ length: to - from }, (_, at) => [
    ...bytes.subarray((from + at) * columns + left, (from + at) * columns + right)
  ]).flat()

/** What a rank makes of a tensor, as numbers. */
const madeOf = (read: Read, to: string, rank: number, name: string) => {
  const { ranks } = Result.getOrThrow(mapped(read, to))
  const tensor = ranks[rank]!.tensors.find((one) => one.name === name)
  assert.isDefined(tensor, name)
  return { shape: tensor!.shape, bytes: [...Result.getOrThrow(materialize(tensor!, bytesOf(read)))] }
}

describe("FP8 in blocks", () => {
  const read = moe(blocks)
  const source = bytesOf(read)
  const expert = (at: number, name: string) => source(`${layer}.mlp.experts.${at}.${name}.weight_scale_inv`)

  it.each([
    ["vllm:tp=2", "routed_experts."],
    ["sglang:tp=2", ""]
  ])("of experts is stacked with its scales, cut inside of gate and up: %s", (to, path) => {
    for (const rank of [0, 1]) {
      const w13 = madeOf(read, to, rank, `${layer}.mlp.experts.${path}w13_weight_scale_inv`)
      assert.deepStrictEqual(w13.shape, [2, 2, 4])
      const wanted = [0, 1].flatMap((at) =>
        ["gate_proj", "up_proj"].flatMap((name) => rows(expert(at, name), 4, rank, rank + 1))
      )
      assert.deepStrictEqual(w13.bytes, wanted)
      const w2 = madeOf(read, to, rank, `${layer}.mlp.experts.${path}w2_weight_scale_inv`)
      assert.deepStrictEqual(w2.shape, [2, 4, 1])
      assert.deepStrictEqual(
        w2.bytes,
        [0, 1].flatMap((at) => rows(expert(at, "down_proj"), 2, 0, 4, rank, rank + 1))
      )
    }
  })

  it("of experts is stacked with its scales in memory of transformers", () => {
    const made = madeOf(read, "transformers:tp=1", 0, `${layer}.mlp.experts.gate_up_proj_scale_inv`)
    assert.deepStrictEqual(made.shape, [2, 4, 4])
    assert.deepStrictEqual(
      made.bytes,
      [0, 1].flatMap((at) => [...expert(at, "gate_proj"), ...expert(at, "up_proj")])
    )
  })

  it("of queries, keys and values is joined where each is a whole number of blocks", () => {
    const made = madeOf(read, "vllm:tp=2", 1, `${layer}.self_attn.qkv_proj.weight_scale_inv`)
    const own = (name: string, from: number, to: number) =>
      rows(source(`${layer}.self_attn.${name}.weight_scale_inv`), 4, from, to)
    assert.deepStrictEqual(made.shape, [4, 4])
    assert.deepStrictEqual(made.bytes, [...own("q_proj", 2, 4), ...own("k_proj", 1, 2), ...own("v_proj", 1, 2)])
  })

  it.each([
    ["keys end inside a block", model("llama", blocks, mlp(blocks), { headDim: 2, kvHeads: 1 }), "vllm:tp=1", /k_proj/],
    [
      "queries end inside a block",
      model("llama", blocks, mlp(blocks), { headDim: 1, kvHeads: 4 }),
      "sglang:tp=2",
      /2 rows of .*q_proj/
    ],
    [
      "gates of an MLP end inside a block",
      model("llama", blocks, mlp(blocks, 6)),
      "vllm:tp=1",
      /6 rows of .*gate_proj/
    ],
    ["gates of an expert end inside a block", moe(blocks, 6), "vllm:tp=1", /6 rows of .*experts\.0\.gate_proj/],
    [
      "gates of an expert in transformers end so",
      moe(blocks, 6),
      "transformers:tp=1",
      /6 rows of .*experts\.0\.gate_proj/
    ]
  ] as const)("is refused where rows of the next would follow within a block: %s", (_, own, to, says) => {
    const message = refusal(own, to)
    assert.match(message, new RegExp(`not_divisible .*scale_inv by rule .*${says.source}.*blocks of 4`))
  })
})

const perTensor =
  (shape: Shape): Linear =>
  (name, out, inputs) => [
    [`${name}.input_scale`, "float32", shape],
    [`${name}.weight`, "float8_e4m3fn", [out, inputs]],
    [`${name}.weight_scale`, "float32", shape]
  ]

const packed: Linear = (name, out, inputs) => [
  [`${name}.weight_packed`, "int32", [out, inputs / 8]],
  [`${name}.weight_scale`, "bfloat16", [out, inputs / 8]],
  [`${name}.weight_shape`, "int64", [2]]
]

const awq: Linear = (name, out, inputs) => [
  [`${name}.qweight`, "int32", [inputs, out / 8]],
  [`${name}.qzeros`, "int32", [inputs / 8, out / 8]],
  [`${name}.scales`, "float16", [inputs / 8, out]]
]

const stated = (quantization_config: ModelConfig): { stated: ModelConfig } => ({ stated: { quantization_config } })
const words = stated({
  quant_method: "compressed-tensors",
  config_groups: { a: { weights: { num_bits: 4, group_size: 8 } } }
})
const awqConfig = { ...stated({ quant_method: "awq", bits: 4, group_size: 8, version: "gemm" }), headDim: 8 }

describe("forms that a system has no names for", () => {
  it.each([
    [
      "vllm:tp=1",
      "scales without a dimension",
      model("llama", perTensor([]), mlp(perTensor([])), stated({ quant_method: "modelopt" }))
    ],
    ["vllm:tp=1", "shapes beside words", model("llama", packed, mlp(packed), words)],
    ["sglang:tp=1", "words along outputs", model("llama", awq, mlp(awq), awqConfig)],
    ["vllm:tp=1", "scales of experts that are no blocks", moe(perTensor([1]))],
    ["transformers:tp=1", "scales of experts that are no blocks", moe(perTensor([1]))],
    ["fsdp2:tp=2", "scales of experts that are no blocks", moe(perTensor([1]))],
    ["megatron:tp=1", "blocks of FP8", model("llama", blocks, mlp(blocks))],
    [
      "vllm:tp=1",
      "scales of a quantized cache",
      {
        ...model("llama", blocks, mlp(blocks)),
        tensors: [...model("llama", blocks, mlp(blocks)).tensors, [`${layer}.self_attn.k_scale`, "float32", [1]]]
      }
    ]
  ] satisfies ReadonlyArray<readonly [string, string, Read]>)("are refused by %s: %s", (to, _, read) => {
    const [name] = to.split(":")
    assert.match(
      refusal(read, to),
      new RegExp(`^unsupported \\(model\\.layers\\.0\\..*How ${name} holds .* is not known here`)
    )
  })

  it("are kept by systems that hold them as the checkpoint does", () => {
    for (const to of ["hf:tp=1", "transformers:tp=1"])
      assert.strictEqual(refusal(model("llama", packed, mlp(packed), words), to), "accepted")
  })

  it("have one scale for each part that is joined, in the order of the parts", () => {
    const read = model("llama", perTensor([1]), mlp(perTensor([1])), stated({ quant_method: "compressed-tensors" }))
    const { ranks } = Result.getOrThrow(mapped(read, "vllm:tp=2"))
    for (const { tensors } of ranks) {
      const shapeOf = (name: string) => tensors.find((one) => one.name === `${layer}.${name}`)?.shape
      assert.deepStrictEqual(shapeOf("self_attn.qkv_proj.weight_scale"), [3])
      assert.deepStrictEqual(shapeOf("mlp.gate_up_proj.input_scale"), [2])
      assert.deepStrictEqual(shapeOf("mlp.down_proj.weight_scale"), [1])
    }
  })
})

describe("latent attention without a latent of queries", () => {
  const read: Read = {
    config: {
      model_type: "deepseek_v2",
      hidden_size: hidden,
      num_hidden_layers: 1,
      num_attention_heads: heads,
      num_key_value_heads: heads,
      q_lora_rank: null,
      kv_lora_rank: 8,
      qk_nope_head_dim: 4,
      qk_rope_head_dim: 2,
      v_head_dim: 4,
      vocab_size: vocabulary,
      first_k_dense_replace: 1,
      intermediate_size: 8
    },
    tensors: [
      dense("model.embed_tokens.weight", [vocabulary, hidden]),
      dense("model.norm.weight", [hidden]),
      dense("lm_head.weight", [vocabulary, hidden]),
      dense(`${layer}.input_layernorm.weight`, [hidden]),
      dense(`${layer}.post_attention_layernorm.weight`, [hidden]),
      dense(`${layer}.self_attn.q_proj.weight`, [heads * 6, hidden]),
      dense(`${layer}.self_attn.kv_a_proj_with_mqa.weight`, [10, hidden]),
      dense(`${layer}.self_attn.kv_a_layernorm.weight`, [8]),
      dense(`${layer}.self_attn.kv_b_proj.weight`, [heads * 8, 8]),
      dense(`${layer}.self_attn.o_proj.weight`, [hidden, heads * 4]),
      ...mlp((name, rows, columns) => [dense(`${name}.weight`, [rows, columns])])
    ]
  }

  it.each(["vllm:tp=2", "sglang:tp=2"])("has queries and the latent of keys apart in %s", (to) => {
    const { ranks } = Result.getOrThrow(mapped(read, to))
    for (const { tensors } of ranks) {
      const shapeOf = (name: string) => tensors.find((one) => one.name === `${layer}.self_attn.${name}.weight`)?.shape
      assert.deepStrictEqual(shapeOf("q_proj"), [12, hidden])
      assert.deepStrictEqual(shapeOf("kv_a_proj_with_mqa"), [10, hidden])
      assert.deepStrictEqual(shapeOf("kv_b_proj"), [16, 8])
      assert.isFalse(tensors.some(({ name }) => name.includes("fused_qkv")))
    }
  })
})

describe("rows of a padded vocabulary that ranks do not divide", () => {
  const plain: Linear = (name, rows, columns) => [dense(`${name}.weight`, [rows, columns])]
  const read = model("llama", plain, mlp(plain, 12), {
    kvHeads: 1,
    stated: { num_attention_heads: 3, quantization_config: null }
  })
  const three: Read = {
    ...read,
    tensors: read.tensors.map(([name, dtype, shape]) =>
      /q_proj/.test(name)
        ? [name, dtype, [12, hidden]]
        : /o_proj/.test(name)
          ? [name, dtype, [hidden, 12]]
          : [name, dtype, shape]
    )
  }

  it.each(["vllm", "sglang"])("are refused by %s, as it refuses them itself", (name) => {
    assert.match(
      refusal(three, `${name}:tp=3`),
      /^not_divisible \(model\.embed_tokens\.weight\): tp=3 does not divide 64/
    )
    assert.strictEqual(refusal(three, `${name}:tp=1`), "accepted")
  })
})
