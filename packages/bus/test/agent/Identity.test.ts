// SPDX-License-Identifier: Apache-2.0
/** What belongs together under one name, and what does not: batches of other pairs, and of pairs that were made again. */
import { assert, describe, it } from "@effect/vitest"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
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

describe("tensors of a pair", () => {
  it.live("meet by name where both sides name them, whatever the order", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { a, b, tensor } = yield* twoAgents()
        const [up, down, upThere, downThere] = [yield* tensor(), yield* tensor(), yield* tensor(), yield* tensor()]
        const named = (...tensors: ReadonlyArray<readonly [string, Tensor]>) => ({
          batch: "w",
          tensors: tensors.map(([name, each]) => ["p", each, name] as const)
        })
        yield* all([
          a.client.registerTensors(named(["up", up], ["down", down])),
          b.client.registerTensors(named(["down", downThere], ["up", upThere]))
        ])
        for (const [from, to, source, targets] of [
          [a, b, [up, down], [upThere, downThere]],
          [b, a, [upThere, downThere], [up, down]]
        ] as const) {
          fill(source[0], [1, 2, 3, 4])
          fill(source[1], [5, 6, 7, 8])
          for (const target of targets) target.storage.bytes!.fill(0xa5)
          yield* all([from.client.transfer("w", "send"), to.client.transfer("w", "recv")])
          assert.isUndefined(faultOf(targets[0], [1, 2, 3, 4]))
          assert.isUndefined(faultOf(targets[1], [5, 6, 7, 8]))
        }
      })
    )
  )

  it.live("are refused with the names that one side alone has, and with one that stands twice", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { a, b, tensor } = yield* twoAgents()
        const [x, y, z, w] = [yield* tensor(), yield* tensor(), yield* tensor(), yield* tensor()]
        const first = { batch: "w", tensors: [["p", x, "up"] as const, ["p", y, "gate"] as const] }
        const second = { batch: "w", tensors: [["p", z, "up"] as const, ["p", w, "down"] as const] }
        for (const error of yield* all([
          Effect.flip(a.client.registerTensors(first)),
          Effect.flip(b.client.registerTensors(second))
        ])) {
          assert.strictEqual(error.reason._tag, "BatchMismatch")
          assert.match(error.message, /agent 0 alone has p gate; agent 1 alone has p down/)
        }
        const twice = { batch: "w", tensors: [["p", x, "up"] as const, ["p", y, "up"] as const] }
        const error = yield* Effect.flip(a.client.registerTensors(twice))
        assert.strictEqual(error.reason._tag, "InvalidCommand")
        assert.match(error.message, /parameter up.*two tensors of this name in pair p/)
      })
    )
  )

  it.live("meet by place where one side states no names", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { a, b, tensor } = yield* twoAgents()
        const [x, y, z, w] = [yield* tensor(), yield* tensor(), yield* tensor(), yield* tensor()]
        const named = [["p", x, "z"] as const, ["p", y, "a"] as const]
        const unnamed = [["p", z] as const, ["p", w] as const]
        yield* all([
          a.client.registerTensors({ batch: "w", tensors: named }),
          b.client.registerTensors({ batch: "w", tensors: unnamed })
        ])
        fill(x, [1, 2, 3, 4])
        fill(y, [5, 6, 7, 8])
        yield* all([a.client.transfer("w", "send"), b.client.transfer("w", "recv")])
        assert.isUndefined(faultOf(z, [1, 2, 3, 4]))
        assert.isUndefined(faultOf(w, [5, 6, 7, 8]))
      })
    )
  )
})
