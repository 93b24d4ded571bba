// SPDX-License-Identifier: Apache-2.0
/**
 * Changes tensors on their way: what travels, and what becomes of it at the other end.
 *
 * Contract
 * - For a parameter that `shouldTransform` chooses, the sender's `prepareSend` and the receiver's `prepareRecv` return
 *   tensors that agree in number, shape and type, part by part; the copy service compares them before any byte moves.
 *   `(taskId, part)` identifies a part of a transfer, so several tensors per transfer also work within a rank.
 * - `finalizeRecv` runs after the last byte of the whole update, once per transfer, and writes into the destination.
 * - Tensors that the hooks allocate live in the scope of the update.
 * - All transfers of an update are prepared before the first is finalized, so that a transform may gather what belongs
 *   together and convert it once.
 * - Both ends must choose the same parameters unless a transform leaves the wire form as it is.
 */
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import { ReasonError, type ReasonInput, reason, reasonOf } from "../base/Reason.ts"
import type { Region } from "../base/Region.ts"
import type { TensorEngine, TensorError } from "../service/TensorEngine.ts"
import { isQuantized, type QuantizedTensor } from "../tensor/QuantizedTensor.ts"
import { sliceTensor, type Tensor } from "../tensor/Tensor.ts"

/** Why a transform cannot prepare or finish a transfer. */
export const TransformReason = Schema.Union([
  /** The transform cannot handle this tensor or region. */
  reason("UnsupportedTensor"),
  /** A region that the transform cannot cut; the remedy names the nearest one that it can. */
  reason("UnalignedRegion"),
  /** The two ends, or a tensor and the transform, name different recipes. */
  reason("RecipeMismatch"),
  /** The transfers of an update do not make up the tensor that they are gathered for. */
  reason("IncompleteTensor"),
  /** More would be gathered at one time than the transform may hold. */
  reason("LimitExceeded"),
  /** Transforms that cannot work one after the other. */
  reason("InvalidComposition"),
  /** The engine failed on the transform's behalf. */
  reason("EngineFailed")
])
export type TransformReason = typeof TransformReason.Type

/** Why a transform refused a tensor or failed at it. */
export class TransformError extends ReasonError<TransformError>()("TransformError", TransformReason) {}

/** Makes the error; scope and retryability default to "op" and false. */
export const transformError = (tag: TransformReason["_tag"], input: ReasonInput): TransformError =>
  new TransformError({ reason: reasonOf(tag, input) })

/** A failed engine as the error of a transform: adds the parameter. */
export const fromTensorError = (paramName: string, error: TensorError): TransformError =>
  transformError("EngineFailed", { ...error.reason, paramName, detail: error.message })

/** One end of one transfer, as a transform sees it. */
export interface TransformOp {
  readonly paramName: string
  readonly region: Region
  readonly tensor: Tensor | QuantizedTensor
}

/**
 * What becomes of chosen parameters on their way: buffers in the wire's form on both ends, and work before and after them.
 */
export interface ReshardTransform {
  /** Names the transform in errors; equal on both ends. */
  readonly name: string
  /** Whether it takes a parameter; others travel as they are. The same answer on all ranks. */
  readonly shouldTransform: (paramName: string) => boolean
  /** Tensors per transfer; 1 where it is not said. */
  readonly parts?: number
  /** True where the receiving end must be a quantized tensor. */
  readonly needsQuantized?: boolean
  /** Is given all that a rank receives in an update, before the first of it is prepared. */
  readonly begin?: (receives: ReadonlyArray<TransformOp>) => void
  /** The tensors to send. */
  readonly prepareSend: (
    op: TransformOp
  ) => Effect.Effect<ReadonlyArray<Tensor>, TransformError, TensorEngine | Scope.Scope>
  /** Where they arrive. */
  readonly prepareRecv: (
    op: TransformOp
  ) => Effect.Effect<ReadonlyArray<Tensor>, TransformError, TensorEngine | Scope.Scope>
  /** Brings what arrived in the buffers of `prepareRecv` into the destination. */
  readonly finalizeRecv: (
    op: TransformOp,
    buffers: ReadonlyArray<Tensor>
  ) => Effect.Effect<void, TransformError, TensorEngine>
}

/** The region of a plain tensor, for transforms that do not handle quantized ones. */
export const plainRegion = (op: TransformOp): Effect.Effect<Tensor, TransformError> => {
  if (isQuantized(op.tensor)) {
    return Effect.fail(
      transformError("UnsupportedTensor", {
        paramName: op.paramName,
        detail: "The tensor is quantized.",
        remedy: "Use a transform that reads or writes its recipe."
      })
    )
  }
  return regionOf(op.paramName, op.tensor, op.region)
}

/** A region of a plain tensor. */
export const regionOf = (paramName: string, tensor: Tensor, region: Region): Effect.Effect<Tensor, TransformError> => {
  const view = sliceTensor(tensor, region)
  return Result.isSuccess(view)
    ? Effect.succeed(view.success)
    : Effect.fail(
        transformError("UnsupportedTensor", {
          paramName,
          detail: view.failure.detail,
          remedy: "Make the plan again for these tensors."
        })
      )
}
