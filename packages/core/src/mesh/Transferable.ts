// SPDX-License-Identifier: Apache-2.0
/**
 * One parcel on its way, seen from one end: `prepare`, `launch` (false until the buffer is ready), `isComplete`,
 * `finalize`.
 *
 * Invariants: steps come in this order, each once, and anything else is refused. A buffer is taken by `prepare` and given
 * back by `finalize`, or by the reduction that uses the contributions in it. Nothing is submitted before the buffer's bytes
 * are in place.
 */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import { ReasonError, type ReasonInput, reason, reasonOf } from "../base/Reason.ts"
import type { MeshPlan } from "../ir/MeshPlan.ts"
import type { ReshardError } from "../reshard/ReshardError.ts"
import { engineFailed } from "../reshard/Writeback.ts"
import type { CopyError, CopyServiceShape } from "../service/CopyService.ts"
import type { TensorEngineShape } from "../service/TensorEngine.ts"
import { cpu, parseDevice } from "../tensor/Device.ts"
import type { Move, Tensor } from "../tensor/Tensor.ts"
import { type BufferPool, denseIn } from "./BufferPool.ts"
import {
  type Inbound,
  isWhole,
  type Outbound,
  type Parcel,
  type Piece,
  recvBufferBytes,
  type StagingRule,
  sendBufferBytes,
  stagesRecv,
  stagesSend
} from "./MeshParcels.ts"
import type { MeshReductions } from "./MeshReductions.ts"
import { boxOf, type MeshViews } from "./MeshTensors.ts"

export const TransferableReason = Schema.Union([
  /** A step out of order, or twice. */
  reason("WrongState")
])
export type TransferableReason = typeof TransferableReason.Type

export class TransferableError extends ReasonError<TransferableError>()("TransferableError", TransferableReason) {}

const transferableError = (tag: TransferableReason["_tag"], input: ReasonInput): TransferableError =>
  new TransferableError({ reason: reasonOf(tag, input) })

/** `Launched` becomes complete when the run that it was submitted for has moved its bytes. */
export type TransferableState = "Idle" | "Prepared" | "Launched" | "Finalized"

export interface Transferable {
  readonly parcel: Parcel
  readonly role: "send" | "recv"
  readonly state: Effect.Effect<TransferableState>
  /** Ends when the buffer may be launched, or cannot be filled. */
  readonly bufferReadyEvent: Deferred.Deferred<void, ReshardError>
  /** Takes a buffer where one is needed and starts to fill it. */
  readonly prepare: Effect.Effect<void, ReshardError | TransferableError>
  /** Submits to the copy service; false, and nothing is submitted, while the buffer is not ready. */
  readonly launch: Effect.Effect<boolean, ReshardError | CopyError | TransferableError>
  readonly isComplete: Effect.Effect<boolean>
  /** Receiver: brings the parts to where they belong, cast where types differ. Gives the buffer back. */
  readonly finalize: Effect.Effect<void, ReshardError | TransferableError>
}

/** What the parcels of one update share. */
export interface TransferContext {
  readonly plan: MeshPlan
  readonly rule: StagingRule
  readonly service: CopyServiceShape
  readonly engine: TensorEngineShape
  readonly pool: BufferPool
  readonly views: MeshViews
  readonly reductions: MeshReductions
  /** Where buffers are filled in the background. */
  readonly background: Scope.Scope
}

/** Whether the bytes of the run that a parcel was launched for have arrived. */
export interface RunProgress {
  hasArrived: boolean
}

interface Steps {
  readonly bufferBytes: number
  /** Fills the buffer. */
  readonly fill: (buffer: Tensor | undefined) => Effect.Effect<void, ReshardError>
  readonly submit: (buffer: Tensor | undefined) => Effect.Effect<void, ReshardError | CopyError>
  /** Empties the buffer and gives it back. */
  readonly empty: (buffer: Tensor | undefined, giveBack: Effect.Effect<void>) => Effect.Effect<void, ReshardError>
}

const makeTransferable = (
  context: TransferContext,
  parcel: Parcel,
  role: Transferable["role"],
  run: RunProgress,
  steps: Steps
): Transferable => {
  const bufferReadyEvent = Deferred.makeUnsafe<void, ReshardError>()
  let state: TransferableState = "Idle"
  let buffer: Tensor | undefined

  const wrongState = (op: string, wanted: string): Effect.Effect<never, TransferableError> =>
    Effect.fail(
      transferableError("WrongState", {
        rank: context.plan.rank,
        op,
        detail: `Parcel ${parcel.key} is ${state}; ${op} needs it ${wanted}.`,
        remedy: "Call prepare, launch until it is true, and finalize once it is complete, each once."
      })
    )

  return {
    parcel,
    role,
    state: Effect.sync(() => state),
    bufferReadyEvent,
    prepare: Effect.suspend((): Transferable["prepare"] => {
      if (state !== "Idle") return wrongState("prepare", "Idle")
      state = "Prepared"
      return Effect.gen(function* () {
        if (steps.bufferBytes > 0) {
          buffer = yield* context.pool.take(steps.bufferBytes, parseDevice(parcel.device) ?? cpu)
        }
        const filled = Deferred.into(steps.fill(buffer), bufferReadyEvent)
        yield* Effect.forkIn(filled, context.background, { startImmediately: true })
      })
    }),
    launch: Effect.suspend((): Transferable["launch"] => {
      if (state !== "Prepared") return wrongState("launch", "Prepared")
      if (!Deferred.isDoneUnsafe(bufferReadyEvent)) return Effect.succeed(false)
      return Effect.gen(function* () {
        yield* Deferred.await(bufferReadyEvent)
        yield* steps.submit(buffer)
        state = "Launched"
        return true
      })
    }),
    isComplete: Effect.sync(() => state === "Launched" && run.hasArrived),
    finalize: Effect.suspend((): Transferable["finalize"] => {
      if (state !== "Launched" || !run.hasArrived) return wrongState("finalize", "Launched and complete")
      state = "Finalized"
      const held = buffer
      buffer = undefined
      return steps.empty(held, held === undefined ? Effect.void : context.pool.giveBack(held))
    })
  }
}

