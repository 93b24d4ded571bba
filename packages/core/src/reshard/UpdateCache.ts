// SPDX-License-Identifier: Apache-2.0
/**
 * Remembers updates that need no memory of their own: every send leaves from its tensor and every receive arrives in its.
 * The next update with the same plan and the same tensors is then the same list of operations, which the copy service in
 * turn knows again; for thousands of parameters, checking and slicing them again would take longer than moving them.
 *
 * Invariant: an update is known again only for the very same plan and dictionaries, while these hold the very same tensors.
 * Plans and tensors are values that nobody changes; memory that was freed is found by the copy service. What is remembered
 * goes with its plan.
 */
import type { AnyPlan } from "../planner/MeshOps.ts"
import type { CopyOp, RunPlan } from "../service/CopyService.ts"
import type { QuantizedTensor } from "../tensor/QuantizedTensor.ts"
import type { Tensor } from "../tensor/Tensor.ts"
import type { TensorDict } from "../tensor/TensorDict.ts"
import type { Writebacks } from "./Incoming.ts"

/** What one rank's update does. */
export interface Update {
  readonly ops: ReadonlyArray<CopyOp>
  readonly writebacks: Writebacks
  readonly statement: RunPlan
}

interface Side {
  readonly dict: TensorDict | undefined
  /** The dictionary's entries when the update was made. */
  readonly entries: ReadonlyArray<readonly [string, Tensor | QuantizedTensor]>
}

interface Known {
  readonly source: Side
  readonly destination: Side
  readonly waveBytes: number | undefined
  readonly update: Update
}

const sideOf = (dict: TensorDict | undefined): Side => ({ dict, entries: [...(dict?.tensors ?? [])] })

const isUnchanged = (side: Side, dict: TensorDict | undefined): boolean => {
  if (side.dict !== dict || (dict?.tensors.size ?? 0) !== side.entries.length) return false
  let at = 0
  for (const [name, tensor] of dict?.tensors ?? []) {
    const [knownName, known] = side.entries[at++]!
    if (tensor !== known || name !== knownName) return false
  }
  return true
}

const updates = new WeakMap<AnyPlan, Known>()

/** The update of an earlier call, where nothing that it follows from has changed. */
export const cachedUpdate = (
  plan: AnyPlan,
  waveBytes: number | undefined,
  source: TensorDict | undefined,
  destination: TensorDict | undefined
): Update | undefined => {
  const known = updates.get(plan)
  if (known === undefined || known.waveBytes !== waveBytes) return undefined
  return isUnchanged(known.source, source) && isUnchanged(known.destination, destination) ? known.update : undefined
}

/** For an update whose operations are on the tensors of the dictionaries alone. */
export const cacheUpdate = (
  plan: AnyPlan,
  waveBytes: number | undefined,
  source: TensorDict | undefined,
  destination: TensorDict | undefined,
  update: Update
): void => {
  updates.set(plan, { waveBytes, source: sideOf(source), destination: sideOf(destination), update })
}
