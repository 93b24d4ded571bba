// SPDX-License-Identifier: Apache-2.0
/**
 * Every published model we have shapes or names of is laid out and planned by its structure, and what the families say of
 * heads, fusions and tied tensors is seen in the shards.
 */
import { readdirSync, readFileSync } from "node:fs"
import { gunzipSync } from "node:zlib"
import { assert, describe, it } from "@effect/vitest"
import { elementCount, type Interval, type Region, regionShape } from "@tensorferry/core/base/Region"
import { coverageFault } from "@tensorferry/core/planner/Coverage"
import { checkPlans } from "@tensorferry/core/planner/PlanCheck"
import { indexRosters, planRank } from "@tensorferry/core/planner/RosterPlanner"
import * as Result from "effect/Result"
import { families, findFamily, modelTypes } from "../src/families/families.ts"
import { type ModelLayout, type ModelTensor, parseParallelConfig } from "../src/layout/ModelLayout.ts"
import { cutModel } from "../src/placement/cutModel.ts"
import type { Placement } from "../src/placement/Placement.ts"
import { type ModelConfig, parseModelConfig } from "../src/structure/ModelConfig.ts"

interface PresetInput {
  readonly tensors: ReadonlyArray<ModelTensor>
  readonly config?: ModelConfig
  readonly placement?: Placement
}

const shapesFolder = new URL("../../../bench/shapes/", import.meta.url)
const models = new URL("./data/models/", import.meta.url)

const shapesOf = (file: string): PresetInput => {
  const text = gunzipSync(readFileSync(new URL(file, shapesFolder))).toString("utf8")
  const { tensors, config } = JSON.parse(text) as {
    readonly tensors: Readonly<Record<string, ReadonlyArray<number>>>
    readonly config: ModelConfig
  }
  return { config, tensors: Object.entries(tensors).map(([name, shape]) => ({ name, dtype: "bfloat16", shape })) }
}

const configOf = (model: string): ModelConfig =>
  Result.getOrThrow(parseModelConfig(readFileSync(new URL(`${model}.config.json`, models), "utf8")))

const cut = ({ tensors, config, placement = {} }: PresetInput, preset: string, degrees: string) =>
  cutModel({
    tensors,
    rules: { rules: [], family: { preset, placement, ...(config === undefined ? {} : { config }) } },
    config: Result.getOrThrow(parseParallelConfig(degrees))
  })

const layoutOf = (input: PresetInput, preset: string, degrees: string): ModelLayout =>
  Result.getOrThrow(cut(input, preset, degrees))

const refusalOf = (input: PresetInput, preset: string, degrees: string): string => {
  const made = cut(input, preset, degrees)
  return Result.isFailure(made) ? made.failure.message : "accepted"
}

/** Every element of every tensor is on some rank, the pieces of a rank do not overlap, and padding is all that is left. */
const assertHeld = (layout: ModelLayout): void => {
  const held = new Map<string, Map<string, Region>>()
  for (const rank of layout.ranks) {
    for (const { name, shape, pieces, padding, storedAs } of layout.tensorsOf(rank)) {
      const inside = [...pieces.map((piece) => piece.local), ...(padding === undefined ? [] : [padding])]
      assert.isUndefined(coverageFault(shape, inside), `${name} on rank ${rank}`)
      for (const piece of pieces) {
        assert.deepStrictEqual(regionShape(piece.local), regionShape(piece.global))
        const regions = held.get(storedAs) ?? new Map<string, Region>()
        held.set(storedAs, regions.set(JSON.stringify(piece.global), piece.global))
      }
    }
  }
  for (const { name, shape } of layout.tensors) {
    assert.isUndefined(coverageFault(shape, [...(held.get(name)?.values() ?? [])]), name)
  }
}

const assertPlans = (input: PresetInput, preset: string, from: string, to: string): void => {
  const source = layoutOf(input, preset, from)
  const destination = layoutOf(input, preset, to)
  assertHeld(source)
  assertHeld(destination)
  const index = Result.getOrThrow(indexRosters(source.roster, destination.roster))
  const size = Math.max(source.ranks.length, destination.ranks.length)
  const plans = Array.from({ length: size }, (_, rank) => planRank(index, rank))
  assert.deepStrictEqual(checkPlans(plans), [])
  const bytes = plans.reduce(
    (sum, plan) => sum + plan.recvOps.reduce((own, op) => own + elementCount(regionShape(op.mySlice)), 0),
    0
  )
  const wanted = destination.ranks.reduce(
    (sum, rank) =>
      sum +
      destination
        .tensorsOf(rank)
        .flatMap(({ aliasOf, pieces }) => (aliasOf === undefined ? pieces : []))
        .reduce((own, piece) => own + elementCount(regionShape(piece.global)), 0),
    0
  )
  assert.strictEqual(bytes, wanted)
}

