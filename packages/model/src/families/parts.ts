// SPDX-License-Identifier: Apache-2.0
/** Words in which families are written: projections by what they are cut along, and the modules that most of them share. */
import type { BiasRule, Dim, EndSpec, Length, ModuleSpec, StackSpec } from "../structure/Family.ts"
import type { Role } from "../structure/Roles.ts"

const out = (...roles: ReadonlyArray<Role>): Dim => ({ is: "out", roles })
const input = (...roles: ReadonlyArray<Role>): Dim => ({ is: "in", roles })
const hiddenOut: Dim = { is: "out", roles: [], isHidden: true }
const hiddenIn: Dim = { is: "in", roles: [], isHidden: true }
const other: Dim = { is: "other", roles: [] }
const experts: Dim = { is: "experts", roles: [] }

const module = (path: string, structure: string, dims: ReadonlyArray<Dim> | undefined): ModuleSpec => ({
  path,
  as: "module",
  structure,
  dims
})

/** A projection out of the hidden state, cut by its rows. */
export const column = (structure: string, path: string, ...roles: ReadonlyArray<Role>): ModuleSpec =>
  module(path, structure, [out(...roles), hiddenIn])

/** A projection out of something else than the hidden state, as a latent. */
export const columnOfLatent = (structure: string, path: string, ...roles: ReadonlyArray<Role>): ModuleSpec =>
  module(path, structure, [out(...roles), input()])

/** A projection back, cut by its columns; its bias is whole. */
export const row = (structure: string, path: string, role: Role): ModuleSpec =>
  module(path, structure, [hiddenOut, input(role)])

/** Cut by its columns, and its rows are not those of the hidden state. */
export const rowOfLatent = (structure: string, path: string, role: Role): ModuleSpec =>
  module(path, structure, [out(), input(role)])

/** One row per unit and anything behind it: a convolution, a norm over heads. */
export const vector = (structure: string, path: string, ...roles: ReadonlyArray<Role>): ModuleSpec =>
  module(path, structure, [out(...roles), other, other])

/** A tensor by itself, one row per unit. */
export const parameter = (structure: string, path: string, ...roles: ReadonlyArray<Role>): ModuleSpec => ({
  ...vector(structure, path, ...roles),
  as: "tensor"
})

/** Modules that every rank of the stage holds whole. */
export const whole = (structure: string, ...paths: ReadonlyArray<string>): ReadonlyArray<ModuleSpec> =>
  paths.map((path) => module(path, structure, undefined))

/** Tensors by themselves that every rank of the stage holds whole. */
export const wholeTensors = (structure: string, ...paths: ReadonlyArray<string>): ReadonlyArray<ModuleSpec> =>
  whole(structure, ...paths).map((spec) => ({ ...spec, as: "tensor" }))

/** A product of the config's numbers as a length. */
export const of = (...factors: Length[number]): Length => [factors]

type Specs = ReadonlyArray<ModuleSpec>

/** Modules that a layer has all of, or none; each fills the slot that it is given, or one of its own. */
export const together = (set: string, specs: Specs, slots: { readonly [path: string]: string } = {}): Specs =>
  specs.map((spec) =>
    // Tables that follow from the config may be stored or not, and so may scales of a cache.
    spec.structure === "rotary" || spec.structure === "cache"
      ? spec
      : { ...spec, member: { set, slots: (slots[spec.path] ?? spec.path).split(" ") } }
  )

/** Modules that a layer may have one by one. */
export const freely = (specs: Specs): Specs => specs.map(({ member: _, ...spec }) => spec)

/** Modules that have biases by a rule; those with these ends of their paths where any are given. */
export const biased = (bias: BiasRule, specs: Specs, ...ends: ReadonlyArray<string>): Specs =>
  specs.map((spec) => (ends.length === 0 || ends.some((end) => spec.path.endsWith(end)) ? { ...spec, bias } : spec))

