/**
 * How a model's tensors are cut over tensor-parallel ranks and spread over pipeline stages, by name.
 *
 * Rules are tried in order, the first match wins. A tensor that no rule matches is an error that lists it, unless the
 * rules state a default: a forgotten rule must not turn into a silent replica.
 */
import * as Schema from "effect/Schema"

/** Dimension to cut, or "replicate". Negative dimensions count from the last. */
export const ShardChoice = Schema.Union([
  Schema.Int.check(Schema.isBetween({ minimum: -64, maximum: 63 })),
  Schema.Literal("replicate")
])

export const ShardingRule = Schema.Struct({
  /** Glob over the whole name: `*` stands for any run of characters, dots included; `?` for one. */
  match: Schema.NonEmptyString,
  shard: ShardChoice,
  /** Pipeline stage of a tensor that belongs to no layer; the first by default. */
  stage: Schema.optionalKey(Schema.Literals(["first", "last"]))
})
export type ShardingRule = typeof ShardingRule.Type

export const ShardingRules = Schema.Struct({
  rules: Schema.Array(ShardingRule),
  /** What to do with a tensor that no rule matches. */
  default: Schema.optionalKey(Schema.Literal("replicate")),
  /** Where the layer number stands in a name, as `model.layers.{}.`; looked for after the start or a dot. */
  layers: Schema.optionalKey(Schema.NonEmptyString),
  /** Tensors that share the storage of another one, as a tied output head does. */
  aliases: Schema.optionalKey(Schema.Array(Schema.Struct({ name: Schema.NonEmptyString, of: Schema.NonEmptyString })))
})
export type ShardingRules = typeof ShardingRules.Type

/** Linear-time glob match over the whole text. */
export const globMatches = (pattern: string, text: string): boolean => {
  let at = 0
  let read = 0
  let star = -1
  let mark = 0
  while (read < text.length) {
    const wanted = pattern[at]
    if (wanted === "*") {
      star = at++
      mark = read
    } else if (wanted !== undefined && (wanted === "?" || wanted === text[read])) {
      at++
      read++
    } else if (star >= 0) {
      at = star + 1
      read = ++mark
    } else return false
  }
  while (pattern[at] === "*") at++
  return at === pattern.length
}

export const findRule = (rules: ShardingRules, name: string): ShardingRule | undefined =>
  rules.rules.find((rule) => globMatches(rule.match, name)) ??
  (rules.default === undefined ? undefined : { match: "*", shard: rules.default })

const usualLayers = ["layers.{}.", "h.{}.", "blocks.{}.", "block.{}."]

/** The layer number in a name; undefined for tensors outside the layers. */
export const layerNumber = (rules: ShardingRules, name: string): number | undefined => {
  for (const pattern of rules.layers === undefined ? usualLayers : [rules.layers]) {
    const [before, after = ""] = pattern.split("{}")
    for (let from = name.indexOf(before!); from >= 0; from = name.indexOf(before!, from + 1)) {
      if (from > 0 && name[from - 1] !== ".") continue
      const rest = name.slice(from + before!.length)
      const digits = /^\d+/.exec(rest)?.[0]
      if (digits !== undefined && rest.startsWith(after, digits.length)) return Number(digits)
    }
  }
  return undefined
}

/** Llama, Mistral and models with the same names: column-parallel projections on dimension 0, row-parallel on 1. */
export const llamaRules: ShardingRules = {
  layers: "model.layers.{}.",
  rules: [
    { match: "model.embed_tokens.weight", shard: 0, stage: "first" },
    ...["q_proj", "k_proj", "v_proj"].map((name) => ({ match: `model.layers.*.self_attn.${name}.*`, shard: 0 })),
    { match: "model.layers.*.self_attn.o_proj.weight", shard: 1 },
    { match: "model.layers.*.self_attn.o_proj.bias", shard: "replicate" },
    ...["gate_proj", "up_proj"].map((name) => ({ match: `model.layers.*.mlp.${name}.*`, shard: 0 })),
    { match: "model.layers.*.mlp.down_proj.weight", shard: 1 },
    { match: "model.layers.*.mlp.down_proj.bias", shard: "replicate" },
    { match: "model.layers.*layernorm.weight", shard: "replicate" },
    { match: "model.layers.*.self_attn.rotary_emb.inv_freq", shard: "replicate" },
    { match: "model.norm.weight", shard: "replicate", stage: "last" },
    { match: "lm_head.weight", shard: 0, stage: "last" }
  ]
}

/** Rules that come with the product, by name. */
export const presets: { readonly [name: string]: ShardingRules } = { llama: llamaRules }
