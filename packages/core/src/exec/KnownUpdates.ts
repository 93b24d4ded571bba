/**
 * Remembers updates that need no memory of their own: every send leaves from its tensor and every receive arrives in its.
 * The next update with the same plan and the same tensors is then the same list of operations, which the copy service in
 * turn knows again; for thousands of parameters, checking and slicing them anew would take longer than moving them.
 *
 * Invariant: an update is known again only for the very same plan and dictionaries, while these hold the very same tensors
 * and none of their memory was freed. Plans and tensors are values that nobody changes. What is remembered goes with its plan.
 */
import type { ReshardPlan } from "../ir/ReshardPlan.ts"
import type { CopyOp } from "../service/CopyService.ts"
import { isQuantized, type QuantizedTensor } from "../tensor/QuantizedTensor.ts"
import type { Tensor } from "../tensor/Tensor.ts"
import type { TensorDict } from "../tensor/TensorDict.ts"
import type { Writeback } from "./Writeback.ts"

/** What one rank's update does. */
export interface Update {
  readonly ops: ReadonlyArray<CopyOp>
  readonly writebacks: ReadonlyArray<Writeback>
}

interface Side {
  readonly dict: TensorDict | undefined
  /** The dictionary's entries when the update was made. */
  readonly entries: ReadonlyArray<readonly [string, Tensor | QuantizedTensor]>
}

interface Known {
  readonly source: Side
  readonly destination: Side
  readonly update: Update
}

const sideOf = (dict: TensorDict | undefined): Side => ({ dict, entries: [...(dict?.tensors ?? [])] })

const isFreed = (tensor: Tensor | QuantizedTensor): boolean =>
  isQuantized(tensor) ? tensor.data.storage.isFreed() || tensor.scale.storage.isFreed() : tensor.storage.isFreed()

const isUnchanged = (side: Side, dict: TensorDict | undefined): boolean => {
  if (side.dict !== dict || (dict?.tensors.size ?? 0) !== side.entries.length) return false
  if (dict === undefined) return true
  for (const [name, tensor] of side.entries) {
    if (dict.tensors.get(name) !== tensor || isFreed(tensor)) return false
  }
  return true
}

const updates = new WeakMap<ReshardPlan, Known>()

export const knownUpdate = (
  plan: ReshardPlan,
  source: TensorDict | undefined,
  destination: TensorDict | undefined
): Update | undefined => {
  const known = updates.get(plan)
  if (known === undefined) return undefined
  return isUnchanged(known.source, source) && isUnchanged(known.destination, destination) ? known.update : undefined
}

/** For an update whose operations are on the tensors of the dictionaries alone. */
export const rememberUpdate = (
  plan: ReshardPlan,
  source: TensorDict | undefined,
  destination: TensorDict | undefined,
  update: Update
): void => {
  updates.set(plan, { source: sideOf(source), destination: sideOf(destination), update })
}
