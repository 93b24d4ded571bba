// SPDX-License-Identifier: Apache-2.0
/**
 * Carries out one rank's plan: sends regions of the source, receives into the destination, casts and transforms on the
 * way, and runs the destination's refresh hooks once, after the last byte.
 *
 * Collective over the copy service's group: every rank of the job calls it, with a source, a destination, both or
 * neither. A rank whose tensors do not fit its plan makes the call fail on every rank before any byte moves.
 *
 * Source and destination of a rank may share memory in any way: what is received from oneself at the very same place stays
 * where it is, and every other region that is both sent and overwritten is copied to a buffer before anything is written.
 */
import * as Effect from "effect/Effect"
import type { Rank } from "../base/Ids.ts"
import { regionShape } from "../base/Region.ts"
import type { ReshardPlan } from "../ir/ReshardPlan.ts"
import { type CopyError, type CopyOp, type CopyReport, CopyService, copyError } from "../service/CopyService.ts"
import { annotatePhase, inSpan } from "../service/Spans.ts"
import { type Fence, TensorEngine } from "../service/TensorEngine.ts"
import type { Move } from "../tensor/Tensor.ts"
import { resolveTensor, type TensorDict } from "../tensor/TensorDict.ts"
import type { ReshardTransform } from "../transform/ReshardTransform.ts"
import { type Outgoing, overwrittenSends } from "./InPlace.ts"
import { checkTensors, plainView } from "./PlanTensors.ts"
import type { ReshardError } from "./ReshardError.ts"
import { cachedUpdate, cacheUpdate, type Update } from "./UpdateCache.ts"
import type { UpdateMemory } from "./UpdateMemory.ts"
import { engineFailed, finishWritebacks, makeWriteback, transformFailed, type Writeback } from "./Writeback.ts"

/** Options of one update. */
export interface ExecuteOptions {
  readonly transform?: ReshardTransform
  /** Work that fills the source; awaited before anything is read. */
  readonly after?: ReadonlyArray<Fence>
  /** Where buffers come from; without it the update allocates them and frees them at its end. */
  readonly memory?: UpdateMemory
  readonly onProgress?: (movedBytes: number, totalBytes: number) => Effect.Effect<void>
}

/** What one update did on this rank. */
export interface ReshardReport {
  readonly rank: Rank
  readonly copy: CopyReport
  /** How many sends were copied to buffers first, because the update overwrites their memory. */
  readonly stagedSends: number
  /** How many receives were written in each way. */
  readonly writebacks: { readonly direct: number; readonly copy: number; readonly transform: number }
}

/** Makes a failure of this rank known to the others in place of running. */
const refuse = (rank: Rank, error: ReshardError | CopyError): CopyError =>
  error._tag === "CopyError"
    ? error
    : copyError("TransferFailed", [rank], { ...error.reason, rank, op: "executeReshardPlan", detail: error.message })

/** What a rank sends, and the moves that fill the buffers among it. Nothing has been read yet. */
interface Sends {
  readonly outgoing: ReadonlyArray<Outgoing>
  readonly fills: ReadonlyArray<Move>
}

/** Prepares every send; regions whose type differs from the wire's travel in buffers. */
const prepareSends = Effect.fnUntraced(function* (
  plan: ReshardPlan,
  source: TensorDict | undefined,
  transform: ReshardTransform | undefined
) {
  const engine = yield* TensorEngine
  const { rank } = plan
  const fills: Array<Move> = []
  const outgoing: Array<Outgoing> = []
  for (const op of plan.sendOps) {
    const tensor = source === undefined ? undefined : resolveTensor(source, op.paramName)
    if (tensor === undefined) continue
    if (transform?.shouldTransform(op.paramName) === true) {
      const prepared = transform.prepareSend({ paramName: op.paramName, region: op.mySlice, tensor })
      const parts = yield* Effect.mapError(prepared, (error) => transformFailed(rank, op, error))
      for (const [part, region] of parts.entries()) outgoing.push({ op, part, tensor: region })
      continue
    }
    const view = yield* plainView(rank, op, tensor)
    if (view.dtype === op.wireDtype) {
      outgoing.push({ op, part: 0, tensor: view })
      continue
    }
    const allocated = engine.allocate(op.wireDtype, regionShape(op.mySlice), view.device)
    const buffer = yield* Effect.mapError(allocated, (error) => engineFailed(rank, "allocate", error))
    fills.push({ dst: buffer, src: view })
    outgoing.push({ op, part: 0, tensor: buffer })
  }
  return { outgoing, fills } satisfies Sends
})

/** Prepares every receive and how it is written. */
const prepareRecvs = Effect.fnUntraced(function* (
  plan: ReshardPlan,
  destination: TensorDict | undefined,
  transform: ReshardTransform | undefined
) {
  const writebacks: Array<Writeback> = []
  for (const op of plan.recvOps) {
    const tensor = destination === undefined ? undefined : resolveTensor(destination, op.paramName)
    if (tensor !== undefined) writebacks.push(yield* makeWriteback(plan.rank, op, tensor, transform))
  }
  return writebacks
})