/** Preset and layouts per file of shapes. */
const files: Readonly<Record<string, readonly [preset: string, from: string, to: string]>> = {
  "deepseek-v3": ["deepseek_v3", "tp=2,pp=4,dp=2,ep=4", "tp=4,dp=4,ep=16"],
  "granite-3.1-1b-a400m": ["granitemoe", "tp=2,ep=2", "tp=4"],
  "llama-3.1-405b": ["llama", "tp=8,pp=4", "tp=16"],
  "llama-3.1-70b": ["llama", "tp=4,pp=2", "tp=8"],
  "llama-3.1-8b": ["mistral", "tp=2,pp=3", "tp=8,dp=2"],
  "llama-3.2-1b": ["llama", "tp=2", "tp=4"],
  "mixtral-8x22b": ["mixtral", "tp=2,pp=2,ep=2", "tp=4,ep=4"],
  "qwen3-235b-a22b": ["qwen3_moe", "tp=4,pp=2,ep=2,etp=2", "tp=8,ep=8"],
  "qwen3-30b-a3b": ["qwen3_moe", "tp=2,pp=2", "tp=2,dp=2,ep=4"],
  "qwen3.5-25b-reap-a3b": ["qwen3_5_moe_text", "tp=2,pp=2,ep=2", "tp=8,ep=4,etp=2"]
}

describe("published shapes", () => {
  it("every file has a case", () => {
    assert.deepStrictEqual(
      readdirSync(shapesFolder)
        .filter((file) => file.endsWith(".json.gz"))
        .sort(),
      Object.keys(files)
        .map((model) => `${model}.json.gz`)
        .sort()
    )
  })

  for (const [model, [preset, from, to]] of Object.entries(files)) {
    it(`${model} plans from ${from} to ${to}`, () => {
      assertPlans(shapesOf(`${model}.json.gz`), preset, from, to)
    })
  }
})

/** The text config of a published model, as far as shapes follow from it. */
interface Widths {
  readonly hidden_size: number
  readonly vocab_size: number
  readonly intermediate_size?: number
  readonly moe_intermediate_size?: number
  readonly num_attention_heads: number
  readonly num_key_value_heads: number
  readonly head_dim?: number
  readonly num_experts?: number
  readonly num_local_experts?: number
}

const widthsOf = (model: string): Widths =>
  JSON.parse(readFileSync(new URL(`${model}.config.json`, models), "utf8")) as Widths

/** Shape of each kind of tensor; the first pattern that a name ends with counts. */
const kinds: Readonly<Record<string, (widths: Widths) => ReadonlyArray<readonly [string, ReadonlyArray<number>]>>> = {
  "mixtral-8x22b": ({ hidden_size: h, vocab_size: v, intermediate_size: i = 0, num_local_experts: e = 0, ...w }) => [
    ["lm_head.weight", [v, h]],
    ["embed_tokens.weight", [v, h]],
    ["w1.weight", [i, h]],
    ["w3.weight", [i, h]],
    ["w2.weight", [h, i]],
    ["block_sparse_moe.gate.weight", [e, h]],
    ["norm.weight", [h]],
    ["q_proj.weight", [h, h]],
    ["k_proj.weight", [(h / w.num_attention_heads) * w.num_key_value_heads, h]],
    ["v_proj.weight", [(h / w.num_attention_heads) * w.num_key_value_heads, h]],
    ["o_proj.weight", [h, h]]
  ],
  "qwen-72b": ({ hidden_size: h, vocab_size: v, intermediate_size: i = 0 }) => [
    ["lm_head.weight", [v, h]],
    ["wte.weight", [v, h]],
    ["c_attn.weight", [3 * h, h]],
    ["c_attn.bias", [3 * h]],
    ["attn.c_proj.weight", [h, h]],
    ["ln_1.weight", [h]],
    ["ln_2.weight", [h]],
    ["ln_f.weight", [h]],
    // The config counts both halves of the gated MLP.
    ["mlp.w1.weight", [i / 2, h]],
    ["mlp.w2.weight", [i / 2, h]],
    ["mlp.c_proj.weight", [h, i / 2]]
  ],
  "qwen3.5-25b-reap-a3b": ({ hidden_size: h, vocab_size: v, moe_intermediate_size: i = 0, head_dim: d = 0, ...w }) => [
    ["lm_head.weight", [v, h]],
    ["embed_tokens.weight", [v, h]],
    ["linear_attn.A_log", [32]],
    ["linear_attn.dt_bias", [32]],
    ["linear_attn.conv1d.weight", [8192, 1, 4]],
    ["linear_attn.in_proj_a.weight", [32, h]],
    ["linear_attn.in_proj_b.weight", [32, h]],
    ["linear_attn.in_proj_qkv.weight", [8192, h]],
    ["linear_attn.in_proj_z.weight", [4096, h]],
    ["linear_attn.norm.weight", [128]],
    ["linear_attn.out_proj.weight", [h, 4096]],
    ["down_proj.weight", [h, i]],
    ["gate_proj.weight", [i, h]],
    ["up_proj.weight", [i, h]],
    ["mlp.gate.weight", [w.num_experts ?? 0, h]],
    ["shared_expert_gate.weight", [1, h]],
    ["q_norm.weight", [d]],
    ["k_norm.weight", [d]],
    ["norm.weight", [h]],
    ["q_proj.weight", [2 * w.num_attention_heads * d, h]],
    ["k_proj.weight", [w.num_key_value_heads * d, h]],
    ["v_proj.weight", [w.num_key_value_heads * d, h]],
    ["o_proj.weight", [h, w.num_attention_heads * d]]
  ]
}

