// SPDX-License-Identifier: Apache-2.0
/**
 * Values that two conventions hold differently, changed where they are sent: norms centred on zero, the decay of a Mamba
 * mixer. They travel as float32. Such tensors are vectors; what is large never comes here.
 */
import { regionShape } from "@tensorferry/core/base/Region"
import { TensorEngine, type TensorError } from "@tensorferry/core/service/TensorEngine"
import { type Tensor, tensorElementCount, tensorView } from "@tensorferry/core/tensor/Tensor"
import {
  fromTensorError,
  plainRegion,
  type ReshardTransform,
  type TransformOp,
  transformError
} from "@tensorferry/core/transform/ReshardTransform"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { Scalar } from "./Strips.ts"

const apply = (scalar: Scalar, value: number): number =>
  scalar === "negExp" ? -Math.exp(value) : scalar === "logNeg" ? Math.log(-value) : value + scalar.add

/** Changes the values of parameters that `scalarOf` names; the others travel as they are. */
export const scalarTransform = (scalarOf: (paramName: string) => Scalar | undefined): ReshardTransform => {
  const failing = <A, R>(op: TransformOp, effect: Effect.Effect<A, TensorError, R>) =>
    Effect.mapError(effect, (error) => fromTensorError(op.paramName, error))
  const buffer = Effect.fnUntraced(function* (op: TransformOp) {
    const view = yield* plainRegion(op)
    const engine = yield* TensorEngine
    return yield* failing(op, engine.allocate("float32", regionShape(op.region), view.device))
  })
  return {
    name: "scalar functions",
    shouldTransform: (paramName) => scalarOf(paramName) !== undefined,
    prepareSend: Effect.fnUntraced(function* (op) {
      const scalar = scalarOf(op.paramName)!
      const engine = yield* TensorEngine
      const src = yield* plainRegion(op)
      const sent = yield* buffer(op)
      const values = new Float32Array(tensorElementCount(sent))
      const storage = yield* failing(op, engine.wrapHost(new Uint8Array(values.buffer)))
      const host = tensorView(storage, "float32", sent.shape)
      if (Result.isFailure(host))
        return yield* transformError("UnsupportedTensor", {
          paramName: op.paramName,
          detail: host.failure.detail,
          remedy: "Make the plan again for these tensors."
        })
      yield* failing(op, engine.copy([{ dst: host.success, src }]))
      for (const [at, value] of values.entries()) values[at] = apply(scalar, value)
      yield* failing(op, engine.copy([{ dst: sent, src: host.success }]))
      return [sent] satisfies ReadonlyArray<Tensor>
    }),
    prepareRecv: (op) => Effect.map(buffer(op), (tensor) => [tensor]),
    finalizeRecv: Effect.fnUntraced(function* (op, [src]) {
      const engine = yield* TensorEngine
      const dst = yield* plainRegion(op)
      yield* failing(op, engine.copy([{ dst, src: src! }]))
    })
  }
}
