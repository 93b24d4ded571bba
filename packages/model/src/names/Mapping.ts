// SPDX-License-Identifier: Apache-2.0
/**
 * The language in which names and fusions are said: for each tensor of the other side, of which tensors of the checkpoint it
 * is made. Plain data, as in a `--map` file, or by the functions below.
 *
 * Names are patterns. `{layer}` stands for a number and `{owner...}` for any run of names between dots; what a pattern binds
 * in the sources, it may use in the target. `{layer.local}` is the number counted within the rank.
 *
 * Order: parts are taken as the rank holds them, cut as the model's structure says, then joined. `whole` takes them uncut.
 */

import { DType } from "@tensorferry/core/base/DType"
import { Natural, Positive } from "@tensorferry/core/base/Numbers"
import * as Schema from "effect/Schema"
import { MappingFault } from "./MappingError.ts"

/** A length: a number, or what the model's config calls so. */
export const Count = Schema.Union([
  Positive,
  Schema.Literals([
    "layers",
    "hidden",
    "heads",
    "kvHeads",
    "headDim",
    "ssmHeads",
    "ssmHeadDim",
    "ssmGroups",
    "ssmState",
    "keyHeads",
    "keyHeadDim",
    "valueHeads",
    "valueHeadDim"
  ])
])
export type Count = typeof Count.Type

/** How a tensor is made. A text is the name of a tensor of the checkpoint. */
export type Recipe =
  | string
  /** Behind each other along `dim`, the first by default. */
  | { readonly concat: ReadonlyArray<Recipe>; readonly dim?: number }
  /** Group by group the share of each, along the first dimension. */
  | { readonly interleave: ReadonlyArray<Recipe>; readonly groups: Count }
  /** One for each value of a variable, along a new first dimension, in the order in which the rank holds them. */
  | { readonly stack: Recipe; readonly over: string }
  /** The one of a stack whose number a variable is. */
  | { readonly unstack: Recipe; readonly at: string }
  /** One part of what is packed along `dim`: parts are as long as `lengths` are to each other. */
  | {
      readonly part: Recipe
      readonly index: number
      readonly lengths: ReadonlyArray<Count>
      readonly groups?: Count
      readonly dim?: number
    }
  /** Dimension `k` of the result is dimension `axes[k]`. */
  | { readonly transpose: Recipe; readonly axes: ReadonlyArray<number> }
  /** The dimension as two, the second of length `inner`. */
  | { readonly split: Recipe; readonly dim: number; readonly inner: Count }
  /** Two neighbouring dimensions as one. */
  | { readonly merge: Recipe; readonly dim: number }
  | { readonly squeeze: Recipe; readonly dim: number }
  | { readonly expand: Recipe; readonly dim: number }
  /** Zeros behind a dimension, to a multiple of a length. */
  | { readonly pad: Recipe; readonly multipleOf: number; readonly dim?: number }
  /** Parts inside are not cut. */
  | { readonly whole: Recipe }
  /** Joined in full, then cut into equal rows; uneven: in shares of the rounded-up length, the last ranks what is left. */
  | { readonly cut: Recipe; readonly dim?: number; readonly uneven?: true }
  /** The first rank of those that cut the model holds it, the others zeros. */
  | { readonly onFirst: Recipe }
  /** Every value plus a number. */
  | { readonly add: number; readonly to: Recipe }
  /** `-exp(x)` of every value. */
  | { readonly negExp: Recipe }
  /** The first that the checkpoint has. */
  | { readonly either: ReadonlyArray<Recipe> }

const recipe: Schema.Codec<Recipe> = Schema.suspend((): Schema.Codec<Recipe> => Recipe)
const recipes = Schema.Array(recipe).check(Schema.isMinLength(1), Schema.isMaxLength(1024))
const counts = Schema.Array(Count).check(Schema.isMinLength(1), Schema.isMaxLength(1024))
const Dim = Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 63 }))
const optionalDim = Schema.optionalKey(Dim)

/** How one tensor of a system is made of another's: operations over regions, as data. */
export const Recipe: Schema.Codec<Recipe> = Schema.Union([
  Schema.String,
  Schema.Struct({ concat: recipes, dim: optionalDim }),
  Schema.Struct({ interleave: recipes, groups: Count }),
  Schema.Struct({ stack: recipe, over: Schema.String }),
  Schema.Struct({ unstack: recipe, at: Schema.String }),
  Schema.Struct({ part: recipe, index: Natural, lengths: counts, groups: Schema.optionalKey(Count), dim: optionalDim }),
  Schema.Struct({ transpose: recipe, axes: Schema.Array(Dim).check(Schema.isMaxLength(64)) }),
  Schema.Struct({ split: recipe, dim: Dim, inner: Count }),
  Schema.Struct({ merge: recipe, dim: Dim }),
  Schema.Struct({ squeeze: recipe, dim: Dim }),
  Schema.Struct({ expand: recipe, dim: Dim }),
  Schema.Struct({ pad: recipe, multipleOf: Positive, dim: optionalDim }),
  Schema.Struct({ whole: recipe }),
  Schema.Struct({ cut: recipe, dim: optionalDim, uneven: Schema.optionalKey(Schema.Literal(true)) }),
  Schema.Struct({ onFirst: recipe }),
  Schema.Struct({ add: Schema.Finite, to: recipe }),
  Schema.Struct({ negExp: recipe }),
  Schema.Struct({ either: recipes })
])

