// SPDX-License-Identifier: Apache-2.0
/** What belongs together under one name, and what does not: batches of other pairs, and of pairs that were made again. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import { faultOf, fill } from "../tensors.ts"
import { all, register, twoAgents } from "./twoAgents.ts"

describe("identities", () => {
  it.live("a batch name used again under another pair of the same agents meets no statement of the first", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { a, b, tensor } = yield* twoAgents({ pairs: ["p", "q"], deadline: "3 seconds" })
        const [x, y] = [yield* tensor(), yield* tensor()]
        yield* all([register(a.client, "w", x), register(b.client, "w", y)])
        yield* all([a.client.cleanupBatch("w"), b.client.cleanupBatch("w")])
        const [longX, longY] = [yield* tensor(5), yield* tensor(5)]
        const first = yield* Effect.forkChild(register(a.client, "w", longX, "q"), { startImmediately: true })
        yield* register(b.client, "w", longY, "q")
        yield* Fiber.join(first)
        fill(longX, [1, 2, 3, 4, 5])
        yield* all([a.client.transfer("w", "send"), b.client.transfer("w", "recv")])
        assert.isUndefined(faultOf(longY, [1, 2, 3, 4, 5]))
      })
    )
  )
})
