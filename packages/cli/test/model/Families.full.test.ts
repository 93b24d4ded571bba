// SPDX-License-Identifier: Apache-2.0
/**
 * A model of each family in miniature, with the family's real names and fusions, goes through tensor, pipeline, data and
 * expert parallel layouts and comes back bit by bit.
 */
import { writeFileSync } from "node:fs"
import { join } from "node:path"
import { gzipSync } from "node:zlib"
import { afterEach, assert, describe, it } from "@effect/vitest"
import type { Shape } from "@tensorferry/core/base/Region"
import type { ShardingRules } from "@tensorferry/core/layout/ShardingRules"
import type { Cutting } from "@tensorferry/model/Cutting"
import { openModel, resolveModel } from "@tensorferry/model/openModel"
import type { ModelConfig } from "@tensorferry/model/structure/ModelConfig"
import * as Effect from "effect/Effect"
import { endAll, failuresOf, isSoak, run, scratch } from "../support/command.ts"
import { runHere } from "../support/here.ts"
import { runJob } from "../support/inProcess.ts"
import { type Entry, writeModel } from "../support/models.ts"
import { reportsOf, throughLayouts } from "../support/throughLayouts.ts"

afterEach(endAll)

type Named = ReadonlyArray<readonly [name: string, shape: Shape]>

const [hidden, heads, kvHeads, headDim, width, experts, vocabulary] = [8, 4, 2, 4, 12, 4, 13]

const attention = (layer: string): Named => [
  [`${layer}.self_attn.q_proj.weight`, [heads * headDim, hidden]],
  [`${layer}.self_attn.k_proj.weight`, [kvHeads * headDim, hidden]],
  [`${layer}.self_attn.v_proj.weight`, [kvHeads * headDim, hidden]],
  [`${layer}.self_attn.o_proj.weight`, [hidden, heads * headDim]]
]

const mlp = (owner: string): Named => [
  [`${owner}.gate_proj.weight`, [width, hidden]],
  [`${owner}.up_proj.weight`, [width, hidden]],
  [`${owner}.down_proj.weight`, [hidden, width]]
]

const norms = (layer: string): Named => [
  [`${layer}.input_layernorm.weight`, [hidden]],
  [`${layer}.post_attention_layernorm.weight`, [hidden]]
]

const fused = (owner: string): Named => [
  [`${owner}.experts.gate_up_proj`, [experts, 2 * width, hidden]],
  [`${owner}.experts.down_proj`, [experts, hidden, width]]
]

const perExpert = (owner: string, gate: string, up: string, down: string): Named =>
  Array.from(
    { length: experts },
    (_, at): Named => [
      [`${owner}.experts.${at}.${gate}.weight`, [width, hidden]],
      [`${owner}.experts.${at}.${up}.weight`, [width, hidden]],
      [`${owner}.experts.${at}.${down}.weight`, [hidden, width]]
    ]
  ).flat()

const queryNorms = (layer: string): Named => [
  [`${layer}.self_attn.q_norm.weight`, [headDim]],
  [`${layer}.self_attn.k_norm.weight`, [headDim]]
]

const linearAttention = (layer: string): Named => [
  [`${layer}.linear_attn.in_proj_qkv.weight`, [2 * 4 + 16, hidden]],
  [`${layer}.linear_attn.conv1d.weight`, [2 * 4 + 16, 1, 4]],
  [`${layer}.linear_attn.in_proj_z.weight`, [16, hidden]],
  [`${layer}.linear_attn.in_proj_a.weight`, [4, hidden]],
  [`${layer}.linear_attn.in_proj_b.weight`, [4, hidden]],
  [`${layer}.linear_attn.dt_bias`, [4]],
  [`${layer}.linear_attn.A_log`, [4]],
  [`${layer}.linear_attn.norm.weight`, [4]],
  [`${layer}.linear_attn.out_proj.weight`, [hidden, 16]]
]

const decoder = (of: (layer: string, at: number) => Named, prefix = "model", head = true): Named => [
  [`${prefix}.embed_tokens.weight`, [vocabulary, hidden]],
  ...Array.from({ length: 3 }, (_, at) => {
    const layer = `${prefix}.layers.${at}`
    return [...norms(layer), ...of(layer, at)]
  }).flat(),
  [`${prefix}.norm.weight`, [hidden]],
  ...(head ? [["lm_head.weight", [vocabulary, hidden]] as const] : [])
]

interface Family {
  readonly what: string
  readonly config: ModelConfig
  readonly tensors: Named
}

