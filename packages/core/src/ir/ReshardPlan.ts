// SPDX-License-Identifier: Apache-2.0
/**
 * What one rank does to turn the source layout into the destination layout: its sends and receives, and the tensors
 * they refer to, so that a plan read from a file can be checked without the rosters. Data only; the JSON form is
 * versioned.
 */

import * as Schema from "effect/Schema"
import { type Digest, digestOf } from "../base/Digest.ts"
import { DType } from "../base/DType.ts"
import { Rank } from "../base/Ids.ts"
import { Natural } from "../base/Numbers.ts"
import { Shape } from "../base/Region.ts"
import { TransferOp } from "./TransferOp.ts"

/** A tensor of this rank that the plan reads or writes. */
export const PlanTensor = Schema.Struct({
  name: Schema.String,
  resolvedName: Schema.String,
  shape: Shape,
  dtype: DType
})
export type PlanTensor = typeof PlanTensor.Type

export const ReshardPlan = Schema.Struct({
  format: Schema.Literal("tensorferry.reshard-plan"),
  version: Schema.Literal(1),
  rank: Rank,
  /** Tensors of the source side on this rank; empty where it has none. */
  sourceTensors: Schema.Array(PlanTensor),
  /** Tensors that the plan fills on this rank, aliases left out. */
  destinationTensors: Schema.Array(PlanTensor),
  /** Destination name to the destination name whose storage it shares. */
  aliases: Schema.Array(Schema.Tuple([Schema.String, Schema.String])),
  sendOps: Schema.Array(TransferOp),
  recvOps: Schema.Array(TransferOp),
  /** Number of task ids in the whole job. */
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
