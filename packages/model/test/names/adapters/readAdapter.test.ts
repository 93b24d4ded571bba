// SPDX-License-Identifier: Apache-2.0
/** What an adapter means is found, or refused with the tensor or the key that it is about. */
import { assert, describe, it } from "@effect/vitest"
import type { Shape } from "@tensorferry/core/base/Region"
import * as Result from "effect/Result"
import type { Adapter, AdapterBase, AdapterChange, NamedShape } from "../../../src/names/adapters/Adapter.ts"
import { adapterConfig, parseAdapterConfig } from "../../../src/names/adapters/AdapterConfig.ts"
import { type AdapterOptions, readAdapter } from "../../../src/names/adapters/readAdapter.ts"
import type { MappingError } from "../../../src/names/MappingError.ts"

const shapes = (tensors: { readonly [name: string]: Shape }): ReadonlyArray<NamedShape> =>
  Object.entries(tensors).map(([name, shape]) => ({ name, shape }))

const adapterTensors = (tensors: { readonly [name: string]: Shape }): ReadonlyArray<NamedShape> =>
  shapes(tensors).map(({ name, shape }) => ({ name: `base_model.model.${name}`, shape }))

/** Two layers of attention, of 4 values. */
const base: AdapterBase = {
  isDeclared: true,
  tensors: shapes({
    "model.embed_tokens.weight": [10, 4],
    "model.layers.0.attn.q.weight": [6, 4],
    "model.layers.0.attn.q.bias": [6],
    "model.layers.0.attn.o.weight": [4, 4],
    "model.layers.0.experts.up": [2, 6, 4],
    "model.layers.0.experts.down": [2, 4, 3],
    "model.layers.1.attn.q.weight": [6, 4],
    "model.layers.1.attn.q.bias": [6],
    "model.layers.1.attn.o.weight": [4, 4],
    "model.norm.weight": [4],
    "lm_head.weight": [10, 4]
  })
}

const pair = (module: string, out: number, input: number, rank = 2, experts = 1) => ({
  [`${module}.lora_A.weight`]: [experts * rank, input],
  [`${module}.lora_B.weight`]: [out, rank * experts]
})
const embedding = (module = "model.embed_tokens") => ({
  [`${module}.lora_embedding_A`]: [2, 10],
  [`${module}.lora_embedding_B`]: [4, 2]
})
const q0 = pair("model.layers.0.attn.q", 6, 4)
const q1 = pair("model.layers.1.attn.q", 6, 4)

const read = (
  config: object,
  tensors: { readonly [name: string]: Shape },
  onto: AdapterBase = base,
  options: AdapterOptions = {}
): Result.Result<Adapter, MappingError> =>
  Result.flatMap(adapterConfig({ r: 2, lora_alpha: 4, ...config }), (stated) =>
    readAdapter(stated, adapterTensors(tensors), onto, options)
  )

const changesOf = (result: Result.Result<Adapter, MappingError>): ReadonlyArray<AdapterChange> =>
  [...Result.getOrThrow(result).changes.values()].flat()

const faultOf = (result: Result.Result<Adapter, MappingError>): readonly [string, string] => {
  assert.isTrue(Result.isFailure(result))
  return Result.isFailure(result) ? [result.failure.kind, result.failure.subject] : ["", ""]
}

