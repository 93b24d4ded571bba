// SPDX-License-Identifier: Apache-2.0
/** Transfers in fibers: they count, end, fail and stop as the driver's contract says. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Scope from "effect/Scope"
import { driverErrors } from "../../src/driver/DriverErrors.ts"
import { forkTransfer, messageBytes } from "../../src/driver/Transfers.ts"
import { bytesAt, messageOf, storageOf } from "./support.ts"

const errors = driverErrors("some", 0)

describe("forkTransfer", () => {
  it.effect("counts moved bytes and is complete when the work has ended", () =>
    Effect.gen(function* () {
      const leave = yield* Deferred.make<void>()
      const flight = yield* forkTransfer(yield* Scope.make(), (moved) =>
        Effect.sync(() => moved(3)).pipe(
          Effect.andThen(Deferred.await(leave)),
          Effect.andThen(Effect.sync(() => moved(4)))
        )
      )
      assert.strictEqual(yield* flight.movedBytes, 3)
      assert.isFalse(yield* flight.isComplete)
      yield* Deferred.succeed(leave, undefined)
      yield* flight.await
      assert.isTrue(yield* flight.isComplete)
      assert.strictEqual(yield* flight.movedBytes, 7)
    })
  )

  it.effect("fails with the work's own failure", () =>
    Effect.gen(function* () {
      const flight = yield* forkTransfer(yield* Scope.make(), () => errors.fail("PeerGone", "Gone.", { peer: 1 }))
      assert.strictEqual((yield* Effect.flip(flight.await)).reason._tag, "PeerGone")
    })
  )

  it.effect("is stopped, finalizers included, when cancel has ended", () =>
    Effect.gen(function* () {
      let isStopped = false
      const flight = yield* forkTransfer(yield* Scope.make(), () =>
        Effect.ensuring(
          Effect.never,
          Effect.sync(() => {
            isStopped = true
          })
        )
      )
      yield* flight.cancel
      assert.isTrue(isStopped)
      assert.isTrue(yield* flight.isComplete)
    })
  )
})

describe("messageBytes", () => {
  it.effect("are the bytes of the dense part, until its memory is freed", () =>
    Effect.gen(function* () {
      const storage = storageOf(16)
      storage.bytes!.set([1, 2, 3], 5)
      const message = messageOf(1, "send", 0, bytesAt(storage, 5, 3))
      assert.deepStrictEqual(Array.from(yield* messageBytes(errors, message)), [1, 2, 3])
      storage.free()
      assert.deepInclude((yield* Effect.flip(messageBytes(errors, message))).reason, {
        _tag: "InvalidProgram",
        peer: 1
      })
    })
  )
})