/** Names of the published index with the shapes that follow from the config; proved by the index's own total. */
const indexed = (model: string): ReadonlyArray<ModelTensor> => {
  const text = gunzipSync(readFileSync(new URL(`${model}.index.json.gz`, models))).toString("utf8")
  const index = JSON.parse(text) as {
    readonly metadata: { readonly total_size: number }
    readonly weight_map: Readonly<Record<string, string>>
  }
  const known = kinds[model]!(widthsOf(model))
  const tensors = Object.keys(index.weight_map).map((name): ModelTensor => {
    const [, shape] = known.find(([suffix]) => name.endsWith(suffix))!
    return { name, dtype: "bfloat16", shape }
  })
  const total = tensors.reduce((sum, { shape }) => sum + 2 * elementCount(shape), 0)
  assert.strictEqual(total, index.metadata.total_size, `${model} has other shapes`)
  return tensors
}

const planned: Readonly<Record<string, readonly [from: string, to: string]>> = {
  "mixtral-8x22b": ["tp=2,pp=2,dp=2,ep=4", "tp=16"],
  "qwen-72b": ["tp=4,pp=2", "tp=8"],
  "qwen3.5-25b-reap-a3b": ["tp=2,ep=2", "tp=4,ep=4"]
}

describe("published indices", () => {
  for (const [model, [from, to]] of Object.entries(planned)) {
    it(`${model} plans from ${from} to ${to} with the preset of its config`, { timeout: 60_000 }, () => {
      const config = configOf(model)
      assertPlans({ tensors: indexed(model), config }, config.model_type as string, from, to)
    })
  }
})

const regionsOf = (layout: ModelLayout, name: string): ReadonlyArray<ReadonlyArray<Region>> =>
  layout.ranks.map((rank) =>
    layout
      .tensorsOf(rank)
      .filter((tensor) => tensor.name === name)
      .flatMap((tensor) => tensor.pieces.map((piece) => piece.global))
  )

const kv: ReadonlyArray<ModelTensor> = [
  { name: "model.layers.0.self_attn.k_proj.weight", dtype: "bfloat16", shape: [8, 4] },
  { name: "model.layers.0.self_attn.k_proj.bias", dtype: "bfloat16", shape: [8] }
]

