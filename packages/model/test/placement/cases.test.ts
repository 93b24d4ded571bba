// SPDX-License-Identifier: Apache-2.0
/**
 * Public reports of shards that were wrong and passed for right, each as a model in miniature: what ranks hold is held
 * against the rows and columns that the report says, or the cut is refused for the reason that it states.
 */
import { assert, describe, it } from "@effect/vitest"
import type { DType } from "@tensorferry/core/base/DType"
import * as Result from "effect/Result"
import { unknownModel } from "../../src/describe/unknownTensors.ts"
import { type ModelLayout, type ModelTensor, parseParallelConfig } from "../../src/layout/ModelLayout.ts"
import { cutModel } from "../../src/placement/cutModel.ts"
import type { Placement } from "../../src/placement/Placement.ts"
import type { ModelConfig } from "../../src/structure/ModelConfig.ts"

type Named = readonly [name: string, dtype: DType, shape: ReadonlyArray<number>]

interface Case {
  readonly tensors: ReadonlyArray<Named>
  readonly config: ModelConfig
  readonly degrees: string
  readonly placement?: Placement
}

const tensorsOf = (tensors: ReadonlyArray<Named>): ReadonlyArray<ModelTensor> =>
  tensors.map(([name, dtype, shape]) => ({ name, dtype, shape }))

const cut = ({ tensors, config, degrees, placement = {} }: Case) =>
  cutModel({
    tensors: tensorsOf(tensors),
    rules: { rules: [], family: { preset: config.model_type as string, config, placement } },
    config: Result.getOrThrow(parseParallelConfig(degrees))
  })

const laidOut = (one: Case): ModelLayout => Result.getOrThrow(cut(one))

const refusal = (one: Case): string => {
  const made = cut(one)
  return Result.isFailure(made) ? made.failure.message : "accepted"
}

/** What each rank holds of a tensor along a dimension. */
const held = (layout: ModelLayout, name: string, dim: number): ReadonlyArray<ReadonlyArray<ReadonlyArray<number>>> =>
  layout.ranks.map((rank) =>
    layout
      .tensorsOf(rank)
      .filter((tensor) => tensor.name === name)
      .flatMap(({ pieces }) => pieces.map(({ global }) => global[dim]!))
  )

const names = (layout: ModelLayout, rank: number): ReadonlyArray<string> =>
  layout.tensorsOf(rank).map(({ name }) => name)

const layer = "model.layers.0"

describe("blocks of fp8 (vllm#17569)", () => {
  const config: ModelConfig = {
    model_type: "qwen3_moe",
    hidden_size: 256,
    quantization_config: { quant_method: "fp8", weight_block_size: [128, 128] }
  }
  const experts = (width: number): ReadonlyArray<Named> =>
    [0, 1].flatMap((expert): ReadonlyArray<Named> => {
      const own = `${layer}.mlp.experts.${expert}`
      return [
        [`${own}.gate_proj.weight`, "float8_e4m3fn", [width, 256]],
        [`${own}.gate_proj.weight_scale_inv`, "float32", [width / 128, 2]],
        [`${own}.down_proj.weight`, "float8_e4m3fn", [256, width]],
        [`${own}.down_proj.weight_scale_inv`, "float32", [2, width / 128]]
      ]
    })

  it("are not parted: 3 blocks at tp=2 are refused, with the degrees and the nearest places that fit", () => {
    const message = refusal({ tensors: experts(384), config, degrees: "tp=2" })
    assert.match(message, /a cut at 192 would part 128 that belong together \(nearest: 128, 256\)/)
    assert.match(message, /Choose tp of 1, 3\./)
    assert.match(refusal({ tensors: experts(384), config, degrees: "tp=2,ep=1,etp=2" }), /etp=2 .* etp of 1, 3\./)
  })

  it("go with their rows and columns where the cut falls between them", () => {
    const layout = laidOut({ tensors: experts(384), config, degrees: "tp=3" })
    const thirds = (size: number) => [0, 1, 2].map((at) => [[at * size, (at + 1) * size]])
    const own = `${layer}.mlp.experts.1`
    assert.deepStrictEqual(held(layout, `${own}.gate_proj.weight`, 0), thirds(128))
    assert.deepStrictEqual(held(layout, `${own}.gate_proj.weight_scale_inv`, 0), thirds(1))
    assert.deepStrictEqual(held(layout, `${own}.down_proj.weight`, 1), thirds(128))
    assert.deepStrictEqual(held(layout, `${own}.down_proj.weight_scale_inv`, 1), thirds(1))
  })
})

