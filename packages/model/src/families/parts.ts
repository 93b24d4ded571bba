// SPDX-License-Identifier: Apache-2.0
/** Words in which families are written: projections by what they are cut along, and the modules that most of them share. */
import type { Dim, EndSpec, ModuleSpec, StackSpec } from "../structure/Family.ts"
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

export const norms = (...paths: ReadonlyArray<string>): ReadonlyArray<ModuleSpec> => whole("norm", ...paths)

/** Query, key, value and output projections, each by itself. */
export const attention = (owner: string, output = "o_proj"): ReadonlyArray<ModuleSpec> => [
  column("attention", `${owner}.q_proj`, "q"),
  column("attention", `${owner}.k_proj`, "k"),
  column("attention", `${owner}.v_proj`, "v"),
  row("attention", `${owner}.${output}`, "o"),
  ...wholeTensors("rotary", `${owner}.rotary_emb.inv_freq`)
]

/** Query, key and value in one projection, in this order. */
export const packedAttention = (owner: string): ReadonlyArray<ModuleSpec> => [
  column("attention", `${owner}.qkv_proj`, "q", "k", "v"),
  row("attention", `${owner}.o_proj`, "o")
]

/** Norms of queries and keys inside a head. */
export const headNorms = (owner: string, query = "q_norm", key = "k_norm"): ReadonlyArray<ModuleSpec> =>
  norms(`${owner}.${query}`, `${owner}.${key}`)

export const mlp = (owner: string, structure = "mlp"): ReadonlyArray<ModuleSpec> => [
  column(structure, `${owner}.gate_proj`, "gate"),
  column(structure, `${owner}.up_proj`, "up"),
  row(structure, `${owner}.down_proj`, "down")
]

/** Gate and up in one projection, gate first. */
export const packedMlp = (
  owner: string,
  structure = "mlp",
  gateUp = "gate_up_proj",
  down = "down_proj"
): ReadonlyArray<ModuleSpec> => [
  column(structure, `${owner}.${gateUp}`, "gate", "up"),
  row(structure, `${owner}.${down}`, "down")
]

/** Experts one by one. */
export const listedExperts = (
  owner: string,
  gate = "gate_proj",
  up = "up_proj",
  down = "down_proj"
): ReadonlyArray<ModuleSpec> => [
  column("experts", `${owner}.experts.{}.${gate}`, "gate"),
  column("experts", `${owner}.experts.{}.${up}`, "up"),
  row("experts", `${owner}.experts.{}.${down}`, "down")
]

/** All experts in one tensor each, rows of the output before those of the input. */
export const stackedExperts = (owner: string): ReadonlyArray<ModuleSpec> => [
  {
    path: `${owner}.experts.gate_up_proj`,
    as: "tensor",
    structure: "experts",
    dims: [experts, out("gate", "up"), hiddenIn]
  },
  { path: `${owner}.experts.up_proj`, as: "tensor", structure: "experts", dims: [experts, out("up"), hiddenIn] },
  { path: `${owner}.experts.down_proj`, as: "tensor", structure: "experts", dims: [experts, hiddenOut, input("down")] }
]

/** All experts in one tensor each, input first; with `each` of 2 gate and up take turns. */
export const stackedInputFirst = (owner: string, each = 1): ReadonlyArray<ModuleSpec> => {
  const gateUp: Dim = each === 1 ? out("gate", "up") : { ...out("gate"), each }
  return [
    { path: `${owner}.experts.gate_up_proj`, as: "tensor", structure: "experts", dims: [experts, hiddenIn, gateUp] },
    {
      path: `${owner}.experts.down_proj`,
      as: "tensor",
      structure: "experts",
      dims: [experts, input("down"), hiddenOut]
    }
  ]
}

/** Stacks of experts in modules, as GraniteMoE has them. */
export const stackedModules = (gateUp: string, down: string): ReadonlyArray<ModuleSpec> => [
  module(gateUp, "experts", [experts, out("gate", "up"), hiddenIn]),
  module(down, "experts", [experts, hiddenOut, input("down")])
]

export const router = (...paths: ReadonlyArray<string>): ReadonlyArray<ModuleSpec> => whole("router", ...paths)

