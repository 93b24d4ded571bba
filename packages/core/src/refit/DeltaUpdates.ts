// SPDX-License-Identifier: Apache-2.0
/**
 * Updates of changes as a session sees them: what is asked of them, and what they did. `makeDeltaUpdates` of
 * @tensorferry/model makes them from a plan.
 */
import type * as Effect from "effect/Effect"
import type { AnyPlan } from "../planner/MeshOps.ts"
import type { ReshardError } from "../reshard/ReshardError.ts"
import type { CopyError, CopyReport, CopyService } from "../service/CopyService.ts"
import type { ProcessGroup } from "../service/ProcessGroup.ts"
import type { TensorEngine } from "../service/TensorEngine.ts"
import type { TensorDict } from "../tensor/TensorDict.ts"

/** What an update is about. */
export interface DeltaStep {
  /** The name of the version that it leads to, the same on all ranks. */
  readonly version: string
  /** The version that this rank's destination holds; by default that of its last update. Null asks for all regions whole. */
  readonly holds?: string | null
  /** Tensors of this rank's destination that hold it no more: all regions of these are sent whole. */
  readonly lost?: ReadonlyArray<string>
}

/** What an update did on this rank. */
export interface DeltaReport {
  readonly version: string
  /** Regions that this rank sent whole, by their changes, and not at all because nothing changed. */
  readonly whole: number
  readonly listed: number
  readonly unchanged: number
  readonly changedElements: number
  /** Regions of any rank that were sent whole again, because the destination held something else, or a list was damaged. */
  readonly repaired: number
  /** Bytes of copies on this rank. */
  readonly baselineBytes: number
  readonly copy: CopyReport
}

/** Why an update ends on a rank. */
export type DeltaFailure = ReshardError | CopyError

/** Updates by one plan that send only what changed; every rank of the plan makes its own. */
export interface DeltaUpdates {
  /** What a whole update moves. */
  readonly plan: AnyPlan
  /** The version that this rank's destination holds, as far as is known. */
  readonly holds: () => string | undefined
  /**
   * States without moving anything that the source given, and this rank's destination, hold a version: as where both were
   * loaded from it. Each rank states it for itself.
   */
  readonly assume: (version: string, source?: TensorDict) => Effect.Effect<void, ReshardError>
  /** Brings the destination to a version by what changed since the one it holds; collective. */
  readonly update: (
    step: DeltaStep,
    source?: TensorDict,
    destination?: TensorDict
  ) => Effect.Effect<DeltaReport, DeltaFailure, CopyService | ProcessGroup | TensorEngine>
}
