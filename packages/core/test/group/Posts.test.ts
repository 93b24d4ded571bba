// SPDX-License-Identifier: Apache-2.0
/**
 * Posts reach those members alone that they are for, each before anything that its sender does afterwards; lanes keep
 * collectives and posts apart.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import { makeInProcessGroups } from "../../src/group/ProcessGroupInProcess.ts"
import { make as makeTcp } from "../../src/group/ProcessGroupTcp.ts"
import type { ProcessGroupError, ProcessGroupShape } from "../../src/service/ProcessGroup.ts"

interface Member extends ProcessGroupShape {
  /** Ends this member alone. */
  readonly leave: Effect.Effect<void>
}
type Groups = Effect.Effect<ReadonlyArray<Member>, ProcessGroupError, Scope.Scope>

const overTcp = (size: number): Groups =>
  Effect.gen(function* () {
    const listening = yield* Deferred.make<number>()
    const outer = yield* Effect.scope
    const member = (rank: number, port: number, onListening?: (port: number) => Effect.Effect<void>) =>
      Effect.gen(function* () {
        const scope = yield* Scope.fork(outer)
        const options = { rank, size, host: "127.0.0.1", port, ...(onListening === undefined ? {} : { onListening }) }
        const group = yield* Scope.provide(makeTcp(options), scope)
        return { ...group, leave: Scope.close(scope, Exit.void) }
      })
    const first = member(0, 0, (port) => Effect.asVoid(Deferred.succeed(listening, port)))
    const others = Array.from({ length: size - 1 }, (_, at) =>
      Effect.flatMap(Deferred.await(listening), (port) => member(at + 1, port))
    )
    return yield* Effect.all([first, ...others], { concurrency: "unbounded" })
  })

/** Collects what a group or lane gets. */
const listening = (group: ProcessGroupShape) => {
  const posts: Array<readonly [from: number, text: string]> = []
  const gone: Array<number> = []
  const listener = {
    post: (from: number, payload: Uint8Array) => void posts.push([from, Buffer.from(payload).toString()]),
    gone: (rank: number) => void gone.push(rank)
  }
  return Effect.as(group.listen(listener), { posts, gone })
}

describe.each([
  ["in one process", (size: number): Groups => makeInProcessGroups(size)],
  ["over TCP", overTcp]
])("posts %s", (_name, groupsOf) => {
  const onAll = <A>(size: number, program: (group: Member) => Effect.Effect<A, ProcessGroupError, Scope.Scope>) =>
    Effect.scoped(
      Effect.flatMap(groupsOf(size), (groups) => Effect.forEach(groups, program, { concurrency: "unbounded" }))
    )

  it.live("are there when a later collective of their sender ends, for those they are for and nobody else", () =>
    Effect.gen(function* () {
      const seen = yield* onAll(4, (group) =>
        Effect.gen(function* () {
          const { rank } = group
          const whole = yield* listening(group)
          const pair = rank === 1 || rank === 3 ? yield* group.subgroup([3, 1]) : undefined
          const ofPair = pair === undefined ? undefined : yield* listening(pair)
          if (rank === 2) yield* group.post([3, 2, 0, 17], Buffer.from("a"))
          if (rank === 2) yield* group.post([3], Buffer.from("b"))
          yield* group.barrier("one")
          if (rank === 1) yield* pair!.post([0], Buffer.from("c"))
          yield* group.barrier("more")
          return { whole: whole.posts, pair: ofPair?.posts }
        })
      )
      assert.deepStrictEqual(
        seen.map(({ whole }) => whole),
        [
          [[2, "a"]],
          [],
          [],
          [
            [2, "a"],
            [2, "b"]
          ]
        ]
      )
      assert.deepStrictEqual(
        seen.map(({ pair }) => pair),
        [undefined, [], undefined, [[1, "c"]]]
      )
    })
  )

  it.live("from before a member listens are kept for it", () =>
    Effect.gen(function* () {
      const [, second] = yield* onAll(2, (group) =>
        Effect.gen(function* () {
          if (group.rank === 0) yield* group.post([1], Buffer.from("early"))
          yield* group.barrier("posted")
          return yield* listening(group)
        })
      )
      assert.deepStrictEqual(second!.posts, [[0, "early"]])
    })
  )

  it.live("name each member that is gone, once", () =>
    Effect.gen(function* () {
      const seen = yield* onAll(3, (group) =>
        Effect.gen(function* () {
          const heard = yield* Deferred.make<number>()
          if (group.rank !== 2) {
            const gone = (rank: number) => Deferred.doneUnsafe(heard, Effect.succeed(rank))
            yield* group.listen({ post: () => {}, gone })
          }
          yield* group.barrier("all listen")
          if (group.rank !== 2) return yield* Deferred.await(heard)
          yield* group.leave
          return undefined
        })
      )
      assert.deepStrictEqual(seen.slice(0, 2), [2, 2])
    })
  )

  it.live("of the n-th lane of a name meet on all members, whatever each has closed meanwhile", () =>
    Effect.gen(function* () {
      const seen = yield* onAll(2, (group) =>
        Effect.gen(function* () {
          const first = Effect.flatMap(group.lane("side"), listening)
          // Rank 0 has ended what it had in the first lane, rank 1 has not.
          yield* group.rank === 0 ? Effect.scoped(first) : first
          const second = yield* group.lane("side")
          const { posts } = yield* listening(second)
          yield* second.post([1 - group.rank], Buffer.from("second"))
          yield* second.barrier("end")
          return posts
        })
      )
      assert.deepStrictEqual(seen, [[[1, "second"]], [[0, "second"]]])
    })
  )

  it.live("and collectives of a lane meet only those of the same lane", () =>
    Effect.gen(function* () {
      const seen = yield* onAll(2, (group) =>
        Effect.gen(function* () {
          const lane = yield* group.lane("side")
          const ofLane = yield* listening(lane)
          const ofGroup = yield* listening(group)
          const text = (from: string) => Buffer.from(`${from}${group.rank}`)
          // Rank 0 begins with the lane, rank 1 with the group.
          const both = [lane.allGather("x", text("lane")), group.allGather("x", text("group"))] as const
          const order = group.rank === 0 ? both : ([both[1], both[0]] as const)
          const gathered = yield* Effect.all(order, { concurrency: 2 })
          yield* lane.post([1 - group.rank], text("to lane"))
          yield* Effect.all([lane.barrier("end"), group.barrier("end")], { concurrency: 2 })
          const texts = gathered.map((all) => all.map((each) => Buffer.from(each).toString()))
          return { texts: group.rank === 0 ? texts : texts.reverse(), lane: ofLane.posts, group: ofGroup.posts }
        })
      )
      for (const [rank, { texts, lane, group }] of seen.entries()) {
        assert.deepStrictEqual(texts, [
          ["lane0", "lane1"],
          ["group0", "group1"]
        ])
        assert.deepStrictEqual(lane, [[1 - rank, `to lane${1 - rank}`]])
        assert.deepStrictEqual(group, [])
      }
    })
  )
})

describe("posts over TCP", () => {
  it.live("name all others as gone where rank 0 is, since nobody can be reached without it", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const [first, second] = yield* overTcp(3)
        const all = yield* Deferred.make<ReadonlyArray<number>>()
        const gone: Array<number> = []
        yield* second!.listen({
          post: () => {},
          gone: (rank) => {
            gone.push(rank)
            if (gone.length === 2) Deferred.doneUnsafe(all, Effect.succeed(gone))
          }
        })
        yield* first!.leave
        assert.deepStrictEqual([...(yield* Deferred.await(all))].sort(), [0, 2])
      })
    )
  )
})