describe("modules that a config names", () => {
  const targets = (config: object, tensors: { readonly [name: string]: Shape }): ReadonlyArray<string> =>
    changesOf(read(config, tensors)).map(({ target }) => target)
  const [first, second] = ["model.layers.0.attn.q.weight", "model.layers.1.attn.q.weight"]

  it.each<[string, object, { readonly [name: string]: Shape }, ReadonlyArray<string | undefined>]>([
    ["by the ends of their paths", { target_modules: ["q"] }, { ...q0, ...q1 }, [first, second]],
    ["by an expression", { target_modules: ".*1\\.attn\\.q" }, q1, [second]],
    ["in some layers", { target_modules: ["q"], layers_to_transform: [1] }, q1, [second]],
    ["in one layer", { target_modules: ["q"], layers_to_transform: 0, layers_pattern: "layers" }, q0, [first]],
    [
      "by full paths, whatever the layers",
      { target_modules: [first.slice(0, -7)], layers_to_transform: 1 },
      q0,
      [first]
    ],
    ["but for excluded ones", { target_modules: ["q"], exclude_modules: ["0.attn.q"] }, q1, [second]],
    ["but for ones excluded by an expression", { target_modules: ["q"], exclude_modules: ".*0.*" }, q1, [second]],
    ["in none of all words: as the tensors say", { target_modules: "all-linear" }, q1, [second]],
    ["in no words: as the tensors say", {}, q0, [first]]
  ])("are found %s", (_, config, tensors, expected) =>
    assert.deepStrictEqual<ReadonlyArray<string | undefined>>(targets(config, tensors), expected)
  )

  it("have the rank and the alpha of the first pattern that fits, each by itself", () => {
    const config = {
      target_modules: ["q"],
      rank_pattern: { "1\\.attn\\.q": 3, q: 2 },
      alpha_pattern: { "0.attn.q": 9 },
      use_rslora: true
    }
    const found = changesOf(read(config, { ...q0, ...pair("model.layers.1.attn.q", 6, 4, 3) }))
    assert.deepStrictEqual(
      found.flatMap((one) => (one._tag === "LowRank" ? [[one.rank, one.alpha, one.scale]] : [])),
      [
        [2, 9, 9 / Math.SQRT2],
        [3, 4, 4 / Math.sqrt(3)]
      ]
    )
  })
})

describe("a base with its inputs first", () => {
  const turned: AdapterBase = { tensors: shapes({ "h.a.weight": [4, 6], "h.b.weight": [4, 4] }) }
  const tensors = { ...pair("h.a", 6, 4), ...pair("h.b", 4, 4) }
  it.each([
    ["as its config says", { fan_in_fan_out: true }],
    ["as the lengths of others say, where the config says otherwise", {}]
  ])("is known %s", (_, more) => {
    const found = changesOf(read({ target_modules: ["a", "b"], ...more }, tensors, turned))
    assert.deepStrictEqual(
      found.map((one) => one._tag === "LowRank" && one.isTransposed),
      [true, true]
    )
  })
})

describe("bare parameters of one module", () => {
  const up = pair("model.layers.0.experts.base_layer", 6, 4, 2, 2)
  const down = pair("model.layers.0.experts", 4, 3, 2, 2)
  const config = { target_parameters: ["experts.up", "experts.down"] }
  const depths = (onto: AdapterBase) =>
    changesOf(read(config, { ...up, ...down }, onto)).map((one) =>
      one._tag === "LowRank" ? [one.parameter, one.a.includes("base_layer")] : []
    )

  it("are told by the order in which the module declares them: the last is the outermost", () =>
    assert.deepStrictEqual(depths(base), [
      ["up", true],
      ["down", false]
    ]))

  it("are told by their shapes where that order is not known", () => {
    const { isDeclared: _isDeclared, tensors } = base
    const onto = { tensors: [...tensors].sort((a, b) => a.name.localeCompare(b.name)) }
    assert.deepStrictEqual(depths(onto), [
      ["down", false],
      ["up", true]
    ])
  })

  it("are refused where shapes are equal and the order is not known", () => {
    const onto = { tensors: shapes({ "m.one": [2, 4, 4], "m.two": [2, 4, 4] }) }
    const tensors = { ...pair("m", 4, 4, 2, 2), ...pair("m.base_layer", 4, 4, 2, 2) }
    assert.deepStrictEqual(faultOf(read({ target_parameters: ["m.one", "m.two"] }, tensors, onto)), [
      "unsupported",
      "m"
    ])
  })
})

