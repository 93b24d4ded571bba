// SPDX-License-Identifier: Apache-2.0
/**
 * Casts that saturate: values beyond the largest of the target become the largest, infinity included; NaN stays NaN. Made
 * of the engine's own operations, so that all devices give the same bits.
 */
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import type { DType } from "../base/DType.ts"
import { TensorEngine, type TensorError } from "../service/TensorEngine.ts"
import { type Tensor, tensorView } from "../tensor/Tensor.ts"

/** The largest values of the types that have infinities, and so do not saturate by themselves. */
const largest: Partial<Record<DType, number>> = {
  float16: 65504,
  bfloat16: 2 ** 127 * (2 - 2 ** -7),
  float8_e5m2: 57344,
  float32: 2 ** 127 * (2 - 2 ** -23)
}

/** One value as a tensor of any shape, none of whose dimensions advances. */
const constant = (value: number, like: Tensor): Effect.Effect<Tensor, TensorError, TensorEngine | Scope.Scope> =>
  Effect.gen(function* () {
    const engine = yield* TensorEngine
    const storage = yield* engine.wrapHost(new Uint8Array(new Float32Array([value]).buffer))
    const one = yield* engine.allocate("float32", [1], like.device)
    yield* engine.copy([{ dst: one, src: Result.getOrThrow(tensorView(storage, "float32", [1])) }])
    return { ...one, shape: like.shape, strides: like.shape.map(() => 0) }
  })

/** Casts; everything that it allocates lives in the scope. */
export const saturatingCast = (
  dst: Tensor,
  src: Tensor
): Effect.Effect<void, TensorError, TensorEngine | Scope.Scope> =>
  Effect.gen(function* () {
    const engine = yield* TensorEngine
    const limit = largest[dst.dtype]
    if (limit === undefined || src.shape.includes(0)) return yield* engine.copy([{ dst, src }])
    const wide = yield* engine.allocate("float32", src.shape, src.device)
    yield* engine.copy([{ dst: wide, src }])
    const capped = yield* engine.allocate("float32", src.shape, src.device)
    yield* engine.reduce(capped, [wide, yield* constant(limit, wide)], "min")
    yield* engine.reduce(wide, [capped, yield* constant(-limit, wide)], "max")
    yield* engine.copy([{ dst, src: wide }])
  })
