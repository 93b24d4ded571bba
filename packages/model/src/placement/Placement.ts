// SPDX-License-Identifier: Apache-2.0
/**
 * Where parts of a model lie, as far as degrees of parallelism leave a choice: layers on stages, experts on ranks, heads on
 * more ranks than there are, and the vocabulary. Plain data, written in layout files and kept in manifests.
 */
import * as Schema from "effect/Schema"

const Count = Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 2 ** 20 }))
const Positive = Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 2 ** 20 }))

/**
 * Layers of the language model per stage. `first`, `last` and `middle` say which stages get one more where layers do not
 * divide (`middle`: the last stage none, those before it first). Numbers are counts per stage; lists name the layers.
 */
export const StageChoice = Schema.Union([
  Schema.Literals(["first", "last", "middle"]),
  Schema.Array(Count).check(Schema.isMinLength(1), Schema.isMaxLength(65_536)),
  Schema.Array(Schema.Array(Count)).check(Schema.isMinLength(1), Schema.isMaxLength(65_536))
])
export type StageChoice = typeof StageChoice.Type

/** Per expert-parallel rank, the experts that it holds, in order; an expert may be on several ranks. */
const ExpertMap = Schema.Array(Schema.Array(Count)).check(Schema.isMinLength(1), Schema.isMaxLength(65_536))

/**
 * `linear`: runs, the first ranks one more where experts do not divide. `ceil`: runs of the rounded-up share, the last ranks
 * what is left. `round_robin`: expert by expert. A map states it, for all layers or by the layer's number.
 */
export const ExpertChoice = Schema.Union([
  Schema.Literals(["linear", "ceil", "round_robin"]),
  ExpertMap,
  Schema.Record(Schema.String, ExpertMap)
])
export type ExpertChoice = typeof ExpertChoice.Type

/** Where stages, experts and vocabulary rows lie, where they do not follow from the degrees alone. */
export const Placement = Schema.Struct({
  stages: Schema.optionalKey(StageChoice),
  /** Runs of layers on every stage; more than one where stages are visited several times. */
  virtual: Schema.optionalKey(Positive),
  experts: Schema.optionalKey(ExpertChoice),
  /** With more ranks than key-value heads: a whole head on each, or refused. */
  kvHeads: Schema.optionalKey(Schema.Literals(["replicate", "rows"])),
  /** The vocabulary is padded with zeros to a multiple, of the whole or of every rank's share. */
  vocabulary: Schema.optionalKey(Schema.Struct({ multipleOf: Positive, of: Schema.Literals(["whole", "share"]) }))
})
export type Placement = typeof Placement.Type

/** What is stated first takes precedence, field by field. */
export const mergePlacements = (placements: ReadonlyArray<Placement>): Placement =>
  Object.assign({}, ...[...placements].reverse())