describe("scales that are no grid of the stated blocks", () => {
  it.each([
    ["smaller blocks", [6, 4]],
    ["blocks of rows", [384, 2]],
    ["blocks of columns", [3, 256]],
    ["one block too many", [4, 2]]
  ] as const)("are refused: %s", (_, scales) => {
    const message = refusal({
      tensors: [
        [`${layer}.mlp.gate_proj.weight`, "float8_e4m3fn", [384, 256]],
        [`${layer}.mlp.gate_proj.weight_scale_inv`, "float32", scales]
      ],
      config: {
        model_type: "qwen3",
        hidden_size: 256,
        quantization_config: { quant_method: "fp8", weight_block_size: [128, 128] }
      },
      degrees: "tp=1"
    })
    assert.match(message, /weight_scale_inv of float32\[\d+,\d+\] (is no grid of blocks of 128x128|does not fit)/)
  })

  it("are none where a scale is of the whole weight", () => {
    const layout = laidOut({
      tensors: [
        [`${layer}.mlp.gate_proj.weight`, "float8_e4m3fn", [384, 256]],
        [`${layer}.mlp.gate_proj.weight_scale`, "float32", []]
      ],
      config: {
        model_type: "qwen3",
        hidden_size: 256,
        quantization_config: { quant_method: "fp8", weight_block_size: [128, 128] }
      },
      degrees: "tp=3"
    })
    assert.lengthOf(held(layout, `${layer}.mlp.gate_proj.weight_scale`, 0), 3)
  })
})

