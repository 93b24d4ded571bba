// SPDX-License-Identifier: Apache-2.0
/**
 * What a sender keeps to know what changed: a copy of each source tensor as it was sent last, within a stated budget, and
 * searches of regions against it.
 *
 * Invariant: a copy is advanced only to what was sent and taken. A tensor for which the budget has no room has no copy, and
 * its regions are always sent whole.
 */

import { bitsOf, isSubByte } from "@tensorferry/core/base/DType"
import { elementCount, formatRegion } from "@tensorferry/core/base/Region"
import type { ReshardPlan } from "@tensorferry/core/ir/ReshardPlan"
import type { TransferOp } from "@tensorferry/core/ir/TransferOp"
import { engineFailed } from "@tensorferry/core/reshard/Buffers"
import { plainView } from "@tensorferry/core/reshard/PlanTensors"
import { type ReshardError, reshardError } from "@tensorferry/core/reshard/ReshardError"
import { TensorEngine, type TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import { type Changes, changeLimit, firstChanges } from "@tensorferry/core/tensor/Changes"
import { type Tensor, tensorByteLength } from "@tensorferry/core/tensor/Tensor"
import { resolveTensor, type TensorDict } from "@tensorferry/core/tensor/TensorDict"
import * as Effect from "effect/Effect"
import * as Scope from "effect/Scope"

/** A region of a source tensor, as it travels, beside what was sent of it last. */
export interface ScannedRegion {
  readonly view: Tensor
  readonly before: Tensor | undefined
  /** What changed since; undefined where all of it is sent. */
  readonly changes: Changes | undefined
}

export interface ChangeScan {
  /** The regions of these operations, each searched once. Lists live in the scope. */
  readonly scan: (
    ops: ReadonlyArray<TransferOp>,
    source: TensorDict | undefined,
    isKnown: (op: TransferOp) => boolean
  ) => Effect.Effect<ReadonlyMap<TransferOp, ScannedRegion>, ReshardError, Scope.Scope>
  /** What was sent is what will be compared with. */
  readonly advance: (regions: Iterable<ScannedRegion>) => Effect.Effect<void, ReshardError>
  /** Bytes of all copies. */
  readonly bytes: () => number
}

/** Whether changes of a region can be listed. */
const isListed = ({ dtype, shape }: Tensor): boolean => !isSubByte(dtype) && elementCount(shape) <= changeLimit

/** Of a change beside its element, as it travels. */
const positionBytes = 4

/** Room for what changed the first time: later as much as before, and some more. */
const firstShare = 1 / 32

/** Scans of one rank's plan; copies live in the scope in which this is called. */
export const makeChangeScan = Effect.fnUntraced(function* (
  plan: ReshardPlan,
  baselineBytes: number
): Effect.fn.Return<ChangeScan, never, TensorEngine | Scope.Scope> {
  const engine: TensorEngineShape = yield* TensorEngine
  const scope = yield* Effect.scope
  const { rank } = plan
  const copies = new Map<string, Tensor>()
  /** By region, how many elements changed at the last search. */
  const lastCounts = new Map<string, number>()
  let bytes = 0

  const failed =
    (op: string) =>
    <A, E extends Parameters<typeof engineFailed>[2], R>(effect: Effect.Effect<A, E, R>) =>
      Effect.mapError(effect, (error) => engineFailed(rank, op, error))

  const listFor = (tensor: Tensor, count: number) =>
    Effect.all({
      positions: failed("allocate")(engine.allocate("uint32", [count], tensor.device)),
      values: failed("allocate")(engine.allocate(tensor.dtype, [count], tensor.device))
    })

  /** What changed in a region, unless all of it takes fewer bytes. */
  const search = Effect.fnUntraced(function* (key: string, before: Tensor, view: Tensor) {
    const elements = elementCount(view.shape)
    const elementBytes = bitsOf(view.dtype) / 8
    const most = Math.floor((elements * elementBytes) / (positionBytes + elementBytes))
    const expected = Math.ceil((lastCounts.get(key) ?? elements * firstShare) * 1.25) + 64
    const list = yield* listFor(view, Math.min(most, expected))
    const count = yield* failed("diff")(engine.diff(before, view, list))
    lastCounts.set(key, count)
    if (count > most) return undefined
    if (count <= list.positions.shape[0]!) return firstChanges(list, count)
    const larger = yield* listFor(view, count)
    yield* failed("diff")(engine.diff(before, view, larger))
    return larger
  })

  /** The copy of a tensor, made where there is room for it. */
  const copyOf = Effect.fnUntraced(function* (name: string, tensor: Tensor) {
    const known = copies.get(name)
    if (known !== undefined) return known
    const byteLength = tensorByteLength(tensor)
    if (bytes + byteLength > baselineBytes) return undefined
    const allocated = engine.allocate(tensor.dtype, tensor.shape, tensor.device)
    const made = yield* failed("allocate")(Scope.provide(allocated, scope))
    bytes += byteLength
    copies.set(name, made)
    return made
  })

  return {
    bytes: () => bytes,
    scan: Effect.fnUntraced(function* (ops, source, isKnown) {
      const regions = new Map<string, ScannedRegion>()
      const found = new Map<TransferOp, ScannedRegion>()
      for (const op of ops) {
        const own = source === undefined ? undefined : resolveTensor(source, op.paramName)
        if (own === undefined || "recipe" in own) {
          return yield* reshardError("TensorMissing", {
            rank,
            paramName: op.paramName,
            detail: "The plan sends a tensor that was not given, or is quantized.",
            remedy: "Pass the tensor as the plan knows it; quantized tensors are updated by executeReshardPlan."
          })
        }
        const wants = isKnown(op)
        const key = `${op.paramName} ${formatRegion(op.mySlice)} ${op.axes ?? ""}`
        const known = regions.get(`${key} ${wants}`)
        if (known !== undefined) {
          found.set(op, known)
          continue
        }
        const view = yield* plainView(rank, op, own)
        const copy = isListed(view) ? yield* copyOf(op.paramName, own) : undefined
        const before = copy === undefined ? undefined : yield* plainView(rank, op, copy)
        const changes = wants && before !== undefined ? yield* search(key, before, view) : undefined
        const region = { view, before, changes }
        regions.set(`${key} ${wants}`, region)
        found.set(op, region)
      }
      return found
    }),
    advance: Effect.fnUntraced(function* (regions) {
      for (const { before, changes, view } of new Set(regions)) {
        if (before === undefined) continue
        yield* changes === undefined
          ? failed("copy")(engine.copy([{ dst: before, src: view }]))
          : failed("apply")(engine.apply(before, changes))
      }
    })
  }
})