const config = (model_type: string, tied = false): ModelConfig => ({
  model_type,
  hidden_size: hidden,
  num_attention_heads: heads,
  num_key_value_heads: kvHeads,
  head_dim: headDim,
  tie_word_embeddings: tied
})

const families: ReadonlyArray<Family> = [
  {
    what: "llama",
    config: config("llama"),
    tensors: decoder((layer) => [...attention(layer), ...mlp(`${layer}.mlp`)])
  },
  {
    what: "qwen2 with biases and a tied head",
    config: config("qwen2", true),
    tensors: decoder(
      (layer) => [
        ...attention(layer),
        [`${layer}.self_attn.q_proj.bias`, [heads * headDim]],
        [`${layer}.self_attn.k_proj.bias`, [kvHeads * headDim]],
        [`${layer}.self_attn.v_proj.bias`, [kvHeads * headDim]],
        ...mlp(`${layer}.mlp`)
      ],
      "model",
      false
    )
  },
  {
    what: "qwen3",
    config: config("qwen3"),
    tensors: decoder((layer) => [...attention(layer), ...queryNorms(layer), ...mlp(`${layer}.mlp`)])
  },
  {
    what: "qwen3_moe, one tensor per expert",
    config: config("qwen3_moe"),
    tensors: decoder((layer) => [
      ...attention(layer),
      ...queryNorms(layer),
      [`${layer}.mlp.gate.weight`, [experts, hidden]],
      ...perExpert(`${layer}.mlp`, "gate_proj", "up_proj", "down_proj")
    ])
  },
  {
    what: "qwen3_moe, fused experts",
    config: config("qwen3_moe"),
    tensors: decoder((layer) => [
      ...attention(layer),
      ...queryNorms(layer),
      [`${layer}.mlp.gate.weight`, [experts, hidden]],
      ...fused(`${layer}.mlp`)
    ])
  },
  {
    what: "qwen3_5_moe, full and linear attention in turns",
    config: {
      model_type: "qwen3_5_moe",
      text_config: {
        num_attention_heads: heads,
        num_key_value_heads: kvHeads,
        head_dim: headDim,
        linear_num_key_heads: 4,
        linear_key_head_dim: 1,
        linear_num_value_heads: 4,
        linear_value_head_dim: 4
      }
    },
    tensors: [
      ["model.visual.blocks.0.attn.qkv.weight", [12, hidden]],
      ...decoder(
        (layer, at) => [
          ...(at === 1 ? [...attention(layer), ...queryNorms(layer)] : linearAttention(layer)),
          [`${layer}.mlp.gate.weight`, [experts, hidden]],
          [`${layer}.mlp.shared_expert_gate.weight`, [1, hidden]],
          ...mlp(`${layer}.mlp.shared_expert`),
          ...(at === 2 ? fused(`${layer}.mlp`) : perExpert(`${layer}.mlp`, "gate_proj", "up_proj", "down_proj"))
        ],
        "model.language_model"
      ),
      ["mtp.fc.weight", [hidden, 2 * hidden]],
      ["mtp.layers.0.self_attn.q_proj.weight", [heads * headDim, hidden]],
      ...fused("mtp.layers.0.mlp")
    ]
  },
  {
    what: "mixtral, one tensor per expert",
    config: config("mixtral"),
    tensors: decoder((layer) => [
      ...attention(layer),
      [`${layer}.block_sparse_moe.gate.weight`, [experts, hidden]],
      ...perExpert(`${layer}.block_sparse_moe`, "w1", "w3", "w2")
    ])
  },
  {
    what: "granitemoe with a tied head",
    config: config("granitemoe", true),
    tensors: decoder(
      (layer) => [
        ...attention(layer),
        [`${layer}.block_sparse_moe.router.layer.weight`, [experts, hidden]],
        [`${layer}.block_sparse_moe.input_linear.weight`, [experts, 2 * width, hidden]],
        [`${layer}.block_sparse_moe.output_linear.weight`, [experts, hidden, width]]
      ],
      "model",
      false
    )
  },
  {
    what: "deepseek_v3",
    config: { model_type: "deepseek_v3", num_attention_heads: heads, num_key_value_heads: heads },
    tensors: decoder((layer, at) => [
      [`${layer}.self_attn.q_a_proj.weight`, [6, hidden]],
      [`${layer}.self_attn.q_a_layernorm.weight`, [6]],
      [`${layer}.self_attn.q_b_proj.weight`, [heads * 6, 6]],
      [`${layer}.self_attn.kv_a_proj_with_mqa.weight`, [7, hidden]],
      [`${layer}.self_attn.kv_a_layernorm.weight`, [5]],
      [`${layer}.self_attn.kv_b_proj.weight`, [heads * 8, 5]],
      [`${layer}.self_attn.o_proj.weight`, [hidden, heads * 4]],
      ...(at === 0
        ? mlp(`${layer}.mlp`)
        : ([
            [`${layer}.mlp.gate.weight`, [experts, hidden]],
            [`${layer}.mlp.gate.e_score_correction_bias`, [experts]],
            ...mlp(`${layer}.mlp.shared_experts`),
            ...(at === 1 ? fused(`${layer}.mlp`) : perExpert(`${layer}.mlp`, "gate_proj", "up_proj", "down_proj"))
          ] satisfies Named))
    ])
  },
  {
    what: "qwen, packed query, key and value",
    config: { model_type: "qwen", hidden_size: hidden, num_attention_heads: 4 },
    tensors: [
      ["transformer.wte.weight", [vocabulary, hidden]],
      ...Array.from({ length: 3 }, (_, at): Named => {
        const layer = `transformer.h.${at}`
        return [
          [`${layer}.ln_1.weight`, [hidden]],
          [`${layer}.attn.c_attn.weight`, [3 * hidden, hidden]],
          [`${layer}.attn.c_attn.bias`, [3 * hidden]],
          [`${layer}.attn.c_proj.weight`, [hidden, hidden]],
          [`${layer}.ln_2.weight`, [hidden]],
          [`${layer}.mlp.w1.weight`, [width, hidden]],
          [`${layer}.mlp.w2.weight`, [width, hidden]],
          [`${layer}.mlp.c_proj.weight`, [hidden, width]]
        ]
      }).flat(),
      ["transformer.ln_f.weight", [hidden]],
      ["lm_head.weight", [vocabulary, hidden]]
    ]
  }
]

