// SPDX-License-Identifier: Apache-2.0
/** Alerts reach the other members of their group alone, each before anything that its sender does afterwards. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { makeInProcessGroups } from "../../src/group/ProcessGroupInProcess.ts"
import { make as makeTcp } from "../../src/group/ProcessGroupTcp.ts"
import type { ProcessGroupError, ProcessGroupShape } from "../../src/service/ProcessGroup.ts"

type Groups = Effect.Effect<ReadonlyArray<ProcessGroupShape>, ProcessGroupError, Scope.Scope>

const overTcp = (size: number): Groups =>
  Effect.gen(function* () {
    const listening = yield* Deferred.make<number>()
    const common = { size, host: "127.0.0.1" }
    const first = makeTcp({
      ...common,
      rank: 0,
      port: 0,
      onListening: (port) => Effect.asVoid(Deferred.succeed(listening, port))
    })
    const others = Array.from({ length: size - 1 }, (_, at) =>
      Effect.flatMap(Deferred.await(listening), (port) => makeTcp({ ...common, rank: at + 1, port }))
    )
    return yield* Effect.all([first, ...others], { concurrency: "unbounded" })
  })

describe.each([
  ["in one process", (size: number): Groups => makeInProcessGroups(size)],
  ["over TCP", overTcp]
])("alerts %s", (_name, groupsOf) => {
  it.live("have arrived when a later collective of their sender ends", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const groups = yield* groupsOf(4)
        const seen = yield* Effect.forEach(
          groups,
          (group) =>
            Effect.gen(function* () {
              const { rank } = group
              const pair = rank === 1 || rank === 3 ? yield* group.subgroup([3, 1]) : undefined
              assert.deepStrictEqual(yield* group.alerts, [])
              yield* group.barrier("none yet")
              if (rank === 2) yield* group.alert
              yield* group.barrier("one")
              const one = yield* group.alerts
              yield* group.barrier("read")
              if (rank === 0) yield* group.alert
              if (rank === 1) yield* pair!.alert
              yield* group.barrier("more")
              return { one, all: yield* group.alerts, pair: pair === undefined ? [] : yield* pair.alerts }
            }),
          { concurrency: "unbounded" }
        )
        assert.deepStrictEqual(
          seen.map(({ one }) => one),
          [[2], [2], [], [2]]
        )
        assert.deepStrictEqual(
          seen.map(({ all }) => all),
          [[2], [2, 0], [0], [2, 0]]
        )
        // Of two members: rank 1 of the job has number 1.
        assert.deepStrictEqual(
          seen.map(({ pair }) => pair),
          [[], [], [], [1]]
        )
      })
    )
  )
})