describe("what an adapter holds besides factors", () => {
  it("is a tensor in full, for each module whose path ends so", () => {
    const found = changesOf(
      read({ target_modules: ["q"], modules_to_save: ["norm"] }, { ...q0, ...q1, "model.norm.weight": [4] })
    )
    assert.deepInclude(found, {
      _tag: "Whole",
      target: "model.norm.weight",
      tensor: "base_model.model.model.norm.weight",
      isNew: false
    })
  })

  it("is a head that the base lacks", () => {
    const config = { target_modules: ["q"], modules_to_save: ["score", "classifier"], task_type: "SEQ_CLS" }
    const found = changesOf(read(config, { ...q0, ...q1, "score.weight": [3, 4] }))
    assert.deepStrictEqual(
      found.flatMap((one) => (one._tag === "Whole" ? [[one.target, one.isNew]] : [])),
      [["score.weight", true]]
    )
  })

  it("are rows of the input embedding, which the tensors name", () => {
    const rows = { "model.embed_tokens.token_adapter.trainable_tokens_delta": [2, 4] }
    const found = changesOf(read({ target_modules: ["q"], trainable_token_indices: [7, 3] }, { ...q0, ...q1, ...rows }))
    assert.deepStrictEqual(
      found.flatMap((one) => (one._tag === "Rows" ? [[one.target, one.rows]] : [])),
      [["model.embed_tokens.weight", [7, 3]]]
    )
  })

  it("is a bias that the file has once more, which must be the same", () => {
    const config = { target_modules: ["o"], modules_to_save: ["0.attn.q"], bias: "all" }
    const o = { ...pair("model.layers.0.attn.o", 4, 4), ...pair("model.layers.1.attn.o", 4, 4) }
    const q = "model.layers.0.attn.q"
    const tensors = { [`${q}.weight`]: [6, 4], [`${q}.bias`]: [6], "model.layers.1.attn.q.bias": [6] }
    const twice = { ...o, ...tensors, [`${q}.modules_to_save.bias`]: [6], [`${q}.original_module.bias`]: [6] }
    const found = Result.getOrThrow(read(config, twice))
    const name = `base_model.model.${q}`
    assert.deepStrictEqual(found.tied, [
      { tensor: `${name}.modules_to_save.bias`, transposed: `${name}.bias`, rows: 1 }
    ])
    assert.deepStrictEqual(found.copies, [{ tensor: `${name}.original_module.bias`, of: `${q}.bias` }])
    const other = { ...twice, [`${q}.modules_to_save.bias`]: [5] }
    assert.deepStrictEqual(faultOf(read(config, other)), ["shape_mismatch", `${name}.modules_to_save.bias`])
  })

  it("are names of a model in memory with several adapters, of which one is meant", () => {
    const inMemory = {
      "model.layers.0.attn.q.lora_A.mine.weight": [2, 4],
      "model.layers.0.attn.q.lora_B.mine.weight": [6, 2],
      "model.layers.0.attn.q.lora_A.yours.weight": [5, 4]
    }
    assert.strictEqual(changesOf(read({}, inMemory, base, { adapter: "mine" })).length, 1)
    assert.strictEqual(faultOf(read({}, inMemory))[0], "unexpected_source")
  })
})

describe("a base whose head is its embedding", () => {
  const { tensors } = base
  const tied: AdapterBase = {
    tensors: tensors.filter(({ name }) => name !== "lm_head.weight"),
    aliases: new Map([["lm_head.weight", "model.embed_tokens.weight"]])
  }
  const rows = { "model.embed_tokens.token_adapter.trainable_tokens_delta": [1, 4] }

  it.each<[string, object, { readonly [name: string]: Shape }]>([
    ["the embedding only", { target_modules: ["embed_tokens"] }, embedding()],
    ["the head only", { target_modules: ["lm_head"] }, pair("lm_head", 10, 4)],
    [
      "both, each in its way",
      { target_modules: ["embed_tokens", "lm_head"] },
      { ...embedding(), ...pair("lm_head", 10, 4) }
    ],
    ["the head in full", { modules_to_save: ["lm_head"] }, { "lm_head.weight": [10, 4] }]
  ])("is refused with an adapter of %s, unless the two are untied", (_, config, parts) => {
    assert.strictEqual(faultOf(read(config, parts, tied))[0], "conflicting_alias")
    const untied = Result.getOrThrow(read(config, parts, tied, { tied: "untie" }))
    assert.deepStrictEqual(untied.untied, ["lm_head.weight"])
  })

  it("has one change for both where the adapter ensures that", () => {
    const config = { target_modules: ["embed_tokens"], ensure_weight_tying: true }
    const found = Result.getOrThrow(read(config, { ...embedding(), ...pair("lm_head", 10, 4) }, tied))
    assert.deepStrictEqual([...found.changes.keys()], ["model.embed_tokens.weight"])
    assert.strictEqual(found.tied.length, 2)
  })

  it("has one tensor in full for both where the adapter ensures that, and both sides of it must be equal", () => {
    const config = { modules_to_save: ["embed_tokens"], ensure_weight_tying: true }
    const both = { "model.embed_tokens.weight": [10, 4], "lm_head.weight": [10, 4] }
    const found = Result.getOrThrow(read(config, both, tied))
    assert.deepStrictEqual([...found.changes.keys()], ["model.embed_tokens.weight"])
    assert.deepStrictEqual(
      found.tied.map(({ rows }) => rows),
      [1]
    )
  })

  it("has norms of its own on each side, which is refused whatever the adapter ensures", () => {
    const config = { target_modules: ["embed_tokens"], ensure_weight_tying: true, use_dora: true }
    const norms = { "model.embed_tokens.lora_magnitude_vector": [4], "lm_head.lora_magnitude_vector": [10] }
    const parts = { ...embedding(), ...pair("lm_head", 10, 4), ...norms }
    assert.strictEqual(faultOf(read(config, parts, tied))[0], "conflicting_alias")
  })

  it("has rows of both where rows of the embedding are trained", () => {
    const config = { trainable_token_indices: { embed_tokens: [3], lm_head: [3] } }
    const found = Result.getOrThrow(read(config, rows, tied))
    assert.deepStrictEqual([...found.changes.keys()], ["model.embed_tokens.weight"])
  })
})