const entriesOf = ({ tensors }: Family): ReadonlyArray<Entry> =>
  tensors.map(([name, shape]) => ({ name, dtype: "bfloat16", shape }))

const rulesOf = ({ config }: Family): Cutting => ({
  rules: [],
  family: { preset: config.model_type as string, config, placement: {} }
})

/** From each to the next and back to one rank: tensor x pipeline x data x expert parallel, also uneven ones. */
const layouts = ["tp=2,pp=2,dp=2,ep=4", "tp=4,ep=2,etp=2"]

/** Every one to every other one, in one walk. */
const kinds = ["tp=4", "pp=3", "tp=2,dp=2,ep=4,pp=2", "tp=4,ep=2,etp=2", "dp=3,ep=3"]
const everyPair = kinds.flatMap((a, at) => [...kinds.slice(at + 1).flatMap((b) => [a, b]), a])

describe("there and back, bit by bit", () => {
  for (const family of families) {
    it.live(family.what, () => throughLayouts(entriesOf(family), rulesOf(family), layouts), 60_000)
    if (isSoak) {
      it.live(
        `${family.what}: from every layout to every other one`,
        () => throughLayouts(entriesOf(family), rulesOf(family), everyPair),
        300_000
      )
    }
  }

  it.live("padded vocabularies: each side pads for its own ranks, and padding is zero in the files", () =>
    Effect.gen(function* () {
      const rules: ShardingRules = { rules: [{ match: "*", shard: 0, padToMultiple: 4 }] }
      const entries: ReadonlyArray<Entry> = [
        { name: "embed", dtype: "bfloat16", shape: [13, 3] },
        { name: "one", dtype: "uint8", shape: [1] },
        { name: "even", dtype: "float32", shape: [16] }
      ]
      yield* throughLayouts(entries, rules, ["tp=2", "tp=3", "tp=5"])
      using folder = scratch()
      const original = join(folder.path, "original.safetensors")
      yield* Effect.promise(() => writeModel(original, entries))
      const out = join(folder.path, "out")
      reportsOf(yield* runJob({ checkpoint: original, from: "tp=1", to: "tp=3", rules, out }))
      const last = yield* Effect.scoped(
        Effect.gen(function* () {
          const model = yield* openModel(join(out, "rank-00002.safetensors"))
          const bytes = new Uint8Array(8 * 3 * 2).fill(1)
          yield* model.readRegion(
            "embed",
            [
              [0, 8],
              [0, 3]
            ],
            bytes
          )
          return { shapes: new Map(model.tensors.map(({ name, shape }) => [name, shape])), bytes }
        })
      )
      // 13 rows over three ranks in multiples of four: eight each, none left for the last.
      assert.deepStrictEqual(last.shapes.get("embed"), [8, 3])
      assert.deepStrictEqual(last.shapes.get("one"), [4])
      assert.isTrue(last.bytes.every((byte) => byte === 0))
    })
  )
})