const partOf = (buffer: Tensor, { chunk, shape, offset }: Piece): Tensor =>
  denseIn(buffer, chunk.transferDtype, shape, offset)

const nameOf = ({ plan }: TransferContext, { chunk }: Piece): string => plan.tensors[chunk.tensor]!.name

/** The sending end. */
export const makeOutbound = (context: TransferContext, { parcel, to }: Outbound, run: RunProgress): Transferable => {
  const { plan, rule, reductions, engine, service } = context
  const readsOf = parcel.pieces.map((piece) => ({ piece, ...reductions.read(piece.chunk) }))
  const viewOf = ({ piece, tensor }: (typeof readsOf)[number]) =>
    Effect.fromResult(boxOf(plan, piece.chunk, tensor, piece.within))
  return makeTransferable(context, parcel, "send", run, {
    bufferBytes: sendBufferBytes(rule, parcel),
    fill: (buffer) =>
      Effect.gen(function* () {
        const moves: Array<Move> = []
        for (const read of readsOf) {
          if (read.ready !== undefined) yield* Deferred.await(read.ready)
          if (buffer === undefined || !stagesSend(rule, parcel, read.piece)) continue
          moves.push({ dst: partOf(buffer, read.piece), src: yield* viewOf(read) })
        }
        if (moves.length === 0) return
        yield* Effect.mapError(engine.copy(moves), (error) => engineFailed(plan.rank, "assemble", error))
      }),
    submit: (buffer) =>
      Effect.gen(function* () {
        const parts: Array<readonly [Tensor, string]> = []
        if (buffer !== undefined && isWhole(rule, parcel)) parts.push([buffer, nameOf(context, parcel.pieces[0]!)])
        else {
          for (const read of readsOf) {
            const isStaged = buffer !== undefined && stagesSend(rule, parcel, read.piece)
            parts.push([isStaged ? partOf(buffer, read.piece) : yield* viewOf(read), nameOf(context, read.piece)])
          }
        }
        for (const { rank, taskId } of to) {
          for (const [part, [tensor, paramName]] of parts.entries()) {
            yield* service.submitSend(tensor, rank, taskId, { part, paramName })
          }
        }
      }),
    empty: (_, giveBack) => giveBack
  })
}

/** The receiving end. */
export const makeInbound = (context: TransferContext, { parcel, taskId }: Inbound, run: RunProgress): Transferable => {
  const { plan, rule, reductions, engine, service, views } = context
  const targetOf = ({ chunk, within }: Piece) =>
    Effect.fromResult(boxOf(plan, chunk, views.targets.get(chunk)!, within))
  return makeTransferable(context, parcel, "recv", run, {
    bufferBytes: recvBufferBytes(rule, parcel),
    fill: () => Effect.void,
    submit: (buffer) =>
      Effect.gen(function* () {
        if (buffer !== undefined && isWhole(rule, parcel)) {
          yield* service.submitRecv(buffer, parcel.from, taskId, { paramName: nameOf(context, parcel.pieces[0]!) })
          return
        }
        for (const [part, piece] of parcel.pieces.entries()) {
          const isStaged = buffer !== undefined && stagesRecv(rule, parcel, piece)
          const tensor = isStaged ? partOf(buffer, piece) : yield* targetOf(piece)
          yield* service.submitRecv(tensor, parcel.from, taskId, { part, paramName: nameOf(context, piece) })
        }
      }),
    empty: (buffer, giveBack) =>
      Effect.gen(function* () {
        if (buffer === undefined) return
        if (parcel.isReduction) {
          // The buffer goes back when the last piece in it has been reduced.
          let left = parcel.pieces.length
          const giveBackOne = Effect.suspend(() => (--left === 0 ? giveBack : Effect.void))
          for (const piece of parcel.pieces) {
            yield* reductions.deliver(piece, { tensor: partOf(buffer, piece), giveBack: giveBackOne })
          }
          return
        }
        const moves: Array<Move> = []
        for (const piece of parcel.pieces) {
          if (!stagesRecv(rule, parcel, piece)) continue
          moves.push({ dst: yield* targetOf(piece), src: partOf(buffer, piece) })
        }
        yield* Effect.mapError(engine.copy(moves), (error) => engineFailed(plan.rank, "writeback", error))
        yield* giveBack
      })
  })
}
