// SPDX-License-Identifier: Apache-2.0
/**
 * What a sender finds of its regions before an update: what travels of each, and what of that changed since it was sent last.
 *
 * A region travels as it lies, or as the parts that a transform makes of it: codes and scales of a quantized destination. Each
 * part is compared with what was sent of it last, so a changed weight whose code stays the same is not sent.
 *
 * Invariant: copies are advanced only to what was sent and taken. A part for which the budget has no room has no copy, and is
 * always sent whole.
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
import { isQuantized, type QuantizedTensor } from "@tensorferry/core/tensor/QuantizedTensor"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import { resolveTensor, type TensorDict } from "@tensorferry/core/tensor/TensorDict"
import type { ReshardTransform, TransformError } from "@tensorferry/core/transform/ReshardTransform"
import * as Effect from "effect/Effect"
import * as Scope from "effect/Scope"
import type { Baseline, Baselines } from "./Baselines.ts"
import { gapBytes, listBreakEvenShare, positionBytes } from "./DeltaSize.ts"

/**
 * How much of a part its receiver needs: its changes; all of it, as it has lost what they are of; all of it where anything of
 * the region changed, as it keeps nothing of it; or all of it in any case.
 */
export type PartNeed = "changes" | "whole" | "wholeIfChanged" | "always"

/** A part of a region, as it travels before a cast, beside what was sent of it last. */
export interface ScannedPart {
  readonly view: Tensor
  readonly baseline: Baseline | undefined
  readonly isCompared: boolean
  /** What changed since; undefined where that is not known, or takes more bytes than all of it. */
  readonly found: Changes | undefined
  /** The changes that are sent; undefined where all of it is. */
  readonly sent: Changes | undefined
}

export interface ChangeScan {
  /**
   * The parts of the regions of these operations, each searched once, several at once. Lists live in the scope. `onFound` is for
   * each that was searched, while others are.
   */
  readonly scan: (
    ops: ReadonlyArray<TransferOp>,
    source: TensorDict | undefined,
    needOf: (op: TransferOp, part: number) => PartNeed,
    onFound?: (op: TransferOp, parts: ReadonlyArray<ScannedPart>) => Effect.Effect<void, never, Scope.Scope>
  ) => Effect.Effect<ReadonlyMap<TransferOp, ReadonlyArray<ScannedPart>>, ReshardError, Scope.Scope>
  /** What was sent is what will be compared with. */
  readonly advance: (parts: Iterable<ScannedPart>) => Effect.Effect<void, ReshardError>
}

/** Whether changes of a part can be listed. */
const isListed = ({ dtype, shape }: Tensor): boolean =>
  !isSubByte(dtype) && elementCount(shape) > 0 && elementCount(shape) <= changeLimit

/** Room for what changed the first time: later as much as before, and some more. */
const firstShare = 1 / 32

/** A failed transform as the error of an update. */
export const transformFailed = (rank: number, { paramName, taskId }: TransferOp, error: TransformError): ReshardError =>
  reshardError("TransformFailed", { ...error.reason, rank, paramName, taskId, detail: error.message })