/** Modules whose weights have these lengths. */
export const shaped = (shape: ReadonlyArray<Length | undefined>, specs: Specs, ...ends: ReadonlyArray<string>): Specs =>
  specs.map((spec) => (ends.length === 0 || ends.some((end) => spec.path.endsWith(end)) ? { ...spec, shape } : spec))

export const norms = (...paths: ReadonlyArray<string>): Specs =>
  biased("never", shaped([of("hidden")], whole("norm", ...paths)))

const attentionBias: BiasRule = ["attention_bias", "use_bias"]

/** Scales of what attention computes with, where a model's cache is quantized: one number each. */
const cacheScales = (owner: string): Specs =>
  wholeTensors("cache", ...["q_scale", "k_scale", "v_scale", "prob_scale"].map((name) => `${owner}.${name}`)).map(
    (spec) => ({ ...spec, isScalar: true })
  )

/** Query, key, value and output projections, each by itself. */
export const attention = (owner: string, output = "o_proj"): Specs => [
  ...together("attention", [
    ...biased(attentionBias, [
      column("attention", `${owner}.q_proj`, "q"),
      column("attention", `${owner}.k_proj`, "k"),
      column("attention", `${owner}.v_proj`, "v")
    ]),
    ...biased(["attention_out_bias", ...attentionBias], [row("attention", `${owner}.${output}`, "o")])
  ]),
  ...wholeTensors("rotary", `${owner}.rotary_emb.inv_freq`),
  ...cacheScales(owner)
]

/** Attention of layers that may have keys and values of another layer. */
export const attentionSharingKeys = (owner: string, more: Specs = []): Specs =>
  [...attention(owner), ...more].flatMap((spec) =>
    /\.[kv]_(proj|norm)$/.test(spec.path) ? together("keys and values", [spec]) : [spec]
  )

/** Query, key and value in one projection, in this order. */
export const packedAttention = (owner: string): Specs =>
  together("attention", [
    column("attention", `${owner}.qkv_proj`, "q", "k", "v"),
    row("attention", `${owner}.o_proj`, "o")
  ])

const normsOfHeads = (owner: string, query: string, key: string): Specs =>
  shaped([of("headDim")], norms(`${owner}.${query}`, `${owner}.${key}`))

/** Norms of queries and keys inside a head, which every attention of the family has. */
export const headNorms = (owner: string, query = "q_norm", key = "k_norm"): Specs =>
  together("attention", normsOfHeads(owner, query, key))

/** Norms of queries and keys inside a head, where a model has them. */
export const optionalHeadNorms = (owner: string, query = "q_norm", key = "k_norm"): Specs =>
  together("head norms", normsOfHeads(owner, query, key))

/** Norms over all queries and over all keys. */
export const wideNorms = (owner: string): Specs =>
  together("attention", [
    ...shaped([of("heads", "headDim")], norms(`${owner}.q_norm`)),
    ...shaped([of("kvHeads", "headDim")], norms(`${owner}.k_norm`))
  ])

const mlpBias: BiasRule = ["mlp_bias", "use_bias"]

export const mlp = (owner: string, structure = "mlp"): Specs =>
  together(
    structure,
    biased(mlpBias, [
      column(structure, `${owner}.gate_proj`, "gate"),
      column(structure, `${owner}.up_proj`, "up"),
      row(structure, `${owner}.down_proj`, "down")
    ])
  )

/** An MLP without a gate. */
export const gatelessMlp = (owner: string, structure = "mlp", up = "up_proj", down = "down_proj"): Specs =>
  together(
    structure,
    biased(mlpBias, [column(structure, `${owner}.${up}`, "up"), row(structure, `${owner}.${down}`, "down")])
  )

/** Gate and up in one projection, gate first. */
export const packedMlp = (owner: string, structure = "mlp", gateUp = "gate_up_proj", down = "down_proj"): Specs =>
  together(structure, [
    column(structure, `${owner}.${gateUp}`, "gate", "up"),
    row(structure, `${owner}.${down}`, "down")
  ])