describe("an adapter that does not fit", () => {
  const both = { ...q0, ...q1 }
  it.each<[string, object, { readonly [name: string]: Shape }, readonly [string, string]]>([
    ["a module that the base lacks", { target_modules: ["q", "k"] }, both, ["no_target", "k"]],
    ["an expression for nothing", { target_modules: ".*k" }, both, ["no_target", ".*k"]],
    ["a layer that the base lacks", { target_modules: ["q"], layers_to_transform: [0, 7] }, q0, ["no_target", "7"]],
    ["a parameter that the base lacks", { target_parameters: ["experts.gate"] }, {}, ["no_target", "experts.gate"]],
    [
      "a whole module that the base lacks",
      { target_modules: ["q"], modules_to_save: ["pooler"] },
      both,
      ["no_target", "pooler"]
    ],
    ["rows of what the base lacks", { trainable_token_indices: { wte: [1] } }, {}, ["no_target", "wte"]],
    [
      "modules that are all excluded",
      { target_modules: ["q"], exclude_modules: ["q"] },
      {},
      ["no_target", "model.layers.0.attn.q"]
    ],
    ["a module without a matrix", { target_modules: ["norm"] }, {}, ["unsupported", "model.norm"]],
    ["a module of modules", { target_modules: ["attn"] }, {}, ["unsupported", "model.layers.0.attn"]],
    ["an alpha for nothing", { target_modules: ["q"], alpha_pattern: { k: 1 } }, both, ["unused_pattern", "k"]],
    [
      "a pattern that is not read",
      { target_modules: ["q"], rank_pattern: { "(?<=a)q": 1 } },
      both,
      ["unsupported", "(?<=a)q"]
    ],
    [
      "no second factor",
      { target_modules: ["0.attn.q"] },
      { "model.layers.0.attn.q.lora_A.weight": [2, 4] },
      ["missing_source", "base_model.model.model.layers.0.attn.q.lora_B.weight"]
    ],
    [
      "no magnitudes",
      { target_modules: ["q"], use_dora: true },
      both,
      ["missing_source", "base_model.model.model.layers.0.attn.q.lora_magnitude_vector"]
    ],
    [
      "too many magnitudes",
      { target_modules: ["0.attn.q"], use_dora: true },
      { ...q0, "model.layers.0.attn.q.lora_magnitude_vector": [4] },
      ["shape_mismatch", "base_model.model.model.layers.0.attn.q.lora_magnitude_vector"]
    ],
    [
      "no bias",
      { target_modules: ["q"], bias: "lora_only" },
      both,
      ["missing_source", "base_model.model.model.layers.0.attn.q.base_layer.bias"]
    ],
    [
      "a bias where the base has none",
      { target_modules: ["1.attn.o"], lora_bias: true },
      { ...pair("model.layers.1.attn.o", 4, 4), "model.layers.1.attn.o.lora_B.bias": [4] },
      ["no_target", "base_model.model.model.layers.1.attn.o.lora_B.bias"]
    ],
    [
      "no tensor in full",
      { target_modules: ["q"], modules_to_save: ["norm"] },
      both,
      ["missing_source", "base_model.model.model.norm.weight"]
    ],
    [
      "a tensor in full of another shape",
      { target_modules: ["q"], modules_to_save: ["norm"] },
      { ...both, "model.norm.weight": [5] },
      ["shape_mismatch", "base_model.model.model.norm.weight"]
    ],
    [
      "a tensor in full of which the config says nothing",
      { target_modules: ["q"] },
      { ...both, "model.norm.weight": [4] },
      ["unexpected_source", "base_model.model.model.norm.weight"]
    ],
    [
      "a copy of another vocabulary",
      { target_modules: ["embed_tokens"] },
      { ...embedding(), "model.embed_tokens.base_layer.weight": [11, 4] },
      ["shape_mismatch", "base_model.model.model.embed_tokens.base_layer.weight"]
    ],
    [
      "a copy of what is no embedding",
      { target_modules: ["q"] },
      { ...both, "model.layers.0.attn.q.base_layer.weight": [6, 4] },
      ["unexpected_source", "base_model.model.model.layers.0.attn.q.base_layer.weight"]
    ],
    [
      "fewer rows than are trained",
      { trainable_token_indices: { embed_tokens: [1, 2] } },
      { "model.embed_tokens.token_adapter.trainable_tokens_delta": [1, 4] },
      ["shape_mismatch", "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"]
    ],
    [
      "a row behind the end",
      { trainable_token_indices: { embed_tokens: [10] } },
      { "model.embed_tokens.token_adapter.trainable_tokens_delta": [1, 4] },
      ["out_of_bounds", "model.embed_tokens.weight"]
    ]
  ])("is refused: %s", (_, config, tensors, expected) =>
    assert.deepStrictEqual<ReadonlyArray<string>>(faultOf(read(config, tensors)), expected)
  )

  it("is refused where one of its names is none of an adapter's", () => {
    const config = Result.getOrThrow(adapterConfig({ r: 2 }))
    const fault = faultOf(readAdapter(config, [{ name: "model.q.lora_A.weight", shape: [2, 4] }], base))
    assert.deepStrictEqual(fault, ["unexpected_source", "model.q.lora_A.weight"])
  })
})

