// SPDX-License-Identifier: Apache-2.0
/**
 * Groups of fibers: the contract of `ProcessGroup`, with deadlines on the test clock.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"
import * as TestClock from "effect/testing/TestClock"
import { makeInProcessGroups, makeSingle } from "../../src/group/ProcessGroupInProcess.ts"
import type { ProcessGroupShape } from "../../src/service/ProcessGroup.ts"

const bytes = (...values: ReadonlyArray<number>) => Uint8Array.from(values)

/** Runs one program per rank, all at once. */
const onAll = <G extends ProcessGroupShape, A, E>(
  groups: ReadonlyArray<G>,
  program: (group: G) => Effect.Effect<A, E>
) => Effect.forEach(groups, program, { concurrency: "unbounded" })

describe("in-process group", () => {
  for (const size of [1, 2, 3, 5]) {
    it.effect(`gathers, broadcasts and meets with ${size} ranks`, () =>
      Effect.gen(function* () {
        const groups = yield* makeInProcessGroups(size)
        const root = size - 1
        const results = yield* onAll(groups, (group) =>
          Effect.gen(function* () {
            const gathered = yield* group.allGather("g", new Uint8Array(group.rank).fill(group.rank))
            const sent = yield* group.broadcast("b", root, bytes(group.rank, 7))
            yield* group.barrier("end")
            return { gathered, sent }
          })
        )
        for (const { gathered, sent } of results) {
          assert.deepStrictEqual(
            gathered,
            groups.map(({ rank }) => new Uint8Array(rank).fill(rank))
          )
          assert.deepStrictEqual(sent, bytes(root, 7))
        }
      })
    )
  }

  it.effect("shares no bytes between ranks, nor with the caller's buffer", () =>
    Effect.gen(function* () {
      const [first, second] = yield* makeInProcessGroups(2)
      const buffer = bytes(1, 2, 3)
      const waiting = yield* Effect.forkChild(first!.allGather("x", buffer), { startImmediately: true })
      yield* Effect.yieldNow
      buffer.fill(0xee)
      const atSecond = yield* second!.allGather("x", bytes(9))
      atSecond[0]!.fill(0xdd)
      assert.deepStrictEqual(yield* Fiber.join(waiting), [bytes(1, 2, 3), bytes(9)])
    })
  )

  it.effect("renumbers subgroups, also of subgroups", () =>
    Effect.gen(function* () {
      const groups = yield* makeInProcessGroups(5)
      const results = yield* onAll([groups[4]!, groups[2]!, groups[1]!], (group) =>
        Effect.gen(function* () {
          const outer = yield* group.subgroup([4, 2, 1])
          const gathered = yield* outer.allGather("outer", bytes(group.rank))
          if (outer.rank === 1) return { outer, gathered, inner: undefined, sent: undefined }
          const inner = yield* outer.subgroup([2, 0])
          const sent = yield* inner.broadcast("inner", 1, bytes(group.rank))
          return { outer, gathered, inner, sent }
        })
      )
      assert.deepStrictEqual(
        results.map(({ outer }) => outer.rank),
        [0, 1, 2]
      )
      for (const { outer, gathered, inner, sent } of results) {
        assert.deepStrictEqual(outer.members, [4, 2, 1])
        assert.deepStrictEqual(gathered, [bytes(4), bytes(2), bytes(1)])
        if (inner !== undefined) {
          assert.deepStrictEqual(inner.members, [1, 4])
          assert.deepStrictEqual(sent, bytes(4))
        }
      }
    })
  )

  it.effect("refuses groups that are none", () =>
    Effect.gen(function* () {
      const [group] = yield* makeInProcessGroups(3)
      for (const ranks of [[], [0, 0], [0, 3], [-1, 0], [0.5, 0], [1, 2]]) {
        const error = yield* Effect.flip(group!.subgroup(ranks))
        assert.strictEqual(error.reason._tag, "InvalidGroup", ranks.join())
      }
      const error = yield* Effect.flip(group!.broadcast("x", 3, bytes()))
      assert.strictEqual(error.reason._tag, "InvalidGroup")
    })
  )

  it.effect("names ranks that do not arrive before the deadline, and stays in step", () =>
    Effect.gen(function* () {
      const groups = yield* makeInProcessGroups(3, { deadline: Duration.seconds(10) })
      const waiting = yield* Effect.forkChild(
        onAll([groups[0]!, groups[1]!], (group) => Effect.flip(group.barrier("start")))
      )
      yield* TestClock.adjust("9 seconds")
      assert.isUndefined(waiting.pollUnsafe())
      yield* TestClock.adjust("1 second")
      for (const error of yield* Fiber.join(waiting)) {
        assert.strictEqual(error.reason._tag, "DeadlineExceeded")
        assert.deepStrictEqual(error.ranks, [2])
      }
      const late = yield* Effect.flip(groups[2]!.barrier("start"))
      assert.strictEqual(late.reason._tag, "DeadlineExceeded")
      assert.strictEqual((yield* onAll(groups, (group) => group.allGather("next", bytes(group.rank)))).length, 3)
    })
  )

  it.effect("waits for a rank that is kept alive, and no longer", () =>
    Effect.gen(function* () {
      const [first, second] = yield* makeInProcessGroups(2, { deadline: Duration.seconds(10) })
      const waiting = yield* Effect.forkChild(Effect.flip(first!.barrier("end")))
      const working = yield* Effect.forkChild(second!.keepAlive(Effect.as(Effect.sleep("95 seconds"), "done")))
      yield* TestClock.adjust("95 seconds")
      assert.strictEqual(yield* Fiber.join(working), "done")
      assert.isUndefined(waiting.pollUnsafe())
      yield* TestClock.adjust("10 seconds")
      assert.deepStrictEqual((yield* Fiber.join(waiting)).ranks, [1])
    })
  )

  it.effect("fails at once for a rank that left, and only there", () =>
    Effect.gen(function* () {
      const groups = yield* makeInProcessGroups(3)
      const waiting = yield* Effect.forkChild(Effect.flip(groups[0]!.barrier("x")))
      yield* Effect.yieldNow
      yield* groups[2]!.leave
      const pending = yield* Fiber.join(waiting)
      const later = yield* Effect.flip(groups[1]!.barrier("x"))
      const own = yield* Effect.flip(groups[2]!.barrier("x"))
      for (const error of [pending, later, own]) {
        assert.strictEqual(error.reason._tag, "PeerGone")
        assert.deepStrictEqual(error.ranks, [2])
      }
      yield* onAll([groups[0]!, groups[1]!], (group) =>
        Effect.flatMap(group.subgroup([0, 1]), (pair) => pair.barrier("pair"))
      )
    })
  )

  it.effect("fails all members that meet under different labels, roots or operations", () =>
    Effect.gen(function* () {
      const [first, second] = yield* makeInProcessGroups(2)
      const pairs = [
        [first!.barrier("a"), second!.barrier("b")],
        [first!.barrier("a"), Effect.asVoid(second!.allGather("a", bytes()))],
        [Effect.asVoid(first!.broadcast("a", 0, bytes())), Effect.asVoid(second!.broadcast("a", 1, bytes()))]
      ] as const
      for (const pair of pairs) {
        for (const error of yield* Effect.all(pair.map(Effect.flip), { concurrency: 2 })) {
          assert.strictEqual(error.reason._tag, "CollectiveMismatch")
          assert.deepStrictEqual([...error.ranks].sort(), [0, 1])
        }
      }
      yield* onAll([first!, second!], (group) => group.barrier("same"))
    })
  )

  it.effect("counts an interrupted call as made", () =>
    Effect.gen(function* () {
      const [first, second] = yield* makeInProcessGroups(2)
      const waiting = yield* Effect.forkChild(first!.allGather("one", bytes(1)))
      yield* Effect.yieldNow
      yield* Effect.yieldNow
      yield* Fiber.interrupt(waiting)
      assert.deepStrictEqual(yield* second!.allGather("one", bytes(2)), [bytes(1), bytes(2)])
      const results = yield* onAll([first!, second!], (group) => group.allGather("two", bytes(group.rank)))
      assert.deepStrictEqual(results[0], [bytes(0), bytes(1)])
    })
  )

  it.effect("ends waits when the scope ends, and says that the rank left", () =>
    Effect.gen(function* () {
      const scope = yield* Scope.make()
      const [first] = yield* makeInProcessGroups(2).pipe(Scope.provide(scope))
      const waiting = yield* Effect.forkChild(Effect.flip(first!.barrier("x")))
      yield* Effect.yieldNow
      yield* Scope.close(scope, Exit.void)
      const error = yield* Fiber.join(waiting)
      assert.strictEqual(error.reason._tag, "PeerGone")
      assert.include(error.message, "left")
    })
  )

  it.effect("has a job of one rank", () =>
    Effect.gen(function* () {
      const group = yield* makeSingle()
      assert.deepStrictEqual([group.rank, group.size, group.members], [0, 1, [0]])
      assert.deepStrictEqual(yield* group.broadcast("x", 0, bytes(4)), bytes(4))
    })
  )
})