describe("words of four-bit integers (lmdeploy#4911)", () => {
  const config: ModelConfig = {
    model_type: "llama",
    hidden_size: 128,
    num_attention_heads: 4,
    num_key_value_heads: 2,
    head_dim: 32,
    quantization_config: { quant_method: "awq", bits: 4, group_size: 32, version: "gemm" }
  }
  const awq = (name: string, inputs: number, outputs: number): ReadonlyArray<Named> => [
    [`${name}.qweight`, "int32", [inputs, outputs / 8]],
    [`${name}.qzeros`, "int32", [inputs / 32, outputs / 8]],
    [`${name}.scales`, "float16", [inputs / 32, outputs]]
  ]
  const tensors = [
    ...awq(`${layer}.self_attn.q_proj`, 128, 128),
    ...awq(`${layer}.self_attn.k_proj`, 128, 64),
    ...awq(`${layer}.self_attn.o_proj`, 128, 128),
    ...awq(`${layer}.mlp.down_proj`, 192, 128)
  ]

  it("of AWQ are cut along outputs behind a column cut and along inputs behind a row cut", () => {
    const layout = laidOut({ tensors, config, degrees: "tp=2" })
    const halves = (length: number) => [[[0, length / 2]], [[length / 2, length]]]
    for (const [part, length] of [
      ["qweight", 16],
      ["qzeros", 16],
      ["scales", 128]
    ] as const)
      assert.deepStrictEqual(held(layout, `${layer}.self_attn.q_proj.${part}`, 1), halves(length), part)
    for (const [part, length] of [
      ["qweight", 192],
      ["qzeros", 6],
      ["scales", 6]
    ] as const)
      assert.deepStrictEqual(held(layout, `${layer}.mlp.down_proj.${part}`, 0), halves(length), part)
    assert.deepStrictEqual(held(layout, `${layer}.mlp.down_proj.qweight`, 1), [[[0, 16]], [[0, 16]]])
  })

  it("are refused where a cut would part a group", () => {
    assert.match(refusal({ tensors, config, degrees: "tp=4" }), /a cut at 48 would part 32 .*Choose tp of 1, 2\./)
  })

  it("of GPTQ are cut the other way round, and not along inputs in an order of their own", () => {
    const gptq = (name: string, inputs: number, outputs: number): ReadonlyArray<Named> => [
      [`${name}.qweight`, "int32", [inputs / 8, outputs]],
      [`${name}.qzeros`, "int32", [inputs / 32, outputs / 8]],
      [`${name}.scales`, "float16", [inputs / 32, outputs]],
      [`${name}.g_idx`, "int32", [inputs]]
    ]
    const one: Case = {
      tensors: [...gptq(`${layer}.self_attn.q_proj`, 128, 128), ...gptq(`${layer}.mlp.down_proj`, 192, 128)],
      config: { ...config, quantization_config: { quant_method: "gptq", bits: 4, group_size: 32, desc_act: false } },
      degrees: "tp=2"
    }
    const layout = laidOut(one)
    assert.deepStrictEqual(held(layout, `${layer}.self_attn.q_proj.qweight`, 1), [[[0, 64]], [[64, 128]]])
    assert.deepStrictEqual(held(layout, `${layer}.self_attn.q_proj.qzeros`, 1), [[[0, 8]], [[8, 16]]])
    assert.deepStrictEqual(held(layout, `${layer}.mlp.down_proj.qweight`, 0), [[[0, 12]], [[12, 24]]])
    assert.deepStrictEqual(held(layout, `${layer}.mlp.down_proj.g_idx`, 0), [[[0, 96]], [[96, 192]]])
    const reordered = { quant_method: "gptq", bits: 4, group_size: 32, desc_act: true }
    assert.match(refusal({ ...one, config: { ...config, quantization_config: reordered } }), /order of their own/)
  })

  it("of which the last is filled in part have the length that the config states, not that of whole words", () => {
    const packed = (name: string, inputs: number, outputs: number): ReadonlyArray<Named> => [
      [`${name}.weight_packed`, "int32", [outputs, Math.ceil(inputs / 8)]],
      [`${name}.weight_scale`, "bfloat16", [outputs, 1]],
      [`${name}.weight_shape`, "int64", [2]]
    ]
    const one: Case = {
      tensors: [...packed(`${layer}.mlp.gate_proj`, 128, 124), ...packed(`${layer}.mlp.down_proj`, 124, 128)],
      config: {
        ...{ model_type: "llama", hidden_size: 128, intermediate_size: 124 },
        quantization_config: { quant_method: "compressed-tensors", config_groups: { g: { weights: { num_bits: 4 } } } }
      },
      degrees: "tp=2"
    }
    // Gate and up would be cut at 62, and down at 64 of its 128 places.
    assert.match(refusal(one), /a cut at 62 would part 8 that belong together \(nearest: 56, 64\)/)
    const { intermediate_size: _, ...unstated } = one.config
    for (const config of [unstated as ModelConfig, { ...one.config, intermediate_size: 128 }])
      assert.match(refusal({ ...one, config }), /down_proj.*it has 128 units of width, and .*gate_proj has 124/)
    assert.strictEqual(refusal({ ...one, degrees: "dp=2" }), "accepted")
  })

  it("of layers that differ in their bits are cut by the bits that each has", () => {
    const groups = [4, 8].map((bits) => [`g${bits}`, { weights: { num_bits: bits, group_size: 32 } }])
    const mixed = { quant_method: "compressed-tensors", config_groups: Object.fromEntries(groups) }
    const packed = (scales: number): ReadonlyArray<Named> => [
      [`${layer}.mlp.down_proj.weight_packed`, "int32", [64, 32]],
      [`${layer}.mlp.down_proj.weight_scale`, "bfloat16", [64, scales]]
    ]
    const { intermediate_size: _, ...own }: ModelConfig = { ...config, quantization_config: mixed }
    // 128 inputs of 8 bits: the first group of the config has 4.
    for (const [scales, stated] of [
      [4, {}],
      [4, { intermediate_size: 128 }],
      [1, { intermediate_size: 128 }]
    ] as const) {
      const layout = laidOut({ tensors: packed(scales), config: { ...own, ...stated }, degrees: "tp=2" })
      const words = held(layout, `${layer}.mlp.down_proj.weight_packed`, 1)
      assert.deepStrictEqual(words, [[[0, 16]], [[16, 32]]])
    }
    assert.match(refusal({ tensors: packed(1), config: own, degrees: "tp=2" }), /4 and 8 bits, and nothing says which/)
  })

  it.each([
    ["qweight", "qzeros", { qweight: ["int32", [8, 128]], scales: ["float16", [2, 128]] }],
    ["weight_packed", "weight_scale", { weight_packed: ["int32", [128, 8]], weight_shape: ["int64", [2]] }],
    ["nvfp4", "weight_scale_2", { weight: ["uint8", [128, 32]], weight_scale: ["float8_e4m3fn", [128, 4]] }],
    ["float8_e4m3fn", "its scale", { weight: ["float8_e4m3fn", [128, 64]], input_scale: ["float32", []] }]
  ] as const)("of %s are refused where %s is missing", (_, companion, parts) => {
    const tensors = Object.entries(parts).map(
      ([suffix, [dtype, shape]]): Named => [`${layer}.mlp.up_proj.${suffix}`, dtype as DType, shape]
    )
    assert.include(refusal({ tensors, config, degrees: "tp=2" }), companion)
  })

  it("of mxfp4 are refused where the scales of their blocks are missing", () => {
    const blocks: Named = [`${layer}.mlp.experts.down_proj_blocks`, "uint8", [4, 64, 2, 16]]
    const one: Case = { tensors: [blocks], config: { model_type: "gpt_oss", hidden_size: 64 }, degrees: "tp=2" }
    assert.match(refusal(one), /blocks of mxfp4 have no scales/)
  })

  it("of no form that is known are refused by name, not cut as if they were the weight", () => {
    const message = refusal({
      tensors: [[`${layer}.self_attn.q_proj.qweight_codes`, "int32", [128, 16]]],
      config,
      degrees: "tp=2"
    })
    assert.match(message, /model_type "llama", quant_method "awq"/)
    assert.match(message, /qweight_codes/)
    assert.isAtMost(message.length, 1600)
  })

  it("of bitsandbytes are whole or refused, since the flattened weight is packed", () => {
    const flat: Case = {
      tensors: [
        [`${layer}.self_attn.q_proj.weight`, "uint8", [8192, 1]],
        [`${layer}.self_attn.q_proj.weight.absmax`, "uint8", [256]],
        [`${layer}.self_attn.q_proj.weight.quant_state.bitsandbytes__nf4`, "uint8", [80]]
      ],
      config,
      degrees: "tp=2"
    }
    assert.match(refusal(flat), /bitsandbytes packs the flattened weight/)
    assert.strictEqual(refusal({ ...flat, degrees: "dp=2" }), "accepted")
  })
})