/** Slots of experts: one by one each of them has these, in stacks a layer has them. */
const expertSlots = (specs: Specs): Specs =>
  specs.map((spec) => {
    const roles = spec.dims!.flatMap((dim) => dim.roles)
    const slot = spec.path.includes("{}") ? roles[0]! : roles.includes("down") ? "stacked down" : "stacked up"
    return { ...spec, member: { set: "experts", slots: [slot] } }
  })

/** Experts one by one. */
export const listedExperts = (owner: string, gate = "gate_proj", up = "up_proj", down = "down_proj"): Specs =>
  expertSlots([
    column("experts", `${owner}.experts.{}.${gate}`, "gate"),
    column("experts", `${owner}.experts.{}.${up}`, "up"),
    row("experts", `${owner}.experts.{}.${down}`, "down")
  ])

/** Experts one by one, without gates. */
export const gatelessExperts = (owner: string): Specs =>
  expertSlots([
    column("experts", `${owner}.experts.{}.up_proj`, "up"),
    row("experts", `${owner}.experts.{}.down_proj`, "down")
  ])

const stacked = (path: string, ...dims: ReadonlyArray<Dim>): ModuleSpec => ({
  path,
  as: "tensor",
  structure: "experts",
  dims
})

/** All experts in one tensor each, rows of the output before those of the input. */
export const stackedExperts = (owner: string): Specs =>
  expertSlots([
    stacked(`${owner}.experts.gate_up_proj`, experts, out("gate", "up"), hiddenIn),
    stacked(`${owner}.experts.up_proj`, experts, out("up"), hiddenIn),
    stacked(`${owner}.experts.down_proj`, experts, hiddenOut, input("down"))
  ])

/** All experts in one tensor each, input first; with `each` of 2 gate and up take turns. */
export const stackedInputFirst = (owner: string, each = 1): Specs => {
  const gateUp: Dim = each === 1 ? out("gate", "up") : { ...out("gate"), each }
  return expertSlots([
    stacked(`${owner}.experts.gate_up_proj`, experts, hiddenIn, gateUp),
    stacked(`${owner}.experts.down_proj`, experts, input("down"), hiddenOut)
  ])
}

/** Stacks of experts in modules, as GraniteMoE has them. */
export const stackedModules = (gateUp: string, down: string): Specs =>
  expertSlots([
    module(gateUp, "experts", [experts, out("gate", "up"), hiddenIn]),
    module(down, "experts", [experts, hiddenOut, input("down")])
  ])

/** What chooses experts; a model has one of these paths. */
export const router = (...paths: ReadonlyArray<string>): Specs =>
  shaped([of("experts"), of("hidden")], whole("router", ...paths)).map((spec) => ({
    ...spec,
    member: { set: "experts", slots: ["router"] }
  }))

/** What a router adds to its scores to balance experts. */
export const correctedRouter = (path: string): Specs =>
  router(path).map((spec) => ({
    ...spec,
    companions: [{ suffix: "e_score_correction_bias", shape: [of("experts")] }]
  }))

/** The gate of what all tokens share. */
export const sharedGate = (path: string): Specs =>
  together("shared experts", shaped([of(1), of("hidden")], whole("router", path)))

const latents: Length = [["keyRank"], ["rotaryDim"]]
const latentQueries: Length = [
  ["heads", "plainDim"],
  ["heads", "rotaryDim"]
]
const latentKeys: Length = [
  ["heads", "plainDim"],
  ["heads", "valueDim"]
]

