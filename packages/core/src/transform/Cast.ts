// SPDX-License-Identifier: Apache-2.0
/**
 * Sends chosen parameters in another element type, whatever the two ends hold: fewer bytes on the wire for a rounding that
 * the caller asked for by name. The engine's rules of rounding hold at both casts; `saturate` replaces its rule of overflow on
 * the way to the wire.
 */
import * as Effect from "effect/Effect"
import type { DType } from "../base/DType.ts"
import { regionShape } from "../base/Region.ts"
import { globMatches } from "../layout/ShardingRules.ts"
import { TensorEngine } from "../service/TensorEngine.ts"
import { fromTensorError, plainRegion, type ReshardTransform, type TransformOp } from "./ReshardTransform.ts"
import { saturatingCast } from "./Saturation.ts"

/** What is cast on the way, to what. */
export interface CastOptions {
  readonly wireDtype: DType
  /** Globs over parameter names; all parameters by default. */
  readonly parameters?: ReadonlyArray<string>
  /** Values beyond the largest of the wire type become the largest, where they would become infinite. */
  readonly saturate?: boolean
}

/** Sends chosen parameters in another type. */
export const cast = (options: CastOptions): ReshardTransform => {
  const buffer = Effect.fnUntraced(function* (op: TransformOp) {
    const view = yield* plainRegion(op)
    const engine = yield* TensorEngine
    const allocated = engine.allocate(options.wireDtype, regionShape(op.region), view.device)
    return yield* Effect.mapError(allocated, (error) => fromTensorError(op.paramName, error))
  })
  return {
    name: `cast ${options.wireDtype}${options.saturate === true ? ", saturating" : ""}`,
    shouldTransform: (paramName) => (options.parameters ?? ["*"]).some((pattern) => globMatches(pattern, paramName)),
    prepareSend: Effect.fnUntraced(function* (op) {
      const engine = yield* TensorEngine
      const src = yield* plainRegion(op)
      const dst = yield* buffer(op)
      const converted = options.saturate === true ? saturatingCast(dst, src) : engine.copy([{ dst, src }])
      yield* Effect.mapError(converted, (error) => fromTensorError(op.paramName, error))
      return [dst]
    }),
    prepareRecv: (op) => Effect.map(buffer(op), (tensor) => [tensor]),
    finalizeRecv: Effect.fnUntraced(function* (op, [src]) {
      const engine = yield* TensorEngine
      const dst = yield* plainRegion(op)
      yield* Effect.mapError(engine.copy([{ dst, src: src! }]), (error) => fromTensorError(op.paramName, error))
    })
  }
}