/** Latent attention: what leads to the latents is whole, what leads out of them is cut by heads. */
export const latentAttention = (owner: string): ReadonlyArray<ModuleSpec> => [
  ...whole("latent", `${owner}.q_a_proj`, `${owner}.kv_a_proj_with_mqa`),
  ...norms(`${owner}.q_a_layernorm`, `${owner}.kv_a_layernorm`),
  column("attention", `${owner}.q_proj`, "latentHead"),
  columnOfLatent("attention", `${owner}.q_b_proj`, "latentHead"),
  columnOfLatent("attention", `${owner}.kv_b_proj`, "latentHead"),
  row("attention", `${owner}.o_proj`, "o"),
  ...wholeTensors("rotary", `${owner}.rotary_emb.inv_freq`)
]

/** A Mamba-2 mixer: gate, input, groups and steps in one projection. */
export const mamba2 = (owner: string): ReadonlyArray<ModuleSpec> => [
  column("mixer", `${owner}.in_proj`, "z", "x", "B", "C", "dt"),
  vector("mixer", `${owner}.conv1d`, "x", "B", "C"),
  parameter("mixer", `${owner}.A_log`, "dt"),
  parameter("mixer", `${owner}.D`, "dt"),
  parameter("mixer", `${owner}.dt_bias`, "dt"),
  vector("mixer", `${owner}.norm`, "x"),
  row("mixer", `${owner}.out_proj`, "x")
]

/** A gated delta net; its projections are packed in one of two ways. */
export const deltaNet = (owner: string): ReadonlyArray<ModuleSpec> => [
  column("mixer", `${owner}.in_proj_qkvz`, "linearGroup"),
  column("mixer", `${owner}.in_proj_ba`, "linearGroup"),
  column("mixer", `${owner}.in_proj_qkv`, "linearQ", "linearK", "linearV"),
  column("mixer", `${owner}.in_proj_z`, "linearV"),
  column("mixer", `${owner}.in_proj_a`, "linearHead"),
  column("mixer", `${owner}.in_proj_b`, "linearHead"),
  vector("mixer", `${owner}.conv1d`, "linearQ", "linearK", "linearV"),
  parameter("mixer", `${owner}.A_log`, "linearHead"),
  parameter("mixer", `${owner}.dt_bias`, "linearHead"),
  ...norms(`${owner}.norm`),
  row("mixer", `${owner}.out_proj`, "linearV")
]

export const first = (spec: ModuleSpec): EndSpec => ({ ...spec, stage: "first" })
export const last = (spec: ModuleSpec): EndSpec => ({ ...spec, stage: "last" })

const vocabulary = (structure: string, path: string): ModuleSpec =>
  module(path, structure, [out("vocabulary"), hiddenIn])

export const embedding = (path: string): EndSpec => first(vocabulary("embedding", path))
export const head = (path: string): EndSpec => last(vocabulary("head", path))
export const headModule = (path: string): ModuleSpec => vocabulary("head", path)

/** Where a head stands beside a language model that begins with each of the usual prefixes. */
export const usualHeads: ReadonlyArray<EndSpec> = ["lm_head", "language_model.lm_head", "model.lm_head"].map(head)

/** What names of a language model begin with: by itself, inside a model that also sees, or without its owner. */
export const usualPrefixes = [
  "model.",
  "model.language_model.",
  "language_model.model.",
  "language_model.",
  ""
] as const

/** A decoder with the usual names around its layers. */
export const decoder = (
  modules: ReadonlyArray<ModuleSpec>,
  around: { readonly ends?: ReadonlyArray<EndSpec>; readonly norm?: string; readonly embedding?: string } = {}
): StackSpec => ({
  kind: "language",
  prefixes: usualPrefixes,
  layers: "layers.{}.",
  modules: [...norms("input_layernorm", "post_attention_layernorm"), ...modules],
  ends: [
    embedding(around.embedding ?? "embed_tokens"),
    ...norms(around.norm ?? "norm").map(last),
    ...wholeTensors("rotary", "rotary_emb.inv_freq").map(first),
    ...(around.ends ?? [])
  ]
})

/** Layers that predict further tokens, with modules of their own around a usual layer. */
export const extraLayer: ReadonlyArray<ModuleSpec> = [
  ...norms("enorm", "hnorm", "shared_head.norm"),
  ...whole("projection", "eh_proj"),
  headModule("shared_head.head"),
  vocabulary("embedding", "embed_tokens")
]