describe("the command", () => {
  const write = async (folder: string, family: Family): Promise<string> => {
    await writeModel(join(folder, "model.safetensors"), entriesOf(family))
    writeFileSync(join(folder, "config.json"), JSON.stringify({ ...family.config, hidden_act: "silu" }))
    return folder
  }
  const moe = families.find(({ what }) => what === "qwen3_moe, fused experts")!

  it("takes the preset of config.json, expert-parallel layouts, and comes back", async () => {
    using folder = scratch()
    using there = scratch()
    const model = await write(folder.path, moe)
    const [out, back] = [join(there.path, "out"), join(there.path, "back")]
    const moved = await run(["reshard", model, "--to", "tp=2,ep=2", "--from", "tp=1,dp=2,ep=2", "--out", out, "--json"])
    assert.strictEqual(moved.code, 0, moved.stdout + moved.stderr)
    const returned = await run(["reshard", out, "--to", "tp=1", "--out", back])
    assert.strictEqual(returned.code, 0, returned.stdout + returned.stderr)
    const same = await run(["verify", model, back])
    assert.strictEqual(same.code, 0, same.stdout)
    assert.match(same.stdout, /bit-identical/)
  })

  it("takes both layouts from a layout file, with rules for one side, and lets flags override it", async () => {
    using folder = scratch()
    const model = await write(folder.path, families[0]!)
    const file = join(folder.path, "layout.yaml")
    writeFileSync(
      file,
      `preset: llama
kvHeads: rows
from:
  tp: 2
  rules: &padded
    - {match: lm_head.weight, shard: 0, padToMultiple: 8, stage: last}
to: {tp: 2, pp: 2, rules: *padded}
ranks: disjoint
`
    )
    const stated = JSON.parse((await run(["plan", model, "--layout", file, "--json"])).stdout)
    assert.deepStrictEqual(
      [stated.from, stated.to, stated.ranks, stated.size],
      [{ tp: 2, pp: 1, dp: 1 }, { tp: 2, pp: 2, dp: 1 }, "disjoint", 6]
    )
    assert.isFalse("sourceRules" in stated)
    assert.deepStrictEqual(stated.rules.rules[0], {
      match: "lm_head.weight",
      shard: 0,
      padToMultiple: 8,
      stage: "last"
    })
    assert.deepStrictEqual(stated.rules.family.placement, { kvHeads: "rows" })
    const moved = await run(["reshard", model, "--layout", file, "--to", "pp=3", "--ranks", "collocated", "--json"])
    assert.strictEqual(moved.code, 0, moved.stdout + moved.stderr)
    assert.deepStrictEqual(JSON.parse(moved.stdout).to, { tp: 1, pp: 3, dp: 1 })
  })

  it("refuses layout files and configurations that are none, naming file and fault", async () => {
    using folder = scratch()
    const model = await write(folder.path, families[0]!)
    const file = join(folder.path, "layout.yaml")
    const bomb = `a: &a [x, x, x, x, x, x, x, x, x]\n${Array.from({ length: 9 }, (_, at) => `${"bcdefghij"[at]}: &${"bcdefghij"[at]} [${Array.from({ length: 9 }, () => `*${"abcdefghi"[at]}`).join(", ")}]`).join("\n")}\n`
    const cases: ReadonlyArray<readonly [text: string, says: RegExp]> = [
      ["to: {tp: 0}", /tp/],
      ["to: {tp: 2, ep: 3}", /ep=3/],
      ["to: tp=2\nfrom: nonsense", /nonsense/],
      ["to: {tp: 2}\nlayers: 3", /layers/],
      ["to: {tp: 2}\nwhatever: 1", /whatever/],
      ["to: {tp: 2}\npreset: gpt", /gpt/],
      ["to: [", /flow|collection|sequence|end/i],
      ["? ".repeat(700), /plain text/],
      [`#${"x".repeat(1_000_001)}`, /bytes/],
      [bomb, /alias/i]
    ]
    for (const [text, says] of cases) {
      writeFileSync(file, text)
      const ended = await runHere(["plan", model, "--layout", file, "--json"])
      assert.strictEqual(ended.code, 1, text)
      assert.match(failuresOf(ended)[0]!.message, says)
    }
    writeFileSync(join(folder.path, "config.json"), "{")
    const ended = await runHere(["plan", model, "--to", "tp=2", "--json"])
    assert.strictEqual(ended.code, 1)
    assert.strictEqual(failuresOf(ended)[0]!.fields?.file, join(folder.path, "config.json"))
    // Where the rules are given, no configuration is needed.
    assert.strictEqual((await runHere(["plan", model, "--to", "tp=2", "--preset", "llama"])).code, 0)
  }, 120_000)

  it("fills published shapes with data that is the same on every rank", async () => {
    using folder = scratch()
    const shapes = join(folder.path, "shapes.json.gz")
    const tensors = Object.fromEntries(moe.tensors)
    writeFileSync(shapes, gzipSync(JSON.stringify({ model: "small", dtype: "BF16", tensors, config: moe.config })))
    const name = `synthetic:${shapes}`
    const [out, whole] = [join(folder.path, "out"), join(folder.path, "whole")]
    const moved = await run(["reshard", name, "--from", "tp=2", "--to", "tp=2,dp=2,ep=4", "--out", out])
    assert.strictEqual(moved.code, 0, moved.stdout + moved.stderr)
    assert.strictEqual((await run(["reshard", out, "--to", "tp=1", "--out", whole])).code, 0)
    const same = await run(["verify", name, whole])
    assert.strictEqual(same.code, 0, same.stdout)
    // Not one constant, and not the same for two tensors.
    const [a, b] = await Effect.runPromise(
      Effect.scoped(
        Effect.gen(function* () {
          const model = yield* openModel(resolveModel(name))
          return yield* Effect.forEach(["gate", "up"], (kind) => {
            const bytes = new Uint8Array(2 * hidden)
            const layer = kind === "gate" ? "model.layers.0" : "model.layers.1"
            return Effect.as(model.readRegion(`${layer}.input_layernorm.weight`, [[0, hidden]], bytes), bytes)
          })
        })
      )
    )
    assert.isAbove(new Set(a).size, 8)
    assert.notDeepEqual([...a!], [...b!])
  })
})