/** Latent attention: what leads to the latents is whole, what leads out of them is cut by heads. */
export const latentAttention = (owner: string): Specs => {
  const own = ["attention_bias"]
  return [
    ...together("latent queries", [
      ...biased(own, shaped([of("queryRank"), of("hidden")], whole("latent", `${owner}.q_a_proj`))),
      ...shaped([of("queryRank")], norms(`${owner}.q_a_layernorm`))
    ]),
    ...together(
      "attention",
      [
        ...biased(own, shaped([latents, of("hidden")], whole("latent", `${owner}.kv_a_proj_with_mqa`))),
        ...shaped([of("keyRank")], norms(`${owner}.kv_a_layernorm`)),
        ...biased("never", [
          ...shaped([latentQueries, of("queryRank")], [columnOfLatent("attention", `${owner}.q_b_proj`, "latentHead")]),
          ...shaped([latentQueries, of("hidden")], [column("attention", `${owner}.q_proj`, "latentHead")]),
          ...shaped([latentKeys, of("keyRank")], [columnOfLatent("attention", `${owner}.kv_b_proj`, "latentHead")])
        ]),
        ...biased(own, shaped([of("hidden"), of("heads", "valueDim")], [row("attention", `${owner}.o_proj`, "o")]))
      ],
      { [`${owner}.q_proj`]: "queries", [`${owner}.q_b_proj`]: "queries" }
    ),
    ...wholeTensors("rotary", `${owner}.rotary_emb.inv_freq`)
  ]
}

/** A convolution along positions, channel by channel. */
export const convolution = (path: string, channels: Length, ...roles: ReadonlyArray<Role>): ModuleSpec => ({
  ...vector("mixer", path, ...roles),
  shape: [channels, of(1), of("kernel")]
})

/** A Mamba-2 mixer: gate, input, groups and steps in one projection. */
export const mamba2 = (owner: string): Specs =>
  together("mixer", [
    ...biased(
      ["use_bias", "mamba_proj_bias"],
      [column("mixer", `${owner}.in_proj`, "z", "x", "B", "C", "dt"), row("mixer", `${owner}.out_proj`, "x")]
    ),
    ...biased(
      ["use_conv_bias", "mamba_conv_bias"],
      [
        convolution(
          `${owner}.conv1d`,
          [
            ["ssmHeads", "ssmHeadDim"],
            ["ssmGroups", "ssmState", 2]
          ],
          "x",
          "B",
          "C"
        )
      ]
    ),
    parameter("mixer", `${owner}.A_log`, "dt"),
    parameter("mixer", `${owner}.D`, "dt"),
    parameter("mixer", `${owner}.dt_bias`, "dt"),
    vector("mixer", `${owner}.norm`, "x")
  ])

const groupRows: Length = [
  ["keyHeads", "keyHeadDim", 2],
  ["valueHeads", "valueHeadDim", 2]
]

/** A gated delta net; its projections are packed in one of two ways. */
export const deltaNet = (owner: string): Specs =>
  together(
    "mixer",
    [
      ...shaped([groupRows, of("hidden")], [column("mixer", `${owner}.in_proj_qkvz`, "linearGroup")]),
      ...shaped([of("valueHeads", 2), of("hidden")], [column("mixer", `${owner}.in_proj_ba`, "linearGroup")]),
      column("mixer", `${owner}.in_proj_qkv`, "linearQ", "linearK", "linearV"),
      column("mixer", `${owner}.in_proj_z`, "linearV"),
      column("mixer", `${owner}.in_proj_a`, "linearHead"),
      column("mixer", `${owner}.in_proj_b`, "linearHead"),
      convolution(
        `${owner}.conv1d`,
        [
          ["keyHeads", "keyHeadDim", 2],
          ["valueHeads", "valueHeadDim"]
        ],
        "linearQ",
        "linearK",
        "linearV"
      ),
      parameter("mixer", `${owner}.A_log`, "linearHead"),
      parameter("mixer", `${owner}.dt_bias`, "linearHead"),
      ...shaped([of("valueHeadDim")], norms(`${owner}.norm`)),
      row("mixer", `${owner}.out_proj`, "linearV")
    ],
    {
      [`${owner}.in_proj_qkvz`]: "qkv z",
      [`${owner}.in_proj_qkv`]: "qkv",
      [`${owner}.in_proj_z`]: "z",
      [`${owner}.in_proj_ba`]: "b a",
      [`${owner}.in_proj_b`]: "b",
      [`${owner}.in_proj_a`]: "a"
    }
  )