describe("adapters (peft#3079)", () => {
  const config: ModelConfig = { model_type: "llama", hidden_size: 64, num_attention_heads: 4, num_key_value_heads: 4 }
  const own = (module: string, part: string) => `base_model.model.${layer}.${module}.${part}`

  it("are cut along the outputs or the inputs of their base, never along the rank", () => {
    const layout = laidOut({
      tensors: [
        [own("self_attn.q_proj", "lora_A.weight"), "float32", [8, 64]],
        [own("self_attn.q_proj", "lora_B.weight"), "float32", [64, 8]],
        [own("self_attn.o_proj", "lora_A.weight"), "float32", [8, 64]],
        [own("self_attn.o_proj", "lora_B.weight"), "float32", [64, 8]],
        [own("self_attn.q_proj", "lora_magnitude_vector"), "float32", [64]]
      ],
      config,
      degrees: "tp=2"
    })
    const [whole, halves] = [
      [[[0, 64]], [[0, 64]]],
      [[[0, 32]], [[32, 64]]]
    ]
    assert.deepStrictEqual(held(layout, own("self_attn.q_proj", "lora_A.weight"), 1), whole)
    assert.deepStrictEqual(held(layout, own("self_attn.q_proj", "lora_A.weight"), 0), [[[0, 8]], [[0, 8]]])
    assert.deepStrictEqual(held(layout, own("self_attn.q_proj", "lora_B.weight"), 0), halves)
    assert.deepStrictEqual(held(layout, own("self_attn.o_proj", "lora_A.weight"), 1), halves)
    assert.deepStrictEqual(held(layout, own("self_attn.o_proj", "lora_B.weight"), 0), whole)
    assert.deepStrictEqual(held(layout, own("self_attn.q_proj", "lora_magnitude_vector"), 0), halves)
  })
})