/** Scans of one rank's plan. */
export const makeChangeScan = (
  { rank }: ReshardPlan,
  engine: TensorEngineShape,
  baselines: Baselines,
  transform: ReshardTransform | undefined
): ChangeScan => {
  /** By part, how many elements changed at the last search. */
  const lastCounts = new Map<string, number>()

  const failed =
    (op: string) =>
    <A, E extends Parameters<typeof engineFailed>[2], R>(effect: Effect.Effect<A, E, R>) =>
      Effect.mapError(effect, (error) => engineFailed(rank, op, error))

  const listFor = (tensor: Tensor, count: number) =>
    Effect.all({
      positions: failed("allocate")(engine.allocate("uint32", [count], tensor.device)),
      values: failed("allocate")(engine.allocate(tensor.dtype, [count], tensor.device))
    })

  /** What changed in a part, unless all of it takes fewer bytes. The copy is near only while this runs. */
  const search = Effect.fnUntraced(function* (key: string, baseline: Baseline, view: Tensor, lists: Scope.Scope) {
    const before = yield* baselines.near(baseline, view)
    const elements = elementCount(view.shape)
    const elementBytes = bitsOf(view.dtype) / 8
    const isPacked = view.storage.bytes !== undefined
    const most = Math.floor(elements * listBreakEvenShare(elementBytes, isPacked ? gapBytes : positionBytes))
    const expected = Math.ceil((lastCounts.get(key) ?? elements * firstShare) * 1.25) + 64
    const list = yield* Scope.provide(listFor(view, Math.min(most, expected)), lists)
    const count = yield* failed("diff")(engine.diff(before, view, list))
    lastCounts.set(key, count)
    if (count > most) return undefined
    if (count <= list.positions.shape[0]!) return firstChanges(list, count)
    const larger = yield* Scope.provide(listFor(view, count), lists)
    yield* failed("diff")(engine.diff(before, view, larger))
    return larger
  }, Effect.scoped)

  const sourceOf = (source: TensorDict | undefined, op: TransferOp) => {
    const own = source === undefined ? undefined : resolveTensor(source, op.paramName)
    const isKnown = own !== undefined && (!isQuantized(own) || isTransformed(op))
    return isKnown
      ? Effect.succeed(own)
      : Effect.fail(
          reshardError("TensorMissing", {
            rank,
            paramName: op.paramName,
            detail: "The plan sends a tensor that was not given, or is quantized and has no transform.",
            remedy: "Pass the tensor as the plan knows it, or state a transform that reads its recipe."
          })
        )
  }

  const isTransformed = ({ paramName }: TransferOp): boolean => transform?.shouldTransform(paramName) === true

  /** What travels of a region. */
  const viewsOf = (op: TransferOp, tensor: Tensor | QuantizedTensor) =>
    transform !== undefined && isTransformed(op)
      ? transform.prepareSend({ paramName: op.paramName, region: op.mySlice, tensor }).pipe(
          Effect.provideService(TensorEngine, engine),
          Effect.mapError((error) => transformFailed(rank, op, error))
        )
      : Effect.map(plainView(rank, op, tensor), (view) => [view])

  const keyOf = ({ axes, mySlice, paramName }: TransferOp): string =>
    `${paramName} ${formatRegion(mySlice)} ${axes ?? ""}`

  /** Parts of a region, with what is needed of them, and the operations that send it. */
  interface Region {
    readonly key: string
    readonly views: ReadonlyArray<Tensor>
    readonly needs: ReadonlyArray<PartNeed>
    readonly baselines: ReadonlyArray<Baseline | undefined>
    readonly ops: Array<TransferOp>
  }

  /** All regions before any is searched: a copy that makes room for another one would be missing in a search. */
  const regionsOf = Effect.fnUntraced(function* (
    ops: ReadonlyArray<TransferOp>,
    source: TensorDict | undefined,
    needOf: (op: TransferOp, part: number) => PartNeed
  ): Effect.fn.Return<ReadonlyArray<Region>, ReshardError, Scope.Scope> {
    const made = new Map<string, ReadonlyArray<Tensor>>()
    const regions = new Map<string, Region>()
    for (const op of ops) {
      const own = yield* sourceOf(source, op)
      const key = keyOf(op)
      const views = made.get(key) ?? (yield* viewsOf(op, own))
      made.set(key, views)
      const needs = views.map((_, part) => needOf(op, part))
      const needed = `${key} ${needs.join(",")}`
      const known = regions.get(needed)
      if (known !== undefined) {
        known.ops.push(op)
        continue
      }
      const copies: Array<Baseline | undefined> = []
      for (const [at, view] of views.entries()) {
        const isKept = isListed(view) && needs[at] !== "always"
        copies.push(isKept ? yield* baselines.of(`${key} ${at}`, view) : undefined)
      }
      regions.set(needed, { key, views, needs, baselines: copies, ops: [op] })
    }
    return [...regions.values()]
  })

  const scanRegion = Effect.fnUntraced(function* ({
    key,
    views,
    needs,
    baselines: copies
  }: Region): Effect.fn.Return<ReadonlyArray<ScannedPart>, ReshardError, Scope.Scope> {
    const lists = yield* Effect.scope
    const compared: Array<ScannedPart> = []
    for (const [at, view] of views.entries()) {
      const baseline = copies[at]
      const isCompared = baseline?.isFilled === true && !baseline.isFreed && needs[at] !== "whole"
      const found = isCompared ? yield* search(`${key} ${at}`, baseline, view, lists) : undefined
      compared.push({ view, baseline, isCompared, found, sent: found })
    }
    // A part without elements changes when the others do.
    const isChanged = compared.some(({ found, view }) =>
      found === undefined ? elementCount(view.shape) > 0 : found.positions.shape[0]! > 0
    )
    const nothing = isChanged ? undefined : yield* listFor(views[0]!, 0)
    return compared.map((part, at) => (needs[at] === "wholeIfChanged" ? { ...part, sent: nothing } : part))
  })

  return {
    scan: Effect.fnUntraced(function* (ops, source, needOf, onFound) {
      const found = new Map<TransferOp, ReadonlyArray<ScannedPart>>()
      const scanOne = Effect.fnUntraced(function* (region: Region) {
        const parts = yield* scanRegion(region)
        for (const op of region.ops) {
          found.set(op, parts)
          if (onFound !== undefined) yield* onFound(op, parts)
        }
      })
      yield* Effect.forEach(yield* regionsOf(ops, source, needOf), scanOne, {
        concurrency: baselines.nearAtOnce,
        discard: true
      })
      return found
    }),
    advance: Effect.fnUntraced(function* (parts) {
      for (const { baseline, found, isCompared, view } of new Set(parts)) {
        if (baseline === undefined) continue
        yield* baselines.advance(baseline, view, found)
        baseline.useless = isCompared && found === undefined ? baseline.useless + 1 : 0
      }
    })
  }
}