describe("a config", () => {
  it.each<[object, readonly [string, string]]>([
    [{ peft_type: "IA3" }, ["unsupported", "peft_type"]],
    [{ use_qalora: true }, ["unsupported", "use_qalora"]],
    [{ layer_replication: [[0, 2]] }, ["unsupported", "layer_replication"]],
    [{ alora_invocation_tokens: [1] }, ["unsupported", "alora_invocation_tokens"]],
    [{ init_lora_weights: "pissa_niter_4" }, ["unsupported", "init_lora_weights"]],
    [{ use_dora: true, target_parameters: ["x"] }, ["unsupported", "use_dora"]],
    [{ use_dora: true, lora_bias: true }, ["unsupported", "lora_bias"]],
    [{ r: 0 }, ["invalid_rule", "adapter_config.json"]],
    [{ rank_pattern: { q: -1 } }, ["invalid_rule", "adapter_config.json"]],
    [{ target_modules: "q", layers_to_transform: 1 }, ["invalid_rule", "layers_to_transform"]],
    [{ bias: "some" }, ["invalid_rule", "adapter_config.json"]]
  ])("%o is refused by its key", (object, expected) => {
    const config = adapterConfig(object)
    assert.deepStrictEqual<unknown>(
      Result.isFailure(config) ? [config.failure.kind, config.failure.subject] : undefined,
      expected
    )
  })

  it("keeps what it does not know, and has the library's defaults", () => {
    const config = Result.getOrThrow(parseAdapterConfig('{"peft_type": "LORA", "someday": {"x": 1}, "bias": null}'))
    assert.deepInclude(config, { rank: 8, alpha: 8, bias: "none", modules: undefined })
    assert.isTrue(Result.isFailure(parseAdapterConfig("[]")))
    assert.isTrue(Result.isFailure(parseAdapterConfig("{")))
  })

  it("whose patterns take too long is refused", () => {
    const config = { target_modules: `(?:(?=(?:${".*".repeat(400)}x)).)*` }
    const names = Array.from({ length: 400 }, (_, at) => ({
      name: `model.layers.${at}.${"a".repeat(80)}.weight`,
      shape: [4, 4]
    }))
    const started = performance.now()
    assert.strictEqual(faultOf(read(config, {}, { tensors: names }))[0], "unsupported")
    assert.isBelow(performance.now() - started, 20_000)
  })
})
