// SPDX-License-Identifier: Apache-2.0
/**
 * Transfers of drivers that move bytes in fibers, and the transfer of a rank that has nothing to do.
 *
 * Invariant: `cancel` ends when the work has ended, so that nothing touches a region afterwards.
 */
import type { Message } from "@tensorferry/core/ir/Message"
import type { CopyDriverError, InFlight } from "@tensorferry/core/service/CopyDriver"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type * as Scope from "effect/Scope"
import type { DriverErrors } from "./DriverErrors.ts"

/** Has ended before it began. */
export const nothingToMove: InFlight = {
  isComplete: Effect.succeed(true),
  await: Effect.void,
  cancel: Effect.void,
  movedBytes: Effect.succeed(0)
}

/** Begins work that counts the bytes it has moved. It ends with the scope at the latest. */
export const forkTransfer = (
  scope: Scope.Scope,
  work: (moved: (byteLength: number) => void) => Effect.Effect<unknown, CopyDriverError>
): Effect.Effect<InFlight> =>
  Effect.gen(function* () {
    let movedBytes = 0
    const moving = work((byteLength) => {
      movedBytes += byteLength
    })
    const fiber = yield* Effect.forkIn(moving, scope, { startImmediately: true })
    return {
      isComplete: Effect.sync(() => fiber.pollUnsafe() !== undefined),
      await: Effect.asVoid(Fiber.join(fiber)),
      cancel: Fiber.interrupt(fiber),
      movedBytes: Effect.sync(() => movedBytes)
    }
  })

/** The bytes of a message for a driver without `gather`, which gets one dense part. Ask again after every wait. */
export const messageBytes = (
  errors: DriverErrors,
  { parts, byteLength, peer }: Message
): Effect.Effect<Uint8Array, CopyDriverError> =>
  Effect.suspend(() => {
    const { storage, byteOffset } = parts[0]!.tensor
    if (storage.bytes !== undefined && !storage.isFreed()) {
      return Effect.succeed(storage.bytes.subarray(byteOffset, byteOffset + byteLength))
    }
    const detail = "The tensor's memory was freed, or shows no bytes to the host."
    return Effect.fail(errors.fail("InvalidProgram", detail, { peer, op: "run", scope: "op" }))
  })