export const first = (spec: ModuleSpec): EndSpec => ({ ...spec, stage: "first" })
export const last = (spec: ModuleSpec): EndSpec => ({ ...spec, stage: "last" })

const vocabulary = (structure: string, path: string): ModuleSpec =>
  module(path, structure, [out("vocabulary"), hiddenIn])

/** What stands once around the layers: a model has one for each slot. */
const end = (slot: string, spec: ModuleSpec): ModuleSpec => ({
  bias: "never",
  ...spec,
  member: { set: "ends", slots: [slot] }
})

export const embedding = (path: string): EndSpec => first(end("embedding", vocabulary("embedding", path)))
export const head = (path: string): EndSpec => last(end("head", vocabulary("head", path)))
export const headModule = (path: string): ModuleSpec => vocabulary("head", path)
export const finalNorm = (path: string): EndSpec => last(end("norm", norms(path)[0]!))

/** What a classifier or a reward model has in place of a head, by itself or between activations; a few rows, held whole. */
const scores: ReadonlyArray<EndSpec> = ["score", "score.0", "score.2"].map((path) => {
  const { bias: _, ...spec } = end("head", module(path, "head", undefined))
  return last(spec)
})

/** Where a head stands beside a language model that begins with each of the usual prefixes. */
export const usualHeads: ReadonlyArray<EndSpec> = [
  ...["lm_head", "language_model.lm_head", "model.lm_head"].map(head),
  ...scores
]

/** What names of a language model begin with: by itself, inside a model that also sees, or without its owner. */
export const usualPrefixes = [
  "model.",
  "model.language_model.",
  "language_model.model.",
  "language_model.",
  ""
] as const

/** Norms that every layer has. */
export const layerNorms = (...paths: ReadonlyArray<string>): Specs => together("layer", norms(...paths))

/** What a layer of a decoder has: norms, something that mixes positions, and something that does not. */
export const usualNeeds = [["layer"], ["attention", "mixer"], ["mlp", "experts"]] as const

const withBias = (rule: BiasRule | undefined, specs: Specs): Specs => (rule === undefined ? specs : biased(rule, specs))

/** A decoder with the usual names around its layers. */
export const decoder = (
  modules: Specs,
  around: {
    readonly ends?: ReadonlyArray<EndSpec>
    readonly norm?: string
    readonly embedding?: string
    /** Norms that every layer has, where they are not the usual two. */
    readonly norms?: ReadonlyArray<string>
    readonly normBias?: BiasRule
    readonly needs?: StackSpec["needs"]
  } = {}
): StackSpec => ({
  kind: "language",
  prefixes: usualPrefixes,
  layers: "layers.{}.",
  modules: [...withBias(around.normBias, layerNorms(...(around.norms ?? usualNorms))), ...modules],
  ends: [
    embedding(around.embedding ?? "embed_tokens"),
    ...withBias(around.normBias, [finalNorm(around.norm ?? "norm")]).map(last),
    ...wholeTensors("rotary", "rotary_emb.inv_freq").map(first),
    ...(around.ends ?? [])
  ],
  needs: around.needs ?? usualNeeds
})

export const usualNorms = ["input_layernorm", "post_attention_layernorm"] as const

/** Layers that predict further tokens, with modules of their own around a usual layer. */
export const extraLayer: Specs = [
  ...together("further", [
    ...norms("enorm", "hnorm", "shared_head.norm"),
    ...shaped([of("hidden"), of("hidden", 2)], whole("projection", "eh_proj"))
  ]),
  headModule("shared_head.head"),
  vocabulary("embedding", "embed_tokens")
]
