// SPDX-License-Identifier: Apache-2.0
/** What the package offers, and what its probe says. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { descriptor } from "../src/descriptor.ts"
import { noUcx } from "./support.ts"

describe("the descriptor", () => {
  it.live.skipIf(noUcx !== undefined)(`probes the library, its version and its transports${noUcx ?? ""}`, () =>
    Effect.gen(function* () {
      const probed = yield* descriptor.probe
      assert.strictEqual(probed._tag, "Available")
      if (probed._tag !== "Available") return
      assert.match(probed.versions?.ucx ?? "", /^1\.\d+\.\d+/)
      assert.match(probed.detail, /libucp\.so.*transports .*tcp\/lo/)
    })
  )

  it.live("a library that is not there is said with its name and what to install", () =>
    Effect.gen(function* () {
      process.env.TENSORFERRY_UCX_LIBRARY = "/nowhere/libucp.so.0"
      const probed = yield* Effect.ensuring(
        descriptor.probe,
        Effect.sync(() => {
          delete process.env.TENSORFERRY_UCX_LIBRARY
        })
      )
      assert.strictEqual(probed._tag, "Unavailable")
      if (probed._tag !== "Unavailable") return
      assert.deepStrictEqual(probed.tried, ["/nowhere/libucp.so.0"])
      assert.include(probed.remedy, "libucx0")
    })
  )
})
