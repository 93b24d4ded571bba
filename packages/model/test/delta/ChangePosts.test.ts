// SPDX-License-Identifier: Apache-2.0
/** Statements between two ranks: what arrives, what is refused, and how waits for them end. */
import { assert, describe, it } from "@effect/vitest"
import { makeInProcessGroups } from "@tensorferry/core/group/ProcessGroupInProcess"
import { reshardError } from "@tensorferry/core/reshard/ReshardError"
import { makeRandom } from "@tensorferry/testing/mutate"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as TestClock from "effect/testing/TestClock"
import { decodeStatement, encodeStatement, makeChangePosts } from "../../src/delta/ChangePosts.ts"

const head = { version: "step 1", holds: null, proof: null, words: 2 }

const pair = Effect.gen(function* () {
  const groups = yield* makeInProcessGroups(2, { deadline: Duration.seconds(10) })
  const posts = yield* Effect.forEach(groups, (group) => makeChangePosts(group, 2 ** 20))
  yield* Effect.forEach(posts, (one) => one.begin, { discard: true })
  return { groups, a: posts[0]!, b: posts[1]! }
})

describe("statements", () => {
  it("are read as they were written, and no other bytes are taken for one", () => {
    const rows = [1, 2, 3, 2 ** 32 - 1]
    const bytes = encodeStatement(head, rows)
    const read = decodeStatement(bytes)!
    assert.deepStrictEqual([read.head, [...read.rows]], [head, rows])
    for (let length = 0; length < bytes.length; length++) {
      const cut = decodeStatement(bytes.subarray(0, length))
      assert.isTrue(cut === undefined || (bytes.length - length) % 8 === 0, `${length} bytes`)
    }
    const random = makeRandom(3)
    for (let round = 0; round < 3000; round++) {
      const damaged = bytes.slice()
      for (let times = 1 + random.below(4); times > 0; times--)
        damaged[random.below(damaged.length)] = random.below(256)
      const found = decodeStatement(damaged)
      if (found !== undefined) assert.strictEqual(found.rows.length % Math.max(1, found.head.words), 0)
    }
  })

  it.effect("arrive whole, however long, from another rank and from oneself", () =>
    Effect.gen(function* () {
      const { a, b } = yield* pair
      const rows = Array.from({ length: 20_000 }, (_, at) => at)
      yield* a.state("changed", 1, encodeStatement(head, rows))
      yield* b.state("changed", 1, encodeStatement(head, [7, 8]))
      yield* b.state("holds", 0, encodeStatement(head, []))
      const heard = yield* b.hear("changed", [0, 1])
      assert.deepStrictEqual([...heard.get(0)!.rows], rows)
      assert.deepStrictEqual([...heard.get(1)!.rows], [7, 8])
      assert.strictEqual((yield* a.hear("holds", [1])).get(1)!.rows.length, 0)
    })
  )

  it.effect("of the next update wait, and those of an earlier one are dropped", () =>
    Effect.gen(function* () {
      const { a, b } = yield* pair
      yield* a.state("changed", 1, encodeStatement(head, [1, 1]))
      yield* a.begin
      yield* a.state("changed", 1, encodeStatement(head, [2, 2]))
      assert.deepStrictEqual([...(yield* b.hear("changed", [0])).get(0)!.rows], [1, 1])
      yield* b.begin
      assert.deepStrictEqual([...(yield* b.hear("changed", [0])).get(0)!.rows], [2, 2])
      yield* b.begin
      yield* a.state("changed", 1, encodeStatement(head, [3, 3]))
      const hearing = yield* Effect.forkChild(Effect.flip(b.hear("changed", [0])), { startImmediately: true })
      yield* TestClock.adjust("11 seconds")
      assert.include((yield* Fiber.join(hearing)).message, "Nothing was heard from rank 0 within 10s")
    })
  )
})

describe("waits for statements", () => {
  it.effect("end with what the other rank failed with", () =>
    Effect.gen(function* () {
      const { a, b } = yield* pair
      const hearing = yield* Effect.forkChild(Effect.flip(b.hear("changed", [0])), { startImmediately: true })
      const detail = "é".repeat(9000)
      yield* a.fail([1], reshardError("TensorMissing", { rank: 0, paramName: "w", detail, remedy: "Give it." }))
      const { reason } = yield* Fiber.join(hearing)
      assert.deepStrictEqual([reason._tag, reason.paramName, reason.remedy], ["TensorMissing", "w", "Give it."])
      assert.isBelow(reason.detail.length, 1100)
    })
  )

  it.effect("last as long as the other rank is at work, and no longer", () =>
    Effect.gen(function* () {
      const { a, b } = yield* pair
      const hearing = yield* Effect.forkChild(Effect.flip(b.hear("changed", [0])), { startImmediately: true })
      const work = yield* Effect.forkChild(a.busy([1], Effect.sleep("60 seconds")), { startImmediately: true })
      for (let second = 0; second < 60; second++) yield* TestClock.adjust("1 second")
      yield* Fiber.join(work)
      assert.isUndefined(hearing.pollUnsafe())
      for (let second = 0; second < 14; second++) yield* TestClock.adjust("1 second")
      assert.include((yield* Fiber.join(hearing)).message, "Nothing was heard from rank 0")
    })
  )

  it.effect("end at once where the other rank is gone", () =>
    Effect.gen(function* () {
      const { b, groups } = yield* pair
      const hearing = yield* Effect.forkChild(Effect.flip(b.hear("holds", [0])), { startImmediately: true })
      yield* groups[0]!.leave
      assert.include((yield* Fiber.join(hearing)).message, "Rank 0 is gone")
    })
  )

  it.effect("refuse what is no statement, and pieces that do not fit each other", () =>
    Effect.gen(function* () {
      const words = (...values: ReadonlyArray<number>) => new Uint8Array(Uint32Array.from(values).buffer)
      const faulty = [
        [words(1, 1, 0, 1, 99)],
        [words(1, 1, 0, 0)],
        [words(1, 1, 5, 2)],
        [words(1, 1, 0, 2 ** 31, 1)],
        [words(1, 1, 0, 2, 1), words(1, 1, 1, 3, 1)],
        [words(1, 1, 0, 2, 1), words(1, 1, 0, 2, 1)],
        [words(2, 1, 0, 1, 1, 2, 3)]
      ]
      for (const [at, posts] of faulty.entries()) {
        yield* Effect.scoped(
          Effect.gen(function* () {
            const groups = yield* makeInProcessGroups(2, { deadline: Duration.seconds(10) })
            const listening = yield* makeChangePosts(groups[1]!, 2 ** 20)
            yield* listening.begin
            const lane = yield* groups[0]!.lane("delta updates")
            // Too short, of no kind, and of another update: nobody's business.
            yield* lane.post([1], words(1, 1))
            yield* lane.post([1], words(9, 1, 0, 1))
            yield* lane.post([1], words(1, 7, 0, 1))
            for (const post of posts) yield* lane.post([1], post)
            const failure = yield* Effect.flip(listening.hear("changed", [0]))
            assert.include(failure.message, "Rank 0 states something that cannot be read", `case ${at}`)
          })
        )
      }
    })
  )
})
