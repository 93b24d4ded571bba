// SPDX-License-Identifier: Apache-2.0
/** Host memory that a device reaches directly: for the time of one piece of work, or for as long as a scope. */
import type { TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import type { NativeFailure } from "@tensorferry/native/NativeAddon"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { NativePin } from "./Addon.ts"
import type { Checks, HostRange } from "./checks.ts"
import { tensorFailure } from "./failures.ts"
import type { Gpu } from "./Gpu.ts"

/** The pins of one engine. */
export const makePins = ({ addon, native }: Gpu, checks: Checks) => {
  /** Pins all ranges or none; gives how to undo it. */
  const pinAll = (ranges: ReadonlyArray<HostRange>): Result.Result<() => void, NativeFailure> => {
    const pins: Array<NativePin> = []
    const unpin = () => {
      for (const pin of pins) addon.unpinHost(pin)
    }
    for (const { address, byteLength } of ranges) {
      const pinned = addon.pinHost(native, BigInt(address), byteLength)
      if (pinned.code !== "Ok") {
        unpin()
        return Result.fail(pinned)
      }
      pins.push(pinned.value)
    }
    return Result.succeed(unpin)
  }

  const pinHost: NonNullable<TensorEngineShape["pinHost"]> = (tensor) =>
    Effect.asVoid(
      Effect.acquireRelease(
        Effect.suspend(() => {
          const fault = checks.memoryFault("pinHost", tensor)
          if (fault !== undefined) return Effect.fail(fault)
          return Effect.fromResult(
            Result.mapError(pinAll(checks.pinsOf([tensor])), (failure) => tensorFailure("pinHost", failure))
          )
        }),
        (unpin) => Effect.sync(unpin)
      )
    )

  return { pinAll, pinHost }
}