describe("made-up data", () => {
  it.effect("is the same for every cut of a tensor, aligned or not", () =>
    Effect.gen(function* () {
      using folder = scratch()
      const file = join(folder.path, "shapes.json")
      for (const dtype of ["U8", "BF16", "F32", "F64"]) {
        writeFileSync(file, JSON.stringify({ dtype, tensors: { w: [5, 7, 3] } }))
        const model = yield* openModel(`synthetic:${file}`)
        const bits = { U8: 1, BF16: 2, F32: 4, F64: 8 }[dtype]!
        const whole = new Uint8Array(5 * 7 * 3 * bits)
        yield* model.readRegion(
          "w",
          [
            [0, 5],
            [0, 7],
            [0, 3]
          ],
          whole
        )
        for (let a = 0; a < 5; a++) {
          for (let b = 0; b < 7; b++) {
            for (let c = 0; c < 3; c++) {
              const one = new Uint8Array(3 + bits).subarray(3)
              yield* model.readRegion(
                "w",
                [
                  [a, a + 1],
                  [b, b + 1],
                  [c, c + 1]
                ],
                one
              )
              const at = ((a * 7 + b) * 3 + c) * bits
              assert.deepStrictEqual([...one], [...whole.subarray(at, at + bits)])
            }
          }
        }
      }
    }).pipe(Effect.scoped)
  )

  it.effect("of files that do not hold shapes is refused", () =>
    Effect.gen(function* () {
      using folder = scratch()
      const file = join(folder.path, "shapes.json")
      const texts = [
        "{",
        "[]",
        '{"tensors": {"w": [2]}}',
        '{"dtype": "F31", "tensors": {"w": [2]}}',
        '{"dtype": "F32", "tensors": {"w": [-1]}}',
        '{"dtype": "F32", "tensors": {"w": [4503599627370496, 4503599627370496]}}',
        gzipSync(Buffer.alloc(101_000_000)),
        gzipSync("{").subarray(0, 12)
      ]
      for (const text of texts) {
        writeFileSync(file, text)
        const error = yield* Effect.flip(Effect.scoped(openModel(`synthetic:${file}`)))
        assert.strictEqual(error.reason._tag, "InvalidShapes")
        assert.strictEqual(error.reason.file, file)
      }
      const missing = yield* Effect.flip(Effect.scoped(openModel(`synthetic:${file}.not`)))
      assert.strictEqual(missing.reason._tag, "InvalidShapes")
    })
  )
})
