// SPDX-License-Identifier: Apache-2.0
/**
 * How a model's tensors are cut over tensor-parallel ranks and spread over pipeline stages, by name. What is known of
 * model families is in `@tensorferry/model`.
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

const Count = Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 2 ** 40 }))

/** How the tensors whose names match are cut. */
export const ShardingRule = Schema.Struct({
  /** Glob over the whole name: `*` stands for any run of characters, dots included; `?` for one. */
  match: Schema.NonEmptyString,
  shard: ShardChoice,
  /** Pipeline stage of tensors outside the layers; the first by default. */
  stage: Schema.optionalKey(Schema.Literals(["first", "last"])),
  /** Relative lengths of blocks packed along the dimension, each cut on its own: `[1, 1]` for gate and up together. */
  blocks: Schema.optionalKey(Schema.Array(Count).check(Schema.isMinLength(1))),
  /** Heads along the dimension: with more ranks than heads, `replicate` gives each rank a whole head, `rows` cuts heads. */
  heads: Schema.optionalKey(Schema.Struct({ count: Count, whenFewer: Schema.Literals(["replicate", "rows"]) })),
  /** The dimension is padded with zeros until every rank holds a multiple of this many rows. */
  padToMultiple: Schema.optionalKey(Count),
  /** Experts: the dimension that counts them in a fused tensor, or "name" where the name holds the expert's number. */
  experts: Schema.optionalKey(
    Schema.Union([Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 63 })), Schema.Literal("name")])
  )
})
export type ShardingRule = typeof ShardingRule.Type

/** Text before the number, `{}`, and what follows. */
const LayerPlace = Schema.String.check(
  Schema.isPattern(/^[^{}]+\{\}[^{}]*$/, { expected: "text, then {} where the layer number stands" })
)

/** How tensors are cut, by globs over their names; the first that matches counts. */
export const ShardingRules = Schema.Struct({
  rules: Schema.Array(ShardingRule),
  /** What to do with a tensor that no rule matches. */
  default: Schema.optionalKey(Schema.Literal("replicate")),
  /** Where the layer number stands in a name, as `model.layers.{}.`, or several such places; after the start or a dot. */
  layers: Schema.optionalKey(Schema.Union([LayerPlace, Schema.Array(LayerPlace).check(Schema.isMinLength(1))])),
  /** Tensors that share the storage of another one where the model does not hold them, as a tied output head does. */
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

/** The first rule that matches a name. */
export const findRule = (rules: ShardingRules, name: string): ShardingRule | undefined =>
  rules.rules.find((rule) => globMatches(rule.match, name)) ??
  (rules.default === undefined ? undefined : { match: "*", shard: rules.default })

const usualLayers = ["layers.{}.", "h.{}.", "blocks.{}.", "block.{}."]

/** The layer number in a name; undefined for tensors outside the layers. */
export const layerNumber = (rules: Pick<ShardingRules, "layers">, name: string): number | undefined => {
  const { layers = usualLayers } = rules
  for (const pattern of typeof layers === "string" ? [layers] : layers) {
    const [before, after = ""] = pattern.split("{}")
    for (let from = name.indexOf(before!); from >= 0; from = name.indexOf(before!, from + 1)) {
      if (from > 0 && name[from - 1] !== ".") continue
      const rest = name.slice(from + before!.length)
      const digits = /^\d{1,9}(?!\d)/.exec(rest)?.[0]
      if (digits !== undefined && rest.startsWith(after, digits.length)) return Number(digits)
    }
  }
  return undefined
}