describe("families", () => {
  it("are found by config.json's model types, each of one family, and by no other name", () => {
    assert.deepStrictEqual(modelTypes, families.flatMap((family) => family.modelTypes).sort())
    for (const family of families) {
      assert.include(family.modelTypes, family.name)
      for (const type of family.modelTypes) assert.strictEqual(findFamily(type), family)
    }
    for (const name of ["constructor", "__proto__", "toString", "gpt"]) assert.isUndefined(findFamily(name))
  })

  it("give each rank a whole key-value head where there are fewer heads than ranks", () => {
    const config = { model_type: "llama", num_key_value_heads: 2 }
    const layout = layoutOf({ tensors: kv, config }, "llama", "tp=4")
    const rows: ReadonlyArray<Interval> = [
      [0, 4],
      [0, 4],
      [4, 8],
      [4, 8]
    ]
    assert.deepStrictEqual(
      regionsOf(layout, kv[0]!.name),
      rows.map((row): ReadonlyArray<Region> => [[row, [0, 4]]])
    )
    assert.deepStrictEqual(
      regionsOf(layout, kv[1]!.name),
      rows.map((row): ReadonlyArray<Region> => [[row]])
    )
    assertPlans({ tensors: kv, config }, "llama", "tp=4", "tp=8")
    assert.match(refusalOf({ tensors: kv, config }, "llama", "tp=3"), /2 key-value heads do not divide by 3/)
  })

  it("refuse rows of a head, and heads that ranks do not divide", () => {
    const config = { model_type: "llama", num_key_value_heads: 2 }
    assert.match(
      refusalOf({ tensors: kv, config, placement: { kvHeads: "rows" } }, "llama", "tp=4"),
      /2 key-value heads are fewer than 4 ranks/
    )
    assert.match(
      refusalOf({ tensors: kv, config: { ...config, num_key_value_heads: 4 } }, "llama", "tp=3"),
      /4 key-value heads do not divide by 3.*tp of 1, 2, 4, 8/
    )
  })

  const embedding: ModelTensor = { name: "model.embed_tokens.weight", dtype: "bfloat16", shape: [6, 2] }
  const head: ModelTensor = { ...embedding, name: "lm_head.weight" }
  const layer: ModelTensor = { name: "model.layers.0.input_layernorm.weight", dtype: "bfloat16", shape: [2] }

  it("tie the head to the embedding only where the model holds no head", () => {
    const tie = { model_type: "llama", tie_word_embeddings: true }
    const shares = layoutOf({ tensors: [embedding, layer], config: tie }, "llama", "tp=2")
    assert.deepStrictEqual(
      shares.tensorsOf(0).map(({ name, aliasOf, storedAs }) => [name, aliasOf, storedAs]),
      [
        [embedding.name, undefined, embedding.name],
        [layer.name, undefined, layer.name],
        [head.name, embedding.name, embedding.name]
      ]
    )
    const apart = layoutOf({ tensors: [embedding, head, layer], config: tie }, "llama", "tp=2")
    assert.isTrue(apart.tensorsOf(0).every(({ aliasOf }) => aliasOf === undefined))
    const untied = layoutOf(
      { tensors: [embedding, layer], config: { model_type: "llama", tie_word_embeddings: false } },
      "llama",
      "tp=2"
    )
    assert.isFalse(untied.tensorsOf(0).some(({ name }) => name === head.name))
    // On another stage than the embedding the head has storage of its own, filled from the embedding.
    const input: PresetInput = {
      tensors: [embedding, layer, { ...layer, name: "model.layers.1.input_layernorm.weight" }]
    }
    const staged = layoutOf(input, "llama", "pp=2")
    assert.deepStrictEqual(
      staged.tensorsOf(1).map(({ name, aliasOf, storedAs }) => [name, aliasOf, storedAs]),
      [
        ["model.layers.1.input_layernorm.weight", undefined, "model.layers.1.input_layernorm.weight"],
        [head.name, undefined, embedding.name]
      ]
    )
    assertPlans(input, "llama", "pp=2", "tp=2")
    assertPlans(input, "llama", "tp=2", "pp=2")
  })

  it("cut queries, keys and values that linear attention packs each by its own heads", () => {
    const config = {
      model_type: "qwen3_5_moe",
      linear_num_key_heads: 2,
      linear_key_head_dim: 2,
      linear_num_value_heads: 4,
      linear_value_head_dim: 3
    }
    const tensors: ReadonlyArray<ModelTensor> = [
      { name: "model.layers.0.linear_attn.in_proj_qkv.weight", dtype: "bfloat16", shape: [20, 2] },
      { name: "model.layers.0.linear_attn.in_proj_z.weight", dtype: "bfloat16", shape: [12, 2] }
    ]
    assert.deepStrictEqual(
      regionsOf(layoutOf({ tensors, config }, "qwen3_5_moe", "tp=2"), tensors[0]!.name).map((pieces) =>
        pieces.map(([rows]) => rows)
      ),
      [
        [
          [0, 2],
          [4, 6],
          [8, 14]
        ],
        [
          [2, 4],
          [6, 8],
          [14, 20]
        ]
      ]
    )
  })

  it("cut fused experts by expert, and gate and up apart", () => {
    const name = "model.layers.0.mlp.experts.gate_up_proj"
    const layout = layoutOf(
      { tensors: [{ name, dtype: "bfloat16", shape: [4, 8, 3] }] },
      "qwen3_moe",
      "tp=4,ep=2,etp=2"
    )
    assert.deepStrictEqual(regionsOf(layout, name)[2], [
      [
        [2, 4],
        [0, 2],
        [0, 3]
      ],
      [
        [2, 4],
        [4, 6],
        [0, 3]
      ]
    ])
    assert.deepStrictEqual(layout.tensorsOf(2)[0]!.shape, [2, 4, 3])
    assert.deepStrictEqual(
      layout.parametersOf(2).map(({ metadata, view }) => [metadata.name, metadata.shape, view[0]]),
      [
        [`${name}[2]`, [1, 4, 3], [0, 1]],
        [`${name}[3]`, [1, 4, 3], [1, 2]]
      ]
    )
  })

  it("cover the quantized names, the extra layer and the vision tower that checkpoints of the families hold", () => {
    const names: Readonly<Record<string, ReadonlyArray<readonly [string, ReadonlyArray<number>]>>> = {
      deepseek_v3: [
        ["model.layers.0.input_layernorm.weight", [8]],
        ["model.layers.60.input_layernorm.weight", [8]],
        ["model.layers.61.embed_tokens.weight", [16, 8]],
        ["model.layers.61.enorm.weight", [8]],
        ["model.layers.61.hnorm.weight", [8]],
        ["model.layers.61.eh_proj.weight", [8, 16]],
        ["model.layers.61.shared_head.norm.weight", [8]],
        ["model.layers.61.shared_head.head.weight", [16, 8]],
        ["model.layers.61.mlp.experts.3.down_proj.weight", [512, 512]],
        ["model.layers.61.mlp.experts.3.down_proj.weight_scale_inv", [4, 4]],
        ["model.layers.61.self_attn.q_b_proj.weight", [512, 512]],
        ["model.layers.61.self_attn.q_b_proj.weight_scale_inv", [4, 4]],
        ["model.layers.61.mlp.gate.e_score_correction_bias", [4]]
      ],
      qwen3_5_moe: [
        ["model.visual.blocks.3.attn.qkv.weight", [12, 4]],
        ["mtp.fc.weight", [4, 8]],
        ["mtp.norm.weight", [4]],
        ["mtp.layers.0.self_attn.q_proj.weight", [8, 4]],
        ["mtp.layers.0.mlp.experts.2.up_proj.weight", [8, 4]],
        ["model.language_model.layers.0.input_layernorm.weight", [4]],
        ["model.language_model.layers.1.input_layernorm.weight", [4]]
      ],
      granitemoe: [
        ["model.layers.0.block_sparse_moe.input_linear.weight", [4, 8, 4]],
        ["model.layers.0.block_sparse_moe.output_linear.weight", [4, 4, 4]],
        ["model.layers.0.block_sparse_moe.router.layer.weight", [4, 4]],
        ["model.layers.1.input_layernorm.weight", [4]]
      ]
    }
    for (const [preset, list] of Object.entries(names)) {
      const tensors = list.map(([name, shape]): ModelTensor => ({ name, dtype: "bfloat16", shape }))
      assertPlans({ tensors }, preset, "tp=2,pp=2", "tp=2,ep=2")
    }
    const last = layoutOf(
      { tensors: names.qwen3_5_moe!.map(([name, shape]) => ({ name, dtype: "bfloat16", shape })) },
      "qwen3_5_moe",
      "pp=2"
    ).tensorsOf(1)
    assert.deepStrictEqual(last.map(({ name }) => name).filter((name) => name.startsWith("mtp.")).length, 4)
  })
})

describe("a tensor that no rule matches", () => {
  it("is refused in the words of the library", () => {
    const config = Result.getOrThrow(parseParallelConfig("tp=2"))
    const tensors = [{ name: "weight", dtype: "float32", shape: [4, 4] }] as const
    const refused = cutModel({ tensors, rules: { rules: [] }, config })
    if (Result.isSuccess(refused)) return assert.fail("it was laid out")
    assert.strictEqual(refused.failure.kind, "NoRule")
    assert.include(refused.failure.remedy, 'default: "replicate"')
    assert.notInclude(refused.failure.message, "--")
  })
})
