// SPDX-License-Identifier: Apache-2.0
/** Strict options: what a user wrote wrong is refused, all of it at once, however the schema is asked. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { decodeBackendOptions } from "../../src/backend/OptionsLayer.ts"
import { strictOptions } from "../../src/backend/StrictOptions.ts"

const Options = strictOptions(
  Schema.Struct({
    threads: Schema.optionalKey(Schema.Int),
    libraries: Schema.optionalKey(Schema.Struct({ runtime: Schema.optionalKey(Schema.String) }))
  })
)

describe("strictOptions", () => {
  it("gives back options that are right", () => {
    const options = { threads: 3, libraries: { runtime: "a" } }
    assert.deepStrictEqual<unknown>(Result.getOrThrow(Schema.decodeUnknownResult(Options)(options)), options)
  })

  it("refuses an unknown name although the decoder does not ask for it", () => {
    const refused = Schema.decodeUnknownResult(Options)({ libraries: { runtimes: "a" } })
    assert.include(Result.isFailure(refused) ? refused.failure.message : "", "runtimes")
  })

  it.effect("names every wrong field, also unknown and nested ones", () =>
    Effect.gen(function* () {
      const wrong = { threads: "two", thread: 2, libraries: { runtime: 7, compiler: "b" } }
      const { reason } = yield* Effect.flip(decodeBackendOptions(Options, "some", wrong, "Look at the options."))
      assert.strictEqual(reason._tag, "InvalidOptions")
      assert.sameMembers(reason.detail.slice(0, -1).split("; "), [
        'threads must be number, but is "two"',
        "thread is not known",
        "libraries.runtime must be string, but is 7",
        "libraries.compiler is not known"
      ])
    })
  )
})
