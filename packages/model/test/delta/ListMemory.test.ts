// SPDX-License-Identifier: Apache-2.0
/** Lists of about the same length have the same memory in the next update; what an update does not need is freed. */
import { assert, describe, it } from "@effect/vitest"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import * as ReferenceEngine from "@tensorferry/testing/ReferenceEngine"
import * as Effect from "effect/Effect"
import { lentLength, makeListMemory } from "../../src/delta/ListMemory.ts"

describe("memory of lists", () => {
  it("is lent in few sizes, none smaller than asked for and none by a quarter too large", () => {
    const sizes = new Set<number>()
    for (let length = 0; length < 5000; length++) {
      const lent = lentLength(length)
      sizes.add(lent)
      assert.isAtLeast(lent, length)
      if (length > 64) assert.isAtMost(lent, 1.25 * length)
    }
    assert.isBelow(sizes.size, 30)
    for (const length of [2 ** 31, 2 ** 32 - 1]) assert.isAtLeast(lentLength(length), length)
  })

  it.effect("stays from one update to the next", () =>
    Effect.gen(function* () {
      const { begin, engine } = yield* makeListMemory(yield* TensorEngine)
      const update = (...lengths: ReadonlyArray<number>) =>
        Effect.scoped(
          Effect.gen(function* () {
            yield* begin
            return yield* Effect.forEach(lengths, (length) => engine.allocate("uint32", [length]))
          })
        )
      const first = yield* update(1000, 1010)
      for (const [at, { shape }] of first.entries()) assert.deepStrictEqual(shape, [1000 + 10 * at])
      assert.notStrictEqual(first[0]!.storage, first[1]!.storage)
      const second = yield* update(1005)
      assert.include(
        first.map(({ storage }) => storage),
        second[0]!.storage
      )
      const [kept, freed] = first.map(({ storage }) => storage).sort((a) => (a === second[0]!.storage ? -1 : 1))
      assert.isFalse(kept!.isFreed())
      assert.isTrue(freed!.isFreed())
      yield* update(1)
      assert.isTrue(kept!.isFreed())
      // Outside of an update nothing is lent.
      const other = yield* Effect.scoped(engine.allocate("uint32", [1]))
      assert.isTrue(other.storage.isFreed())
    }).pipe(Effect.scoped, Effect.provide(ReferenceEngine.layer()))
  )
})
