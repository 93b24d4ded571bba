// SPDX-License-Identifier: Apache-2.0
/**
 * What tensor engines of every device have in common around their own work: allocation, wrapped host bytes, the check of
 * a fill, and the account of running work that fences wait for.
 */
import { bitsOf, byteLengthOf, type DType } from "@tensorferry/core/base/DType"
import { elementCount, formatShape, isRepresentable, type Shape } from "@tensorferry/core/base/Region"
import type { Fence, TensorEngineShape, TensorError } from "@tensorferry/core/service/TensorEngine"
import { type Device, equalDevices, formatDevice } from "@tensorferry/core/tensor/Device"
import type { Storage } from "@tensorferry/core/tensor/Storage"
import { type Move, type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import type { AddressOf } from "./HostProof.ts"
import { type Checked, hostStorage, type Refusal } from "./MoveChecks.ts"
import { type NativeFailure, resultOf } from "./NativeAddon.ts"

/** An engine's words for failures. */
export interface EngineErrors {
  /** Makes the error of a check that failed. */
  readonly refusal: Refusal
  /** The error of native work that failed. */
  readonly failureOf: (op: string, failure: NativeFailure) => TensorError
}

/** Runs `then` with what was checked, or fails with why it was refused. */
export const checkedWork = <A, B>(
  checked: () => Checked<A>,
  then: (value: A) => Effect.Effect<B, TensorError>
): Effect.Effect<B, TensorError> => Effect.suspend(() => Effect.flatMap(Effect.fromResult(checked()), then))

/** `allocate` of an engine of one device; `allocateBytes` finds the memory. */
export const makeAllocate =
  (
    { refusal }: EngineErrors,
    here: Device,
    allocateBytes: (byteLength: number) => Effect.Effect<Storage, TensorError, Scope.Scope>
  ): TensorEngineShape["allocate"] =>
  (dtype: DType, shape: Shape, device: Device = here) =>
    Effect.gen(function* () {
      if (!equalDevices(device, here)) {
        const detail = `There is no device ${formatDevice(device)} here, only ${formatDevice(here)}.`
        return yield* refusal("Unsupported", "allocate", detail)
      }
      if (!isRepresentable(shape, bitsOf(dtype))) {
        return yield* refusal("InvalidRequest", "allocate", `${dtype}${formatShape(shape)} exceeds 2^53 bits.`)
      }
      const storage = yield* allocateBytes(byteLengthOf(dtype, elementCount(shape)))
      const view = tensorView(storage, dtype, shape)
      return yield* Result.isSuccess(view)
        ? Effect.succeed(view.success)
        : refusal("InvalidRequest", "allocate", `${view.failure.detail}.`)
    })

/** `wrapHost` of an engine: the bytes stay the caller's. */
export const makeWrapHost =
  ({ refusal, failureOf }: EngineErrors, addon: AddressOf): TensorEngineShape["wrapHost"] =>
  (bytes) =>
    Effect.acquireRelease(
      Effect.suspend(() =>
        Effect.fromResult(
          hostStorage(refusal, bytes, (given) =>
            Result.mapError(resultOf(addon.addressOf(given)), (failure) => failureOf("wrapHost", failure))
          )
        )
      ),
      (storage) => Effect.sync(storage.free)
    )

/** The move of a tensor onto itself that stands for filling it, checked. */
export const makeFillCheck =
  ({ refusal }: EngineErrors, checkMove: (op: string, move: Move) => Checked<Move>) =>
  (tensor: Tensor, byte: number): Checked<Move> =>
    Number.isInteger(byte) && byte >= 0 && byte <= 255
      ? checkMove("fill", { dst: tensor, src: tensor })
      : Result.fail(refusal("InvalidRequest", "fill", `${byte} is not a byte.`))

/** Work that has begun and not ended, for fences. */
export const makeWorkAccount = ({ refusal, failureOf }: EngineErrors) => {
  const working = new Set<Deferred.Deferred<void, TensorError>>()
  return {
    /** Runs native work; fences that were made meanwhile wait for its end. */
    work: <A>(op: string, run: Effect.Effect<A, NativeFailure>): Effect.Effect<void, TensorError> =>
      Effect.suspend(() => {
        const ended = Deferred.makeUnsafe<void, TensorError>()
        working.add(ended)
        return Effect.onExit(Effect.asVoid(Effect.mapError(run, (failure) => failureOf(op, failure))), (exit) =>
          Effect.suspend(() => {
            working.delete(ended)
            const isInterrupted = Exit.isFailure(exit) && Exit.hasInterrupts(exit)
            return isInterrupted
              ? Deferred.fail(ended, refusal("DeviceFailure", op, "The work was interrupted."))
              : Deferred.done(ended, exit)
          })
        )
      }),
    fence: Effect.sync((): Fence => {
      const submitted = [...working]
      return { await: Effect.forEach(submitted, Deferred.await, { discard: true }) }
    })
  }
}
