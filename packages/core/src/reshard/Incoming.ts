// SPDX-License-Identifier: Apache-2.0
/**
 * What one rank receives, and how it gets into its destination: it arrives there, waits in a buffer of the wire type and is
 * cast over, goes through a transform, or is a contribution that is reduced. Chosen per transfer before anything moves.
 */
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import type { Rank } from "../base/Ids.ts"
import type { Reduction, ReshardPlan } from "../ir/ReshardPlan.ts"
import type { TransferOp } from "../ir/TransferOp.ts"
import { isContribution, type Leg, legShape, type Waves } from "../planner/Waves.ts"
import type { CopyOp } from "../service/CopyService.ts"
import { TensorEngine } from "../service/TensorEngine.ts"
import { isSameView } from "../tensor/MemoryRange.ts"
import { isQuantized } from "../tensor/QuantizedTensor.ts"
import { type Move, sliceTensor, type Tensor } from "../tensor/Tensor.ts"
import { resolveTensor, type TensorDict } from "../tensor/TensorDict.ts"
import type { ReshardTransform, TransformError, TransformOp } from "../transform/ReshardTransform.ts"
import { allocateDense, allocateWaves, engineFailed, type Wanted } from "./Buffers.ts"
import { legView, plainView } from "./PlanTensors.ts"
import { type ReshardError, reshardError } from "./ReshardError.ts"

/** The tensors and the transform of one update. */
export interface Sides {
  readonly source: TensorDict | undefined
  readonly destination: TensorDict | undefined
  readonly transform: ReshardTransform | undefined
}

/** One reduction of contributions that have arrived; `sources` in the order of the group. */
export interface Reducing {
  readonly dst: Tensor
  readonly sources: ReadonlyArray<Tensor>
  readonly op: Reduction["op"]
}

/** A transfer whose buffers a transform writes into the destination. */
export interface Transforming {
  readonly op: TransferOp
  readonly transformOp: TransformOp
  readonly buffers: ReadonlyArray<Tensor>
}

/** What a rank receives in one wave, and what becomes of it then. */
export interface ArrivingWave {
  readonly ops: ReadonlyArray<CopyOp>
  readonly copies: ReadonlyArray<Move>
  readonly reductions: ReadonlyArray<Reducing>
}

/** How many transfers are written in each way. */
export interface Writebacks {
  readonly direct: number
  readonly copy: number
  readonly transform: number
}

export interface Incoming {
  readonly waves: ReadonlyArray<ArrivingWave>
  /** Run after the last byte of the whole update, in order of their tasks. */
  readonly transforms: ReadonlyArray<Transforming>
  /** Copies within the rank that cast; they need no buffer. */
  readonly casts: ReadonlyMap<TransferOp, Tensor>
  /** Reductions to which nobody else contributes. */
  readonly alone: ReadonlyArray<Reducing>
  /** By number, the results of the reductions of this rank. */
  readonly results: ReadonlyArray<Tensor | undefined>
  /** All memory that the update writes. */
  readonly written: ReadonlyArray<Tensor>
  readonly counts: Writebacks
  readonly bufferBytes: number
  readonly reducedBytes: number
}

/** A failed transform as the error of an update: adds the rank, the parameter and the task. */
export const transformFailed = (rank: Rank, op: TransferOp, error: TransformError): ReshardError =>
  reshardError("TransformFailed", {
    ...error.reason,
    rank,
    paramName: op.paramName,
    taskId: op.taskId,
    detail: error.message
  })

/** The sends of a rank to itself that no transform carries, by task. */
const ownSends = ({ rank, sendOps }: ReshardPlan, { transform }: Sides): ReadonlyMap<number, TransferOp> =>
  new Map(
    sendOps.flatMap((op) =>
      op.peerRank === rank && transform?.shouldTransform(op.paramName) !== true ? [[op.taskId, op] as const] : []
    )
  )

