// SPDX-License-Identifier: Apache-2.0
/** The life of a prepared program: until its scope closes or its memory is freed, and never longer. */
import { assert, describe, it } from "@effect/vitest"
import type { InFlight, Program } from "@tensorferry/core/service/CopyDriver"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import { driverErrors } from "../../src/driver/DriverErrors.ts"
import { makeProgramEntries } from "../../src/driver/ProgramEntries.ts"
import { nothingToMove } from "../../src/driver/Transfers.ts"
import { bytesAt, messageOf, storageOf } from "./support.ts"

const errors = driverErrors("some", 0)
const entriesOf = () => makeProgramEntries<{ readonly name: string }>(() => errors.fail("InvalidProgram", "Foreign."))

const programOf = () => {
  const storage = storageOf(8)
  const program: Program = { messages: [messageOf(1, "send", 0, bytesAt(storage, 0, 8))], paths: [] }
  return { storage, program }
}

describe("program entries", () => {
  it.effect("keep what the driver prepared, and know no program of another driver", () =>
    Effect.gen(function* () {
      const entries = entriesOf()
      const { program } = programOf()
      yield* entries.add(program, { name: "mine" })
      assert.strictEqual(entries.find(program)?.name, "mine")
      assert.isUndefined(entriesOf().find(program))
      const refused = yield* Effect.flip(entriesOf().start(program, () => Effect.succeed(nothingToMove)))
      assert.strictEqual(refused.reason.detail, "Foreign.")
    })
  )

  it.effect("end when a storage under the program is freed", () =>
    Effect.gen(function* () {
      const entries = entriesOf()
      const { storage, program } = programOf()
      const entry = yield* entries.add(program, { name: "mine" })
      assert.isTrue(entry.isUsable)
      storage.free()
      assert.isFalse(entry.isUsable)
    })
  )

  it.effect("have ended where the storage was freed while the program was prepared", () =>
    Effect.gen(function* () {
      const { storage, program } = programOf()
      storage.free()
      assert.isFalse((yield* entriesOf().add(program, { name: "mine" })).isUsable)
    })
  )

  it.effect("end with the scope, which cancels the latest start", () =>
    Effect.gen(function* () {
      const entries = entriesOf()
      const { program } = programOf()
      const scope = yield* Scope.make()
      const entry = yield* Scope.provide(entries.add(program, { name: "mine" }), scope)
      const cancelled: Array<string> = []
      const flight = (name: string): InFlight => ({
        ...nothingToMove,
        isComplete: Effect.succeed(false),
        cancel: Effect.sync(() => cancelled.push(name))
      })
      yield* entries.start(program, () => Effect.succeed(flight("first")))
      yield* entries.start(program, ({ name }) => Effect.succeed(flight(name)))
      assert.deepStrictEqual(cancelled, [])
      yield* Scope.close(scope, Exit.void)
      assert.deepStrictEqual(cancelled, ["mine"])
      assert.isFalse(entry.isUsable)
      assert.isFalse(entries.find(program)?.isUsable)
    })
  )

  it.effect("leave a transfer alone that has ended before the scope does", () =>
    Effect.gen(function* () {
      const entries = entriesOf()
      const { program } = programOf()
      const scope = yield* Scope.make()
      yield* Scope.provide(entries.add(program, { name: "mine" }), scope)
      let isCancelled = false
      const cancel = Effect.sync(() => {
        isCancelled = true
      })
      yield* entries.start(program, () => Effect.succeed({ ...nothingToMove, cancel }))
      yield* Scope.close(scope, Exit.void)
      assert.isFalse(isCancelled)
    })
  )
})