describe("heads that ranks do not divide (vllm#11797)", () => {
  it.each([
    { heads: 40, kv: 10, degrees: "tp=4", says: /10 key-value heads do not divide by 4/ },
    { heads: 28, kv: 4, degrees: "tp=8", says: /28 heads do not divide by 8/ },
    { heads: 9, kv: 3, degrees: "tp=2", says: /9 heads do not divide by 2/ },
    { heads: 14, kv: 2, degrees: "tp=4", says: /14 heads do not divide by 4/ }
  ])("$heads of $kv groups at $degrees are refused for the group as one", ({ heads, kv, degrees, says }) => {
    const config = {
      model_type: "qwen2",
      hidden_size: 8,
      num_attention_heads: heads,
      num_key_value_heads: kv,
      head_dim: 8
    }
    const tensors: ReadonlyArray<Named> = [
      [`${layer}.self_attn.q_proj.weight`, "bfloat16", [heads * 8, 8]],
      [`${layer}.self_attn.k_proj.weight`, "bfloat16", [kv * 8, 8]],
      [`${layer}.self_attn.v_proj.bias`, "bfloat16", [kv * 8]],
      [`${layer}.self_attn.o_proj.weight`, "bfloat16", [8, heads * 8]]
    ]
    assert.match(refusal({ tensors, config, degrees }), says)
  })
})

describe("counts of a config that are none", () => {
  const tensors: ReadonlyArray<Named> = [[`${layer}.self_attn.q_proj.weight`, "bfloat16", [48, 8]]]
  const config = { model_type: "llama", hidden_size: 8, num_attention_heads: 6, num_key_value_heads: 3, head_dim: 8 }
  const cutBy = (more: object, degrees = "tp=4") => refusal({ tensors, config: { ...config, ...more }, degrees })

  it("are refused by name: without heads, rows would be cut inside of one", () => {
    assert.match(cutBy({ num_attention_heads: "6" }), /num_attention_heads is "6"/)
    assert.match(cutBy({ num_attention_heads: 1e15 }), /num_attention_heads is 1000000000000000/)
    assert.match(cutBy({ num_key_value_heads: 3.5 }), /num_key_value_heads is 3\.5/)
    assert.match(cutBy({ hidden_size: -8 }), /hidden_size is -8/)
    assert.match(cutBy({}), /6 heads do not divide by 4/)
  })

  it("say nothing where they are zero, null or a list", () => {
    for (const more of [{ num_experts: 0 }, { n_routed_experts: null }, { num_experts: [1, 2] }])
      assert.strictEqual(cutBy(more, "tp=3"), "accepted")
  })
})

describe("two stacks of layers (Automodel#2524)", () => {
  const blocks = (prefix: string, count: number, suffix: string): ReadonlyArray<Named> =>
    Array.from({ length: count }, (_, at): Named => [`${prefix}.${at}.${suffix}`, "bfloat16", [8]])
  const one: Case = {
    tensors: [
      ["language_model.model.embed_tokens.weight", "bfloat16", [16, 8]],
      ...blocks("vision_tower.vision_model.encoder.layers", 12, "layer_norm1.weight"),
      ...blocks("language_model.model.layers", 8, "input_layernorm.weight"),
      ["language_model.model.norm.weight", "bfloat16", [8]]
    ],
    config: { model_type: "gemma3", text_config: { hidden_size: 8, num_hidden_layers: 8 } },
    degrees: "pp=2"
  }

  it("are placed each by itself, the last norm and the tied head on the last stage", () => {
    const layout = laidOut(one)
    const [first, last] = [names(layout, 0), names(layout, 1)]
    assert.strictEqual(first.filter((name) => name.startsWith("vision_tower")).length, 12)
    assert.deepStrictEqual(
      last.filter((name) => name.includes("layers")),
      [4, 5, 6, 7].map((at) => `language_model.model.layers.${at}.input_layernorm.weight`)
    )
    assert.includeMembers([...last], ["language_model.model.norm.weight", "language_model.lm_head.weight"])
    assert.notInclude(first, "language_model.model.norm.weight")
  })
})

