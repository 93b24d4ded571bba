// SPDX-License-Identifier: Apache-2.0
/** Digests of weights: those of the tensors, however they are cut, and others get their turns meanwhile. */
import { assert, describe, it } from "@effect/vitest"
import { HostMemory as HostMemoryLayers, TensorEngine as TensorEngineLayers } from "@tensorferry/backend-torch-copy"
import { tensorDigest } from "@tensorferry/core/refit/ContentDigest"
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import { tensorBytes, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import { digestPieces, digestWeights, piecesOf } from "../../src/edges/Pieces.ts"

const layers = Layer.mergeAll(HostMemoryLayers.layer, TensorEngineLayers.layer())

describe("digests of weights", () => {
  it.live("are those of their tensors, and others get turns while long ones are computed", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const memory = yield* HostMemory
        const length = 2 ** 24 + 5
        const make = (name: string, value: number) =>
          Effect.map(memory.allocate(2 * length), (storage) => {
            const tensor = Result.getOrThrow(tensorView(storage, "bfloat16", [length]))
            tensorBytes(tensor)!.fill(value)
            return [name, tensor] as const
          })
        const weights = new Map([yield* make("a", 3), yield* make("b", 4)])
        let turns = 0
        const turning = yield* Effect.forkChild(
          Effect.forever(
            Effect.callback<void>((resume) => {
              // In every turn of the event loop: a digest may take less than the shortest timer.
              const next = setImmediate(() => {
                turns += 1
                resume(Effect.void)
              })
              return Effect.sync(() => clearImmediate(next))
            })
          ),
          { startImmediately: true }
        )
        const found = yield* digestWeights(weights)
        assert.isAtLeast(turns, 1)
        yield* Fiber.interrupt(turning)
        for (const [name, tensor] of weights) assert.strictEqual(found[name], yield* tensorDigest(tensor))
        // However pieces are cut, their bytes have one digest.
        const [start, end] = [2 * length - 3_000_000, 2 * length + 6_000_000]
        const cut = [start, start + 11, 2 * length + 1, end]
        const parts = cut.slice(1).flatMap((to, at) => piecesOf(weights, cut[at]!, to))
        assert.strictEqual(yield* digestPieces(parts), yield* digestPieces(piecesOf(weights, start, end)))
      })
    ).pipe(Effect.provide(layers))
  )
})