/** Results of the reductions of this rank. */
const allocateResults = Effect.fnUntraced(function* (plan: ReshardPlan, source: TensorDict | undefined) {
  const engine = yield* TensorEngine
  const own: Array<readonly [number, Tensor]> = []
  for (const [at, { paramName, region, root }] of (plan.reductions ?? []).entries()) {
    const tensor = source === undefined ? undefined : resolveTensor(source, paramName)
    if (root !== plan.rank || tensor === undefined) continue
    const box = isQuantized(tensor) ? undefined : Result.getOrUndefined(sliceTensor(tensor, region))
    if (box === undefined) {
      return yield* reshardError("TensorMismatch", {
        rank: plan.rank,
        paramName,
        detail: "The tensor cannot be reduced where the plan says so.",
        remedy: "Make the plan from what the ranks hold now."
      })
    }
    own.push([at, box])
  }
  const memory = yield* allocateDense(
    plan.rank,
    engine,
    own.map(([, box]) => box)
  )
  const results: Array<Tensor | undefined> = []
  const boxes: Array<Tensor | undefined> = []
  for (const [index, [at, box]] of own.entries()) {
    results[at] = memory.tensors[index]!
    boxes[at] = box
  }
  return { results, boxes, byteLength: memory.byteLength }
})

const writtenBy = ({ buffers, transformOp: { tensor, region } }: Transforming): ReadonlyArray<Tensor> => {
  if (isQuantized(tensor)) {
    return [...buffers, tensor.data, tensor.scale, ...(tensor.global === undefined ? [] : [tensor.global])]
  }
  const view = sliceTensor(tensor, region)
  return [...buffers, Result.isSuccess(view) ? view.success : tensor]
}

/** What a transform writes into the destination, all waves together. */
const transformedReceives = (
  plan: ReshardPlan,
  waves: Waves["waves"],
  { destination, transform }: Sides
): ReadonlyArray<TransformOp> =>
  waves.flatMap(({ recvs }) =>
    recvs.flatMap(({ op }): ReadonlyArray<TransformOp> => {
      const { mySlice: region, paramName } = op
      if (isContribution(plan, op) || transform?.shouldTransform(paramName) !== true) return []
      const tensor = destination === undefined ? undefined : resolveTensor(destination, paramName)
      return tensor === undefined ? [] : [{ paramName, region, tensor }]
    })
  )