describe("a model of an unknown type", () => {
  const tensors = Array.from(
    { length: 139_583 },
    (_, at): ModelTensor => ({
      name: `tower.blocks.${at}.mixing.weight`,
      dtype: "bfloat16",
      shape: [4]
    })
  )

  it("is refused in a few lines: the type, the count, five names, what to write", () => {
    const { message } = unknownModel(tensors, { model_type: "novel", quantization_config: { quant_method: "fp8" } })
    assert.isAtMost(message.length, 1600)
    for (const part of [/model_type "novel", quant_method "fp8"/, /139583/, /blocks\.4\./, /139578 more/, /rules:/])
      assert.match(message, part)
    assert.notMatch(message, /blocks\.5\./)
  })

  it("is offered the family whose names it has, by the option that takes it", () => {
    const twin = tensorsOf([
      ["model.embed_tokens.weight", "bfloat16", [16, 8]],
      [`${layer}.self_attn.kv_a_proj_with_mqa.weight`, "bfloat16", [8, 8]],
      [`${layer}.mlp.experts.0.gate_proj.weight`, "bfloat16", [8, 8]]
    ])
    assert.match(unknownModel(twin, { model_type: "kimi_k9" }).message, /pass --preset deepseek_v3/)
  })
})

describe("experts stored input first (transformers#43956)", () => {
  const stacks = (gateUp: ReadonlyArray<number>, down: ReadonlyArray<number>): ReadonlyArray<Named> => [
    ["model.embed_tokens.weight", "bfloat16", [32, 16]],
    [`${layer}.mlp.experts.gate_up_proj`, "bfloat16", gateUp],
    [`${layer}.mlp.experts.down_proj`, "bfloat16", down]
  ]
  const config: ModelConfig = { model_type: "qwen3_moe" }
  const gateUp = (width: number) => [
    [
      [0, width / 2],
      [width, width * 1.5]
    ],
    [
      [width / 2, width],
      [width * 1.5, 2 * width]
    ]
  ]

  it("are told by the length of the hidden state, and cut along their width in either order", () => {
    const plain = laidOut({ tensors: stacks([2, 24, 16], [2, 16, 12]), config, degrees: "tp=2" })
    assert.deepStrictEqual(held(plain, `${layer}.mlp.experts.gate_up_proj`, 1), gateUp(12))
    const swapped = laidOut({ tensors: stacks([2, 16, 24], [2, 12, 16]), config, degrees: "tp=2" })
    assert.deepStrictEqual(held(swapped, `${layer}.mlp.experts.gate_up_proj`, 2), gateUp(12))
    assert.deepStrictEqual(held(swapped, `${layer}.mlp.experts.down_proj`, 1), [[[0, 6]], [[6, 12]]])
    // Twice the width is the hidden size: the other stack tells.
    const square = laidOut({ tensors: stacks([2, 16, 16], [2, 8, 16]), config, degrees: "tp=2" })
    assert.deepStrictEqual(held(square, `${layer}.mlp.experts.gate_up_proj`, 2), gateUp(8))
  })

  it("are refused where no dimension is the hidden state", () => {
    assert.match(
      refusal({ tensors: stacks([2, 24, 20], [2, 20, 12]), config, degrees: "tp=2" }),
      /no hidden size of 16/
    )
  })
})

describe("groups of a mixer (vllm#55091)", () => {
  const [heads, size, state] = [8, 4, 3]
  const mixer = (groups: number): Case => {
    const [inner, bc] = [heads * size, groups * state]
    return {
      tensors: [
        [`${layer}.mamba.in_proj.weight`, "bfloat16", [2 * inner + 2 * bc + heads, 16]],
        [`${layer}.mamba.conv1d.weight`, "bfloat16", [inner + 2 * bc, 1, 4]],
        [`${layer}.mamba.A_log`, "float32", [heads]]
      ],
      config: {
        model_type: "bamba",
        hidden_size: 16,
        mamba_n_heads: heads,
        mamba_d_head: size,
        mamba_n_groups: groups,
        mamba_d_state: state
      },
      degrees: "tp=4"
    }
  }

  it.each([{ groups: 1 }, { groups: 2 }, { groups: 4 }])(
    "are whole on every rank whose heads use them, $groups at tp=4",
    ({ groups }) => {
      const layout = laidOut(mixer(groups))
      const inner = heads * size
      for (const rank of layout.ranks) {
        const rows = held(layout, `${layer}.mamba.in_proj.weight`, 0)[rank]!
        const elements = new Set(
          rows.flatMap(([from, to]) => Array.from({ length: to! - from! }, (_, at) => from! + at))
        )
        // Two of eight heads; the groups that they use, by the heads of a group.
        const own = [2 * rank, 2 * rank + 1]
        const used = new Set(own.map((head) => Math.floor((head * groups) / heads)))
        const wanted = new Set<number>()
        for (const head of own) {
          for (let at = 0; at < size; at++) wanted.add(head * size + at).add(inner + head * size + at)
          wanted.add(2 * inner + 2 * groups * state + head)
        }
        for (const group of used) {
          for (let at = 0; at < state; at++)
            wanted.add(2 * inner + group * state + at).add(2 * inner + (groups + group) * state + at)
        }
        assert.deepStrictEqual(
          [...elements].sort((a, b) => a - b),
          [...wanted].sort((a, b) => a - b)
        )
      }
    }
  )

  it("are refused where a rank would need a part of one", () => {
    assert.match(refusal({ ...mixer(3), degrees: "tp=4" }), /3 mixer groups do not divide by 4/)
  })
})