/** One kind of tensor of the other side. It exists where the checkpoint has any of its sources; then it must have all. */
export const MakeRule = Schema.Struct({
  name: Schema.String,
  from: Recipe,
  /** Its type, where that is not the checkpoint's. */
  dtype: Schema.optionalKey(DType),
  /** Numbers that variables may stand for, where not all. */
  only: Schema.optionalKey(Schema.Record(Schema.String, Schema.Array(Natural).check(Schema.isMaxLength(65_536)))),
  /** Its sources are still there for later rules. */
  also: Schema.optionalKey(Schema.Literal(true)),
  /** The other side has it for all numbers of `only`: a checkpoint with none of its sources is not enough. */
  needed: Schema.optionalKey(Schema.Literal(true)),
  /** Pipeline stages that hold it, where these are not those of its sources. */
  stages: Schema.optionalKey(Schema.Literals(["first", "last", "ends", "all"]))
})
export type MakeRule = typeof MakeRule.Type

/** Another name of the storage of a tensor that a rule makes, where the rule makes it. */
export const AliasRule = Schema.Struct({ alias: Schema.String, of: Schema.String })
export type AliasRule = typeof AliasRule.Type

/** Tensors of the checkpoint that the other side does not have. */
export const IgnoreRule = Schema.Struct({ ignore: Schema.String })
export type IgnoreRule = typeof IgnoreRule.Type

/** Tensors of the checkpoint that the other side cannot have, and what it lacks for them. */
export const RefuseRule = Schema.Struct({
  refuse: Schema.String,
  kind: MappingFault,
  /** What is named: the tensor itself where it is left out. */
  as: Schema.optionalKey(Schema.String),
  why: Schema.String
})
export type RefuseRule = typeof RefuseRule.Type

/** What a mapping says of one kind of tensor. */
export const MappingRule = Schema.Union([MakeRule, AliasRule, IgnoreRule, RefuseRule])
export type MappingRule = typeof MappingRule.Type

/**
 * A count that a degree has to fit, beyond what cuts of the tensors ask for. `divides`: the degree divides the count.
 * `divides or one`: or the count is one, which all ranks have. `at most`: the degree is no larger.
 */
export const Limit = Schema.Struct({
  subject: Schema.String,
  what: Schema.String,
  count: Positive,
  by: Schema.Literals(["tp", "pp", "ep", "etp"]),
  rule: Schema.Literals(["divides", "divides or one", "at most"]),
  /** What is not held to it where a placement states this. */
  unless: Schema.optionalKey(Schema.Literals(["vocabulary", "stages", "experts"])),
  /** They are rows of the vocabulary, behind which a placement states padding. */
  isPadded: Schema.optionalKey(Schema.Literal(true)),
  kind: Schema.optionalKey(MappingFault)
})
export type Limit = typeof Limit.Type

/** A mapping. A tensor that a rule takes is not there for later ones. */
export const Mapping = Schema.Struct({
  rules: Schema.Array(MappingRule).check(Schema.isMaxLength(65_536)),
  /** What becomes of tensors that no rule takes: they keep their names, or the mapping is refused. */
  others: Schema.Literals(["keep", "refuse"]),
  /** Every rank of a stage has tensors whole until a rule cuts them; else they are cut as the model's structure says. */
  held: Schema.optionalKey(Schema.Literal("whole")),
  limits: Schema.optionalKey(Schema.Array(Limit).check(Schema.isMaxLength(1024)))
})
export type Mapping = typeof Mapping.Type

/** A rule that makes a tensor. */
export const make = (name: string, from: Recipe, more: Omit<MakeRule, "name" | "from"> = {}): MakeRule => ({
  name,
  from,
  ...more
})
/** Parts behind each other, along the first dimension. */
export const concat = (...parts: ReadonlyArray<Recipe>): Recipe => ({ concat: parts })
/** One part for each number of a variable. */
export const stack = (over: string, from: Recipe): Recipe => ({ stack: from, over })
/** Group by group the share of each part. */
export const interleave = (groups: Count, ...parts: ReadonlyArray<Recipe>): Recipe => ({ interleave: parts, groups })
/** Dimensions in another order. */
export const transpose = (from: Recipe, ...axes: ReadonlyArray<number>): Recipe => ({ transpose: from, axes })
/** A rule that leaves tensors out. */
export const ignore = (name: string): IgnoreRule => ({ ignore: name })
/** A rule for what the other side cannot have. */
export const refuseTensors = (refuse: string, more: Omit<RefuseRule, "refuse">): RefuseRule => ({ refuse, ...more })
/** A rule that names a storage twice. */
export const alias = (name: string, of: string): AliasRule => ({ alias: name, of })
