/**
 * Carries out one rank's plan: sends regions of the source, receives into the destination, casts and transforms on the
 * way, and runs the destination's refresh hooks once, after the last byte.
 *
 * Collective over the copy service's group: every rank of the job calls it, with a source, a destination, both or
 * neither. A rank whose tensors do not fit its plan makes the call fail on every rank before any byte moves.
 */
import * as Effect from "effect/Effect"
import type { Rank } from "../base/Ids.ts"
import { regionShape } from "../base/Region.ts"
import type { ReshardPlan } from "../ir/ReshardPlan.ts"
import { type CopyError, type CopyReport, CopyService, copyError } from "../service/CopyService.ts"
import { type Fence, TensorEngine } from "../service/TensorEngine.ts"
import type { Move, Tensor } from "../tensor/Tensor.ts"
import { resolveTensor, type TensorDict } from "../tensor/TensorDict.ts"
import type { ReshardTransform } from "../transform/ReshardTransform.ts"
import { checkTensors, plainView } from "./PlanTensors.ts"
import type { ReshardError } from "./ReshardError.ts"
import { engineFailed, finishWritebacks, makeWriteback, transformFailed, type Writeback } from "./Writeback.ts"

export interface ExecuteOptions {
  readonly transform?: ReshardTransform
  /** Work that fills the source; awaited before anything is read. */
  readonly after?: ReadonlyArray<Fence>
  readonly onProgress?: (movedBytes: number, totalBytes: number) => Effect.Effect<void>
}

export interface ReshardReport {
  readonly rank: Rank
  readonly copy: CopyReport
  /** How many receives were written in each way. */
  readonly writebacks: { readonly direct: number; readonly copy: number; readonly transform: number }
}

/** Makes a failure of this rank known to the others in place of running. */
const refuse = (rank: Rank, error: ReshardError | CopyError): CopyError =>
  error._tag === "CopyError"
    ? error
    : copyError("TransferFailed", [rank], { ...error.reason, rank, op: "executeReshardPlan", detail: error.message })

/**
 * Operations to queue. They enter the service's queue together, right before `run`, so that an update which ends earlier
 * leaves nothing there for the next one.
 */
type Submissions = ReadonlyArray<Effect.Effect<void, CopyError>>

/** Prepares every send; regions whose type differs from the wire's are cast into buffers, all in one batch. */
const prepareSends = Effect.fnUntraced(function* (
  plan: ReshardPlan,
  source: TensorDict | undefined,
  transform: ReshardTransform | undefined
) {
  const service = yield* CopyService
  const engine = yield* TensorEngine
  const { rank } = plan
  const casts: Array<Move> = []
  const submissions: Array<Effect.Effect<void, CopyError>> = []
  for (const op of plan.sendOps) {
    const tensor = source === undefined ? undefined : resolveTensor(source, op.paramName)
    if (tensor === undefined) continue
    const submit = (region: Tensor, part: number): void => {
      submissions.push(service.submitSend(region, op.peerRank, op.taskId, { part, paramName: op.paramName }))
    }
    if (transform?.shouldTransform(op.paramName) === true) {
      const prepared = transform.prepareSend({ paramName: op.paramName, region: op.mySlice, tensor })
      const parts = yield* Effect.mapError(prepared, (error) => transformFailed(rank, op, error))
      parts.forEach(submit)
      continue
    }
    const view = yield* plainView(rank, op, tensor)
    if (view.dtype === op.wireDtype) {
      submit(view, 0)
      continue
    }
    const allocated = engine.allocate(op.wireDtype, regionShape(op.mySlice), view.device)
    const buffer = yield* Effect.mapError(allocated, (error) => engineFailed(rank, "allocate", error))
    casts.push({ dst: buffer, src: view })
    submit(buffer, 0)
  }
  if (casts.length > 0) yield* Effect.mapError(engine.copy(casts), (error) => engineFailed(rank, "cast", error))
  return submissions satisfies Submissions
})

/** Prepares every receive and how it is written. */
const prepareRecvs = Effect.fnUntraced(function* (
  plan: ReshardPlan,
  destination: TensorDict | undefined,
  transform: ReshardTransform | undefined
) {
  const service = yield* CopyService
  const writebacks: Array<Writeback> = []
  const submissions: Array<Effect.Effect<void, CopyError>> = []
  for (const op of plan.recvOps) {
    const tensor = destination === undefined ? undefined : resolveTensor(destination, op.paramName)
    if (tensor === undefined) continue
    const writeback = yield* makeWriteback(plan.rank, op, tensor, transform)
    writebacks.push(writeback)
    for (const [part, buffer] of writeback.buffers.entries()) {
      submissions.push(service.submitRecv(buffer, op.peerRank, op.taskId, { part, paramName: op.paramName }))
    }
  }
  return { writebacks, submissions: submissions satisfies Submissions }
})

export const executeReshardPlan = Effect.fn("executeReshardPlan")(function* (
  plan: ReshardPlan,
  source?: TensorDict,
  destination?: TensorDict,
  options: ExecuteOptions = {}
): Effect.fn.Return<ReshardReport, ReshardError | CopyError, CopyService | TensorEngine> {
  const service = yield* CopyService
  const engine = yield* TensorEngine
  const { transform } = options
  const body = Effect.gen(function* () {
    for (const fence of options.after ?? []) {
      yield* Effect.mapError(fence.await, (error) => engineFailed(plan.rank, "after", error))
    }
    const fault = checkTensors(plan, service.rank, source, destination)
    if (fault !== undefined) return yield* fault
    const sends = yield* prepareSends(plan, source, transform)
    const { writebacks, submissions } = yield* prepareRecvs(plan, destination, transform)
    return { writebacks, submissions: [...sends, ...submissions] }
  })
  const updated = Effect.gen(function* () {
    // A failure before `run` must reach the other ranks, which wait for this one there.
    const { writebacks, submissions } = yield* Effect.tapError(body, (error) =>
      Effect.ignore(service.run({ refuse: refuse(service.rank, error) }))
    )
    yield* Effect.all(submissions, { discard: true })
    // Writebacks are part of the run: a rank that cannot write must not be the only one that knows.
    let unwritten: ReshardError | undefined
    const finish = finishWritebacks(plan.rank, writebacks).pipe(
      Effect.provideService(TensorEngine, engine),
      Effect.mapError((error) => {
        unwritten = error
        return refuse(service.rank, error)
      })
    )
    const copy = yield* service
      .run({ finish, ...(options.onProgress === undefined ? {} : { onProgress: options.onProgress }) })
      .pipe(Effect.mapError((error) => unwritten ?? error))
    return { writebacks, copy }
  })
  const { writebacks, copy } = yield* Effect.scoped(updated)
  if (destination !== undefined) yield* Effect.all(destination.refreshCaches, { discard: true })
  const count = (tag: Writeback["_tag"]) => writebacks.filter((writeback) => writeback._tag === tag).length
  return {
    rank: service.rank,
    copy,
    writebacks: { direct: count("Direct"), copy: count("Copy"), transform: count("Transform") }
  }
})
