// SPDX-License-Identifier: Apache-2.0
/**
 * Why a mesh, its placements or a route between two meshes cannot be. Made from what all ranks state alike, so every rank
 * gets the equal error.
 */
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"

/** What is wrong with a mesh, its placements, or a route between two meshes. */
export const MeshErrorKind = Schema.Literals([
  /** A text that does not follow the grammar. */
  "InvalidText",
  /** No dimensions, or one without ranks. */
  "EmptyMesh",
  /** More ranks than the group has, or ranks outside it. */
  "OutsideGroup",
  /** One rank at two places. */
  "RepeatedRank",
  /** Dimensions, names, ranks or placements whose numbers do not fit together. */
  "CountMismatch",
  /** A placement names a tensor dimension that the tensor does not have. */
  "DimOutOfRange",
  /** A placement that says nothing sensible. */
  "InvalidPlacement",
  /** A target that is to hold unreduced contributions. */
  "PartialTarget",
  /** Contributions under different reductions, whose order changes the result. */
  "MixedReductions",
  /** Numbers that exceed what can be counted exactly. */
  "TooLarge"
])
export type MeshErrorKind = typeof MeshErrorKind.Type

/** Why a mesh, a placement or a tensor's layout over it is not possible. */
export class MeshError extends Schema.TaggedError<MeshError>()("MeshError", {
  kind: MeshErrorKind,
  ranks: Schema.Array(Schema.Int),
  detail: Schema.String,
  remedy: Schema.String
}) {
  override get message(): string {
    const where = this.ranks.length === 0 ? "" : ` (rank ${this.ranks.join(", ")})`
    return `${this.kind}${where}: ${this.detail} ${this.remedy}`
  }
}

/** Makes the error of this kind, about these ranks. */
export const meshError = (
  kind: MeshErrorKind,
  detail: string,
  remedy: string,
  ranks: ReadonlyArray<number> = []
): Result.Result<never, MeshError> => Result.fail(new MeshError({ kind, detail, remedy, ranks: [...ranks] }))