describe("where experts lie (vllm#23745)", () => {
  const tensors = Array.from(
    { length: 6 },
    (_, at): Named => [`${layer}.mlp.experts.${at}.up_proj.weight`, "bfloat16", [4, 4]]
  )
  const config: ModelConfig = { model_type: "qwen3_moe" }
  const placed = (experts?: Placement["experts"]): ReadonlyArray<string> => {
    const layout = laidOut({
      tensors,
      config,
      degrees: "dp=4,ep=4",
      ...(experts === undefined ? {} : { placement: { experts } })
    })
    return layout.ranks.map((rank) =>
      names(layout, rank)
        .map((name) => name.split(".")[5])
        .join("")
    )
  }

  it("is in runs with the remainder first, or as stated", () => {
    assert.deepStrictEqual(placed(), ["01", "23", "4", "5"])
    assert.deepStrictEqual(placed("linear"), ["01", "23", "4", "5"])
    assert.deepStrictEqual(placed("ceil"), ["01", "23", "45", ""])
    assert.deepStrictEqual(placed("round_robin"), ["04", "15", "2", "3"])
    assert.deepStrictEqual(
      placed([
        [0, 1],
        [2, 3],
        [4, 5],
        [5, 0]
      ]),
      ["01", "23", "45", "05"]
    )
    assert.deepStrictEqual(placed({ "0": [[5], [4], [3], [0, 1, 2]] }), ["5", "4", "3", "012"])
  })

  it("is refused where a map leaves an expert out or does not fit", () => {
    const refused = (experts: Placement["experts"]) =>
      refusal({ tensors, config, degrees: "dp=4,ep=4", placement: { experts: experts! } })
    assert.match(refused([[0, 1], [2, 3], [4], [0]]), /expert 5 on no rank/)
    assert.match(
      refused([
        [0, 1, 2],
        [3, 4, 5]
      ]),
      /2 ranks, ep is 4/
    )
    assert.match(refused([[0, 1], [2, 3], [4, 5], [6]]), /expert 6, the layer has 6/)
    assert.match(
      refused([
        [0, 1],
        [2, 3],
        [4, 5],
        [5, 5]
      ]),
      /twice on rank 3/
    )
  })

  it("is counted per layer, and stacks are taken apart expert by expert", () => {
    const layout = laidOut({
      tensors: [
        [`${layer}.mlp.experts.gate_up_proj`, "bfloat16", [6, 8, 4]],
        ["model.layers.1.mlp.experts.gate_up_proj", "bfloat16", [2, 8, 4]],
        ["model.embed_tokens.weight", "bfloat16", [16, 4]]
      ],
      config,
      degrees: "dp=2,ep=2",
      placement: { experts: "round_robin" }
    })
    assert.deepStrictEqual(held(layout, `${layer}.mlp.experts.gate_up_proj`, 0), [
      [
        [0, 1],
        [2, 3],
        [4, 5]
      ],
      [
        [1, 2],
        [3, 4],
        [5, 6]
      ]
    ])
    assert.deepStrictEqual(layout.tensorsOf(1)[0]!.shape, [3, 8, 4])
    assert.deepStrictEqual(held(layout, "model.layers.1.mlp.experts.gate_up_proj", 0), [[[0, 1]], [[1, 2]]])
  })
})

