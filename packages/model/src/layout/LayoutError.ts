// SPDX-License-Identifier: Apache-2.0
/** Why a model cannot be laid out. */
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"

/** The tags of `LayoutError`. */
export const LayoutErrorKind = Schema.Literals([
  /** Tensors that no rule matches. */
  "NoRule",
  /** A rule does not fit the tensor that it matches. */
  "InvalidRule",
  /** Degrees of parallelism that make no layout. */
  "InvalidConfig",
  /** A shard would begin or end inside a byte. */
  "CutInsideByte",
  /** An alias without owner, or of another alias. */
  "InvalidAlias"
])
export type LayoutErrorKind = typeof LayoutErrorKind.Type

/** Names that a message lists; a model may have hundreds of thousands. */
const shownNames = 5

/** Why tensors cannot be cut as stated: the tensor, the rule and a remedy. */
export class LayoutError extends Schema.TaggedError<LayoutError>()("LayoutError", {
  kind: LayoutErrorKind,
  paramNames: Schema.Array(Schema.String),
  detail: Schema.String,
  remedy: Schema.String
}) {
  override get message(): string {
    const more = this.paramNames.length - shownNames
    const shown = this.paramNames.slice(0, shownNames).join(", ")
    const names = this.paramNames.length === 0 ? "" : ` (${more > 0 ? `${shown} and ${more} more` : shown})`
    return `${this.kind}${names}: ${this.detail} ${this.remedy}`
  }
}

/** Makes the error of this kind, about a tensor. */
export const layoutError = (
  kind: LayoutErrorKind,
  paramNames: ReadonlyArray<string>,
  detail: string,
  remedy: string
): Result.Result<never, LayoutError> =>
  Result.fail(new LayoutError({ kind, paramNames: [...paramNames], detail, remedy }))