/** Prepares everything that a rank receives. Nothing is read or written yet. */
export const prepareIncoming = Effect.fnUntraced(function* (
  plan: ReshardPlan,
  { waves }: Waves,
  sides: Sides
): Effect.fn.Return<Incoming, ReshardError, TensorEngine | Scope.Scope> {
  const engine = yield* TensorEngine
  const { rank } = plan
  const { source, destination, transform } = sides
  const sends = ownSends(plan, sides)
  const { results, boxes, byteLength: reducedBytes } = yield* allocateResults(plan, source)
  const transforms: Array<Transforming> = []
  const casts = new Map<TransferOp, Tensor>()
  const written: Array<Tensor> = []
  let [direct, copy] = [0, 0]
  /** By wave: where each leg arrives, and what waits in buffers on the way there. */
  const arriving: Array<Array<{ readonly leg: Leg; readonly tensor: Tensor; readonly part: number }>> = []
  const waiting: Array<Array<{ readonly leg: Leg; readonly wanted: Wanted; readonly into: Tensor }>> = []
  transform?.begin?.(transformedReceives(plan, waves, sides))
  for (const wave of waves) {
    const [arrives, waits]: [(typeof arriving)[number], (typeof waiting)[number]] = [[], []]
    arriving.push(arrives)
    waiting.push(waits)
    for (const leg of wave.recvs) {
      const { op } = leg
      const contributes = isContribution(plan, op)
      const dict = contributes ? source : destination
      const tensor = dict === undefined ? undefined : resolveTensor(dict, op.paramName)
      if (tensor === undefined) continue
      if (!contributes && transform?.shouldTransform(op.paramName) === true) {
        const transformOp: TransformOp = { paramName: op.paramName, region: op.mySlice, tensor }
        const prepared = transform.prepareRecv(transformOp)
        const buffers = yield* Effect.mapError(prepared, (error) => transformFailed(rank, op, error))
        for (const [part, buffer] of buffers.entries()) arrives.push({ leg, tensor: buffer, part })
        const made = { op, transformOp, buffers }
        transforms.push(made)
        written.push(...writtenBy(made))
        continue
      }
      const view = yield* plainView(rank, op, tensor)
      if (contributes) {
        waits.push({ leg, wanted: { dtype: op.wireDtype, shape: legShape(leg), device: view.device }, into: view })
        continue
      }
      const sent = op.peerRank === rank ? sends.get(op.taskId) : undefined
      const from = sent === undefined || source === undefined ? undefined : resolveTensor(source, sent.paramName)
      const held = sent === undefined || from === undefined ? undefined : yield* plainView(rank, sent, from)
      if (leg.part === 0) {
        if (view.dtype === op.wireDtype) direct += 1
        else copy += 1
      }
      // What a rank receives from itself at the very same place changes nothing.
      const isIdle = held !== undefined && sent!.reduction === undefined && isSameView(held, view)
      if (leg.part === 0 && !isIdle) written.push(view)
      if (held !== undefined && held.dtype !== view.dtype) casts.set(sent!, view)
      else {
        const into = yield* legView(rank, leg, view)
        if (view.dtype === op.wireDtype) arrives.push({ leg, tensor: into, part: leg.part })
        else waits.push({ leg, wanted: { dtype: op.wireDtype, shape: into.shape, device: view.device }, into })
      }
    }
  }
  const buffers = yield* allocateWaves(
    rank,
    engine,
    waiting.map((waits) => waits.map(({ wanted }) => wanted))
  )

  const receive = ({ op: { peerRank: srcRank, taskId, paramName } }: Leg, tensor: Tensor, part: number): CopyOp => ({
    _tag: "RecvOp",
    tensor,
    srcRank,
    taskId,
    part,
    paramName
  })
  const made = waves.map((_, wave): ArrivingWave => {
    const copies: Array<Move> = []
    const parts = new Map<string, { readonly leg: Leg; readonly from: Map<Rank, Tensor> }>()
    const ops = arriving[wave]!.map(({ leg, tensor, part }) => receive(leg, tensor, part))
    for (const [at, { leg, into }] of waiting[wave]!.entries()) {
      const buffer = buffers.waves[wave]![at]!
      ops.push(receive(leg, buffer, leg.part))
      if (!isContribution(plan, leg.op)) {
        copies.push({ dst: into, src: buffer })
        continue
      }
      const key = `${leg.op.reduction} ${leg.part}`
      const known = parts.get(key) ?? { leg, from: new Map() }
      parts.set(key, known)
      known.from.set(leg.op.peerRank, buffer)
    }
    const reductions = [...parts.values()].map(({ leg, from }): Reducing => {
      const at = leg.op.reduction!
      const { ranks, op } = plan.reductions![at]!
      const piece = (tensor: Tensor) =>
        leg.within === undefined ? tensor : Result.getOrElse(sliceTensor(tensor, leg.within), () => tensor)
      const own = piece(boxes[at]!)
      return { dst: piece(results[at]!), sources: ranks.map((member) => from.get(member) ?? own), op }
    })
    return { ops, copies, reductions }
  })
  const alone = (plan.reductions ?? []).flatMap(({ ranks, op }, at): ReadonlyArray<Reducing> => {
    const [dst, own] = [results[at], boxes[at]]
    return ranks.length > 1 || dst === undefined || own === undefined ? [] : [{ dst, sources: [own], op }]
  })
  return {
    waves: made,
    transforms,
    casts,
    alone,
    results,
    written,
    counts: { direct, copy, transform: transforms.length },
    bufferBytes: buffers.byteLength,
    reducedBytes
  }
})

/** Reduces, or casts into the destination, what arrived in one wave. */
export const emptyBuffers = Effect.fnUntraced(function* (
  rank: Rank,
  { copies, reductions }: Pick<ArrivingWave, "copies" | "reductions">
): Effect.fn.Return<void, ReshardError, TensorEngine> {
  const engine = yield* TensorEngine
  for (const { dst, sources, op } of reductions) {
    yield* Effect.mapError(engine.reduce(dst, sources, op), (error) => engineFailed(rank, "reduce", error))
  }
  if (copies.length > 0) yield* Effect.mapError(engine.copy(copies), (error) => engineFailed(rank, "writeback", error))
})

/** Writes what transforms carried. */
export const finishTransforms = Effect.fnUntraced(function* (
  rank: Rank,
  transform: ReshardTransform | undefined,
  transforms: ReadonlyArray<Transforming>
): Effect.fn.Return<void, ReshardError, TensorEngine> {
  if (transform === undefined) return
  for (const { op, transformOp, buffers } of transforms) {
    const finalized = transform.finalizeRecv(transformOp, buffers)
    yield* Effect.mapError(finalized, (error) => transformFailed(rank, op, error))
  }
})
