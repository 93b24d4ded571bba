// SPDX-License-Identifier: Apache-2.0
/** Why a mapping does not fit a model: by kind, with the tensor and the rule. */
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"

/**
 * - `missing_source`: a rule needs a tensor that the checkpoint lacks. `unexpected_source`: it has one that no rule takes.
 * - `shape_mismatch`, `not_divisible`: lengths do not fit what is made of them.
 * - `written_twice`, `unwritten`, `out_of_bounds`: elements that two sources, no source, or none that exists would fill.
 * - `unmapped_destination`, `unmapped_source`: the other side has a tensor that no rule makes, or holds one that none reads.
 * - `conflicting_alias`: one storage under two names would be filled from tensors that differ.
 * - `no_target`, `unused_pattern`: an adapter adapts a module that the model lacks, or states a rank for none.
 * - `invalid_rule`: the rule contradicts itself. `unsupported`: nothing here can say it.
 */
export const MappingFault = Schema.Literals([
  "missing_source",
  "unexpected_source",
  "shape_mismatch",
  "not_divisible",
  "written_twice",
  "unwritten",
  "out_of_bounds",
  "unmapped_destination",
  "unmapped_source",
  "conflicting_alias",
  "no_target",
  "unused_pattern",
  "invalid_rule",
  "unsupported"
])
export type MappingFault = typeof MappingFault.Type

/** A mapping that does not fit, and what to do about it. */
export class MappingError extends Schema.TaggedError<MappingError>()("MappingError", {
  kind: MappingFault,
  /** The tensor, parameter or pattern that it is about. */
  subject: Schema.String,
  /** The rule, by the name of what it makes. */
  rule: Schema.optionalKey(Schema.String),
  detail: Schema.String,
  remedy: Schema.String
}) {
  override get message(): string {
    const rule = this.rule === undefined ? "" : ` by rule ${this.rule}`
    return `${this.kind} (${this.subject}${rule}): ${this.detail} ${this.remedy}`
  }
}

/** A failed result with the error. */
export const mappingError = (
  kind: MappingFault,
  subject: string,
  rule: string | undefined,
  detail: string,
  remedy: string
): Result.Result<never, MappingError> =>
  Result.fail(new MappingError({ kind, subject, ...(rule === undefined ? {} : { rule }), detail, remedy }))
