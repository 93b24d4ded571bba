// SPDX-License-Identifier: Apache-2.0
/**
 * `TensorEngine` for memory of one device: strided copies and casts, and fills.
 *
 * Invariants: everything is checked before any byte moves; memory of the device stays while work on it runs, also when the
 * caller is interrupted or frees it meanwhile. Rows that no copy command takes, and casts, pass through host memory.
 */
import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import { bitsOf, byteLengthOf, type DType } from "@tensorferry/core/base/DType"
import { elementCount, formatShape, isRepresentable, type Shape } from "@tensorferry/core/base/Region"
import {
  type Fence,
  TensorEngine,
  type TensorEngineCapabilities,
  type TensorEngineShape,
  type TensorError
} from "@tensorferry/core/service/TensorEngine"
import { type Device, equalDevices, formatDevice } from "@tensorferry/core/tensor/Device"
import type { Storage } from "@tensorferry/core/tensor/Storage"
import { type Move, tensorView } from "@tensorferry/core/tensor/Tensor"
import { type Checked, hostStorage } from "@tensorferry/native/MoveChecks"
import { encodeFill } from "@tensorferry/native/MoveTable"
import { resultOf } from "@tensorferry/native/NativeAddon"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import type * as EffectScope from "effect/Scope"
import { backendName, loadAddon } from "./Addon.ts"
import { makeChecks } from "./checks.ts"
import { refusal, tensorFailure } from "./failures.ts"
import type { XpuOptions } from "./options.ts"
import { openXpu, type Xpu } from "./Xpu.ts"

/** What the engine of XPU memory promises; the conformance kit holds it to each flag. */
export const capabilities: TensorEngineCapabilities = { cast: true, reduce: false, quantize: [], hostVisible: false }

/** An engine on an open device. */
export const make = (xpu: Xpu): TensorEngineShape => {
  const { addon } = xpu
  const checks = makeChecks(xpu)
  /** Work that has begun and not ended, for fences. */
  const working = new Set<Deferred.Deferred<void, TensorError>>()

  const runTable = (op: string, table: BigUint64Array): Effect.Effect<void, TensorError> =>
    Effect.suspend(() => {
      if (table.length === 0) return Effect.void
      const ended = Deferred.makeUnsafe<void, TensorError>()
      working.add(ended)
      const work = xpu.run<undefined>((done) => addon.startMoves(xpu.native, table, done))
      return Effect.onExit(Effect.asVoid(Effect.mapError(work, (failure) => tensorFailure(op, failure))), (exit) =>
        Effect.suspend(() => {
          working.delete(ended)
          const isInterrupted = Exit.isFailure(exit) && Exit.hasInterrupts(exit)
          return isInterrupted
            ? Deferred.fail(ended, refusal("DeviceFailure", op, "The work was interrupted."))
            : Deferred.done(ended, exit)
        })
      )
    })

  const allocate = (dtype: DType, shape: Shape, on: Device = xpu.device) =>
    Effect.gen(function* () {
      if (!equalDevices(on, xpu.device)) {
        const [wanted, here] = [formatDevice(on), formatDevice(xpu.device)]
        return yield* refusal("Unsupported", "allocate", `There is no device ${wanted} here, only ${here}.`)
      }
      if (!isRepresentable(shape, bitsOf(dtype))) {
        return yield* refusal("InvalidRequest", "allocate", `${dtype}${formatShape(shape)} exceeds 2^53 bits.`)
      }
      const storage = yield* Effect.mapError(xpu.allocate(byteLengthOf(dtype, elementCount(shape))), (failure) =>
        tensorFailure("allocate", failure)
      )
      const view = tensorView(storage, dtype, shape)
      return yield* Result.isSuccess(view)
        ? Effect.succeed(view.success)
        : refusal("InvalidRequest", "allocate", `${view.failure.detail}.`)
    })

  const addressOfBytes = (bytes: Uint8Array): Checked<bigint> =>
    Result.mapError(resultOf(addon.addressOf(bytes)), (failure) => tensorFailure("wrapHost", failure))
  const wrap = (bytes: Uint8Array): Checked<Storage> => hostStorage(refusal, bytes, addressOfBytes)

  const unsupported = (op: string, what: string) =>
    Effect.suspend(() => Effect.fail(refusal("Unsupported", op, `This engine has no ${what}.`)))

  return {
    name: `${backendName} on ${xpu.facts.name}`,
    deviceFamilies: [backendName],
    capabilities,
    allocate,
    wrapHost: (bytes) =>
      Effect.acquireRelease(
        Effect.suspend(() => Effect.fromResult(wrap(bytes))),
        (storage) => Effect.sync(storage.free)
      ),
    copy: (moves: ReadonlyArray<Move>) =>
      Effect.suspend(() =>
        Effect.flatMap(Effect.fromResult(checks.checkBatch("copy", moves)), (table) => runTable("copy", table))
      ),
    reduce: (_dst, _sources, op) => unsupported(`reduce ${op}`, "reductions"),
    fill: (tensor, byte) =>
      Effect.suspend(() => {
        if (!Number.isInteger(byte) || byte < 0 || byte > 255) {
          return Effect.fail(refusal("InvalidRequest", "fill", `${byte} is not a byte.`))
        }
        const checked = checks.checkMove("fill", { dst: tensor, src: tensor })
        if (Result.isFailure(checked)) return Effect.fail(checked.failure)
        const { dst } = checked.success
        return dst.shape.includes(0) ? Effect.void : runTable("fill", encodeFill(dst, byte))
      }),
    quantize: () => unsupported("quantize", "block-scaled types"),
    dequantize: () => unsupported("dequantize", "block-scaled types"),
    fence: Effect.sync((): Fence => {
      const submitted = [...working]
      return { await: Effect.forEach(submitted, Deferred.await, { discard: true }) }
    })
  }
}

/** An engine on the device that the options choose. */
export const open = Effect.fnUntraced(function* (
  options: XpuOptions
): Effect.fn.Return<TensorEngineShape, BackendError, EffectScope.Scope> {
  return make(yield* openXpu(yield* loadAddon, options))
})

/** Fails with "Unavailable" where there is no device, or nothing to reach it with. */
export const layer = (options: XpuOptions = {}): Layer.Layer<TensorEngine, BackendError> =>
  Layer.effect(TensorEngine, open(options))
