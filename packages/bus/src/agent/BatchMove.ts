// SPDX-License-Identifier: Apache-2.0
/**
 * What a batch does in either direction: a plan, and this rank's tensors as the plan names them. Or why it cannot go that
 * way, which all ranks find alike.
 */

import type { AnyPlan } from "@tensorferry/core/planner/MeshOps"
import type { ExecuteOptions } from "@tensorferry/core/reshard/executeReshardPlan"
import type { Device } from "@tensorferry/core/tensor/Device"
import type { QuantizedTensor } from "@tensorferry/core/tensor/QuantizedTensor"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import { type TensorDict, tensorDict } from "@tensorferry/core/tensor/TensorDict"
import * as Result from "effect/Result"
import type { BusError, BusReason } from "../BusError.ts"
import { type BatchStatement, plansOf } from "./BatchPlan.ts"
import type { Pair } from "./Held.ts"
import { formTransform } from "./QuantizedHeld.ts"
import type { PairMembers } from "./Registration.ts"

/** A batch in one direction. */
export interface BatchMove {
  readonly plan: AnyPlan
  readonly tensors: TensorDict
  readonly options: ExecuteOptions
  /** No rank has anything to move. All ranks find the same: it follows from what all stated. */
  readonly movesNothing: boolean
}

/** A direction in which a batch cannot go. */
export interface NoMove {
  readonly refused: Extract<BusReason["_tag"], "PartialTarget" | "BatchMismatch">
  readonly detail: string
  readonly remedy: string
}

/** From side 0 to side 1, and back. */
export type BatchMoves = readonly [BatchMove | NoMove, BatchMove | NoMove]

/** Moves between meshes. `tensors` go as this rank's statement lists them. */
export const meshMoves = (
  batch: string,
  { members, rank }: Pick<Pair, "members" | "rank">,
  membersOf: (pair: string) => PairMembers,
  statements: ReadonlyArray<BatchStatement>,
  tensors: ReadonlyArray<Tensor | QuantizedTensor>,
  device: Device
): Result.Result<BatchMoves, BusError> =>
  Result.map(plansOf(batch, membersOf, statements, rank, device), ({ names, order, plans, quantized }) => {
    const options: ExecuteOptions = quantized.size === 0 ? {} : { transform: formTransform(quantized) }
    const dict = tensorDict(names.map((name, at) => [name, tensors[order[at]!]!] as const))
    const moveTo = (side: 0 | 1): BatchMove | NoMove => {
      const plan = plans[side === 0 ? 1 : 0]
      return plan === undefined
        ? {
            refused: "PartialTarget",
            detail: `Side ${members.sides[side].name} of batch ${batch} holds contributions and cannot be a target.`,
            remedy: "Transfer the other way, or make pairs whose target is sharded or replicated."
          }
        : { plan, tensors: dict, options, movesNothing: plan.tensors.every(({ shape }) => shape.includes(0)) }
    }
    return [moveTo(1), moveTo(0)]
  })
