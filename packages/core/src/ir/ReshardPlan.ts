// SPDX-License-Identifier: Apache-2.0
/**
 * What one rank does to turn the source layout into the destination layout: its sends and receives, and the tensors
 * they refer to, so that a plan read from a file can be checked without the rosters. Plans between meshes are lowered to
 * this form too (`planner/MeshOps`); one executor carries out both. Data only; the JSON form is versioned.
 *
 * Version 1 had neither peers' types, nor reductions, nor permuted axes; its plans are still read.
 */

import * as Schema from "effect/Schema"
import { type Digest, digestOf } from "../base/Digest.ts"
import { DType } from "../base/DType.ts"
import { Rank } from "../base/Ids.ts"
import { Natural, Positive } from "../base/Numbers.ts"
import { Interval, Region, Shape } from "../base/Region.ts"
import { PartialOp } from "../layout/Placement.ts"
import { TransferOp } from "./TransferOp.ts"

/** A tensor of this rank that the plan reads or writes. */
export const PlanTensor = Schema.Struct({
  name: Schema.String,
  resolvedName: Schema.String,
  shape: Shape,
  dtype: DType,
  /** The global intervals that it holds along one dimension, in local order. Places of equally many packed blocks compare. */
  place: Schema.optionalKey(Schema.Struct({ dim: Natural, intervals: Schema.Array(Interval), blocks: Natural }))
})
export type PlanTensor = typeof PlanTensor.Type

/** A box of a source tensor to which several ranks, this one among them, hold contributions. */
export const Reduction = Schema.Struct({
  /** The source tensor, and the box in it; equal on all these ranks. */
  paramName: Schema.String,
  region: Region,
  /** Ascending. Contributions are reduced in this order, in the source's element type, once. */
  ranks: Schema.Array(Rank),
  op: PartialOp,
  /** The rank among them that reduces. */
  root: Rank
})
export type Reduction = typeof Reduction.Type

/** What one rank sends, receives and reduces. Saved as JSON of this form; `checkPlans` proves those of all ranks. */
export const ReshardPlan = Schema.Struct({
  format: Schema.Literal("tensorferry.reshard-plan"),
  version: Schema.Literals([1, 2]),
  rank: Rank,
  /** Tensors of the source side on this rank; empty where it has none. */
  sourceTensors: Schema.Array(PlanTensor),
  /** Tensors that the plan fills on this rank, aliases left out. */
  destinationTensors: Schema.Array(PlanTensor),
  /** Destination name to the destination name whose storage it shares. */
  aliases: Schema.Array(Schema.Tuple([Schema.String, Schema.String])),
  sendOps: Schema.Array(TransferOp),
  recvOps: Schema.Array(TransferOp),
  reductions: Schema.optionalKey(Schema.Array(Reduction)),
  /** Most bytes that any group of ranks reduces, equal on all ranks; 0 where it is left out. */
  reductionBytes: Schema.optionalKey(Natural),
  /** Most bytes that wait in buffers on their way from one rank to another, equal on all ranks. */
  waveBytes: Schema.optionalKey(Positive),
  /** Task ids lie below it, on all ranks. */
  taskCount: Natural,
  /** Digest of the rosters that the plan was made from, equal on all ranks. */
  rosterDigest: Schema.String
})
export type ReshardPlan = typeof ReshardPlan.Type

/** Digest of one rank's plan. */
export const planDigest = (plan: ReshardPlan): Digest => digestOf(plan)

/** The plans of all ranks of a job, as saved by the command line. */
export const ReshardPlanSet = Schema.Struct({
  format: Schema.Literal("tensorferry.reshard-plan-set"),
  version: Schema.Literal(1),
  plans: Schema.Array(ReshardPlan)
})
export type ReshardPlanSet = typeof ReshardPlanSet.Type