/** Gives every send that the update itself would overwrite a buffer of its own. */
const stageOverwritten = Effect.fnUntraced(function* (
  rank: Rank,
  { outgoing, fills }: Sends,
  writebacks: ReadonlyArray<Writeback>
) {
  const engine = yield* TensorEngine
  const overwritten = overwrittenSends(rank, outgoing, writebacks)
  const staged: Array<Outgoing> = []
  const moves = [...fills]
  for (const send of outgoing) {
    if (!overwritten.has(send)) {
      staged.push(send)
      continue
    }
    const { tensor } = send
    const allocated = engine.allocate(tensor.dtype, tensor.shape, tensor.device)
    const buffer = yield* Effect.mapError(allocated, (error) => engineFailed(rank, "allocate", error))
    moves.push({ dst: buffer, src: tensor })
    staged.push({ ...send, tensor: buffer })
  }
  return { sends: { outgoing: staged, fills: moves } satisfies Sends, stagedSends: overwritten.size }
})

const countsOf = (writebacks: ReadonlyArray<Writeback>): Update["counts"] => {
  const count = (tag: Writeback["_tag"]) => writebacks.filter((writeback) => writeback._tag === tag).length
  return { direct: count("Direct"), copy: count("Copy"), transform: count("Transform") }
}

/** What an update queues, right before `run`, so that an update which ends earlier leaves nothing there. */
const opsOf = (outgoing: ReadonlyArray<Outgoing>, writebacks: ReadonlyArray<Writeback>): ReadonlyArray<CopyOp> => [
  ...outgoing.map(({ op, part, tensor }): CopyOp => {
    const { peerRank: destRank, taskId, paramName } = op
    return { _tag: "SendOp", tensor, destRank, taskId, part, paramName }
  }),
  ...writebacks.flatMap(({ op, buffers }) =>
    buffers.map((tensor, part): CopyOp => {
      const { peerRank: srcRank, taskId, paramName } = op
      return { _tag: "RecvOp", tensor, srcRank, taskId, part, paramName }
    })
  )
]

export const executeReshardPlan = Effect.fn("executeReshardPlan")(function* (
  plan: ReshardPlan,
  source?: TensorDict,
  destination?: TensorDict,
  options: ExecuteOptions = {}
): Effect.fn.Return<ReshardReport, ReshardError | CopyError, CopyService | TensorEngine> {
  const service = yield* CopyService
  const engine = yield* TensorEngine
  const { transform } = options
  yield* annotatePhase(() => ({ rank: plan.rank, sends: plan.sendOps.length, receives: plan.recvOps.length }))
  const body = Effect.gen(function* () {
    for (const fence of options.after ?? []) {
      yield* Effect.mapError(fence.await, (error) => engineFailed(plan.rank, "after", error))
    }
    const isPlain = transform === undefined && plan.rank === service.rank
    const known = isPlain ? cachedUpdate(plan, source, destination) : undefined
    if (known !== undefined) return { ...known, stagedSends: 0 }
    const fault = checkTensors(plan, service.rank, source, destination)
    if (fault !== undefined) return yield* fault
    const prepared = yield* prepareSends(plan, source, transform)
    const writebacks = yield* prepareRecvs(plan, destination, transform)
    const { sends, stagedSends } = yield* stageOverwritten(plan.rank, prepared, writebacks)
    if (sends.fills.length > 0) {
      const filled = Effect.flatMap(TensorEngine, (memory) => memory.copy(sends.fills))
      const casts = inSpan(filled, "reshard.cast", () => ({ rank: plan.rank, ops: sends.fills.length }))
      yield* Effect.mapError(casts, (error) => engineFailed(plan.rank, "cast", error))
    }
    const update: Update = { writebacks, ops: opsOf(sends.outgoing, writebacks), counts: countsOf(writebacks) }
    const needsNoMemory = sends.fills.length === 0 && update.counts.direct === writebacks.length
    if (isPlain && needsNoMemory) cacheUpdate(plan, source, destination, update)
    return { ...update, stagedSends }
  })
  const updated = Effect.gen(function* () {
    const memory = options.memory === undefined ? engine : yield* options.memory.borrow(engine)
    // A failure before `run` must reach the other ranks, which wait for this one there.
    const { writebacks, ops, counts, stagedSends } = yield* Effect.tapError(
      Effect.provideService(body, TensorEngine, memory),
      (error) => Effect.ignore(service.run({ refuse: refuse(service.rank, error) }))
    )
    yield* service.submitAll(ops)
    // Writebacks are part of the run: a rank that cannot write must not be the only one that knows.
    let unwritten: ReshardError | undefined
    const isDone = counts.direct === writebacks.length
    const finish = finishWritebacks(plan.rank, writebacks).pipe(
      Effect.provideService(TensorEngine, memory),
      Effect.mapError((error) => {
        unwritten = error
        return refuse(service.rank, error)
      })
    )
    const copy = yield* service
      .run({
        ...(isDone ? {} : { finish }),
        ...(options.onProgress === undefined ? {} : { onProgress: options.onProgress })
      })
      .pipe(Effect.mapError((error) => unwritten ?? error))
    return { counts, copy, stagedSends }
  })
  const { counts, copy, stagedSends } = yield* Effect.scoped(updated)
  if (destination !== undefined && destination.refreshCaches.length > 0) {
    yield* inSpan(Effect.all(destination.refreshCaches, { discard: true }), "reshard.refresh")
  }
  return {
    rank: service.rank,
    copy,
    stagedSends,
    writebacks: counts
  }
})