describe("which layers a stage holds (Megatron-LM#53)", () => {
  const one: Case = {
    tensors: [
      ["model.embed_tokens.weight", "bfloat16", [16, 8]],
      ...Array.from({ length: 31 }, (_, at): Named => [`model.layers.${at}.input_layernorm.weight`, "bfloat16", [8]]),
      ["model.layers.30.eh_proj.weight", "bfloat16", [8, 16]],
      ["model.norm.weight", "bfloat16", [8]],
      ["lm_head.weight", "bfloat16", [16, 8]]
    ],
    config: { model_type: "deepseek_v3", num_hidden_layers: 30 },
    degrees: "pp=4"
  }
  const counts = (placement: Placement): ReadonlyArray<number> => {
    const layout = laidOut({ ...one, placement })
    assert.includeMembers(
      [...names(layout, 3)],
      ["model.layers.30.eh_proj.weight", "model.norm.weight", "lm_head.weight"]
    )
    return layout.ranks.map((rank) => names(layout, rank).filter((name) => /layers\.[12]?\d\.input/.test(name)).length)
  }

  it("is even with the remainder where it is asked for, or as stated; layers beyond the config's count are last", () => {
    assert.deepStrictEqual(counts({}), [8, 8, 7, 7])
    assert.deepStrictEqual(counts({ stages: "last" }), [7, 7, 8, 8])
    assert.deepStrictEqual(counts({ stages: "middle" }), [7, 8, 8, 7])
    assert.deepStrictEqual(counts({ stages: [6, 8, 9, 7] }), [6, 8, 9, 7])
  })

  it("is several runs per stage with virtual stages, and any list of layers that holds each once", () => {
    const layers = (placement: Placement, rank: number) =>
      names(laidOut({ ...one, placement }), rank).flatMap((name) => /layers\.(\d+)\.input/.exec(name)?.[1] ?? [])
    assert.deepStrictEqual(
      layers({ virtual: 2, stages: [4, 4, 4, 3, 4, 4, 4, 3] }, 0),
      "0 1 2 3 15 16 17 18".split(" ")
    )
    const lists = [[29], [0, 1], [2, 3], Array.from({ length: 25 }, (_, at) => at + 4)]
    assert.deepStrictEqual(layers({ stages: lists }, 0), ["29"])
    assert.match(refusal({ ...one, placement: { stages: [8, 8, 8, 8] } }), /states 32 layers, the model has 30/)
    assert.match(refusal({ ...one, placement: { stages: [[0], [0], [1], [2]] } }), /layer 0 twice/)
    assert.match(refusal({ ...one, placement: { stages: [15, 15] } }), /2 counts, pp is 4/)
  })

  it("is never none, unless it is stated", () => {
    assert.match(refusal({ ...one, degrees: "pp=31" }), /pp=31 leaves stages without a layer, as the model has 30/)
    assert.match(refusal({ ...one, placement: { virtual: 8 } }), /pp=4 with 8 virtual stages each leaves/)
    const stated = [0, 1, 28, 1]
    assert.deepStrictEqual(counts({ stages: stated }), stated)
  })
})

describe("a padded vocabulary", () => {
  it("has zeros behind its rows, by the multiple of the whole or of every share", () => {
    const one = (vocabulary: NonNullable<Placement["vocabulary"]>) =>
      laidOut({
        tensors: [["model.embed_tokens.weight", "bfloat16", [101, 8]]],
        config: { model_type: "llama", tie_word_embeddings: false },
        degrees: "tp=2",
        placement: { vocabulary }
      })
    const engine = one({ multipleOf: 64, of: "whole" })
    assert.deepStrictEqual(held(engine, "model.embed_tokens.weight", 0), [[[0, 64]], [[64, 101]]])
    assert.deepStrictEqual(engine.tensorsOf(1)[0]!.shape, [64, 8])
    const trainer = one({ multipleOf: 8, of: "share" })
    assert.deepStrictEqual(held(trainer, "model.embed_tokens.weight", 0), [[[0, 56]], [[56, 101]]])
    assert.deepStrictEqual(trainer.tensorsOf(1)[0]!.padding?.[0], [45, 56])
  })
})
