// SPDX-License-Identifier: Apache-2.0
/**
 * Why a plan cannot be made or is not one. Planners are pure and return this in a `Result`; every rank that plans from
 * equal rosters gets the equal error.
 */
import * as Schema from "effect/Schema"

/** What is wrong with rosters, or with a plan. */
export const PlanErrorKind = Schema.Literals([
  /** A destination parameter that no source rank holds. */
  "MissingSource",
  /** Two parameters of one rank have one global name. */
  "DuplicateName",
  /** Source and destination disagree on the whole shape. */
  "ShapeMismatch",
  /** Shards do not add up to the same length on both sides. */
  "SizeConservation",
  /** A length does not divide into the segments that the layouts ask for. */
  "NotDivisible",
  /** Packed block lists that disagree with each other or with the local shape. */
  "PartitionSizes",
  /** Explicit intervals that disagree with the local shape, overlap or leave gaps. */
  "PartitionOffsets",
  /** One side may have forgotten to declare its stride. */
  "AmbiguousStride",
  /** A group that the layout needs is not stated. */
  "MissingGroup",
  /** A rank is not a member of a group that it states as its own. */
  "NotInGroup",
  /** Members of a group state different layouts for one parameter. */
  "InconsistentGroup",
  /** Expert groups of equal size hold different experts at the same position. */
  "MissingExpertMatch",
  /** Element types that cannot be converted, or source replicas of different types. */
  "DTypeMismatch",
  /** A cut falls inside a byte of a sub-byte element type. */
  "CutInsideByte",
  /** A stated value contradicts another one. */
  "InvalidMetadata",
  /** A plan breaks its own rules: a region outside its tensor, an element written twice or never, ends that disagree. */
  "InvalidPlan"
])
export type PlanErrorKind = typeof PlanErrorKind.Type

/** Why no plan can be made, or what is wrong with one: the parameter, the ranks and a remedy. */
export class PlanError extends Schema.TaggedError<PlanError>()("PlanError", {
  kind: PlanErrorKind,
  /** Global name of the parameter; empty where the fault is not one parameter's. */
  paramName: Schema.String,
  ranks: Schema.Array(Schema.Int),
  detail: Schema.String,
  remedy: Schema.String
}) {
  override get message(): string {
    const where = [
      this.paramName === "" ? undefined : `parameter ${this.paramName}`,
      this.ranks.length === 0 ? undefined : `rank ${this.ranks.join(", ")}`
    ].filter((part) => part !== undefined)
    return `${this.kind}${where.length === 0 ? "" : ` (${where.join(", ")})`}: ${this.detail} ${this.remedy}`.trimEnd()
  }
}

/** Makes the error of this kind, about a parameter and ranks. */
export const planError = (
  kind: PlanErrorKind,
  paramName: string,
  ranks: ReadonlyArray<number>,
  detail: string,
  remedy: string
): PlanError => new PlanError({ kind, paramName, ranks: [...ranks], detail, remedy })
