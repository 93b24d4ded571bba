// SPDX-License-Identifier: Apache-2.0
/**
 * How received bytes get into their destination: they arrive there (`Direct`), arrive in a buffer of the wire type and are
 * cast over (`Copy`), or go through a transform (`Transform`). Chosen per transfer before anything moves.
 */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { regionShape } from "../base/Region.ts"
import type { TransferOp } from "../ir/TransferOp.ts"
import { TensorEngine, type TensorError } from "../service/TensorEngine.ts"
import type { QuantizedTensor } from "../tensor/QuantizedTensor.ts"
import type { Move, Tensor } from "../tensor/Tensor.ts"
import type { ReshardTransform, TransformError, TransformOp } from "../transform/ReshardTransform.ts"
import { plainView } from "./PlanTensors.ts"
import { type ReshardError, reshardError } from "./ReshardError.ts"

export type Writeback =
  | { readonly _tag: "Direct"; readonly op: TransferOp; readonly buffers: readonly [Tensor] }
  | {
      readonly _tag: "Copy"
      readonly op: TransferOp
      readonly buffers: readonly [Tensor]
      readonly destination: Tensor
    }
  | {
      readonly _tag: "Transform"
      readonly op: TransferOp
      readonly buffers: ReadonlyArray<Tensor>
      readonly transform: ReshardTransform
      readonly transformOp: TransformOp
    }

/** A failed transform as the error of an update: adds the rank, the parameter and the task. */
export const transformFailed = (rank: number, op: TransferOp, error: TransformError): ReshardError =>
  reshardError("TransformFailed", {
    ...error.reason,
    rank,
    paramName: op.paramName,
    taskId: op.taskId,
    detail: error.message
  })

/** A failed engine as the error of an update: adds the rank and the operation. */
export const engineFailed = (rank: number, op: string, error: TensorError): ReshardError =>
  reshardError("WritebackFailed", { ...error.reason, rank, op, detail: error.message })

/** Decides how one receive is written and gives it a place to arrive. */
export const makeWriteback = Effect.fnUntraced(function* (
  rank: number,
  op: TransferOp,
  destination: Tensor | QuantizedTensor,
  transform: ReshardTransform | undefined
): Effect.fn.Return<Writeback, ReshardError, TensorEngine | Scope.Scope> {
  if (transform?.shouldTransform(op.paramName) === true) {
    const transformOp: TransformOp = { paramName: op.paramName, region: op.mySlice, tensor: destination }
    const buffers = yield* Effect.mapError(transform.prepareRecv(transformOp), (error) =>
      transformFailed(rank, op, error)
    )
    return { _tag: "Transform", op, buffers, transform, transformOp }
  }
  const view = yield* plainView(rank, op, destination)
  if (view.dtype === op.wireDtype) return { _tag: "Direct", op, buffers: [view] }
  const engine = yield* TensorEngine
  const allocated = engine.allocate(op.wireDtype, regionShape(op.mySlice), view.device)
  const buffer = yield* Effect.mapError(allocated, (error) => engineFailed(rank, "allocate", error))
  return { _tag: "Copy", op, buffers: [buffer], destination: view }
})

/** Writes everything that did not arrive in place: all casts in one batch, then transforms in order of their tasks. */
export const finishWritebacks = Effect.fnUntraced(function* (
  rank: number,
  writebacks: ReadonlyArray<Writeback>
): Effect.fn.Return<void, ReshardError, TensorEngine> {
  const engine = yield* TensorEngine
  const moves = writebacks.flatMap(
    (writeback): ReadonlyArray<Move> =>
      writeback._tag === "Copy" ? [{ dst: writeback.destination, src: writeback.buffers[0] }] : []
  )
  if (moves.length > 0) yield* Effect.mapError(engine.copy(moves), (error) => engineFailed(rank, "writeback", error))
  for (const writeback of writebacks) {
    if (writeback._tag !== "Transform") continue
    const finalized = writeback.transform.finalizeRecv(writeback.transformOp, writeback.buffers)
    yield* Effect.mapError(finalized, (error) => transformFailed(rank, writeback.op, error))
  }
})
