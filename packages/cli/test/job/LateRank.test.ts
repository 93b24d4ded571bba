// SPDX-License-Identifier: Apache-2.0
/** A rank that is busy while others learn of a failure and leave: it is told the cause, not only that rank 0 has left. */
import { assert, describe, it } from "@effect/vitest"
import { make } from "@tensorferry/core/group/ProcessGroupTcp"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"

describe("a rank that comes late to a failed job", () => {
  it.live("names the rank that failed", () =>
    Effect.gen(function* () {
      const port = yield* Deferred.make<number>()
      const scopes = yield* Effect.forEach([0, 1, 2], () => Scope.make())
      const join = (rank: number, at: number) =>
        make({
          rank,
          size: 3,
          host: "127.0.0.1",
          port: at,
          onListening: (bound) => Effect.asVoid(Deferred.succeed(port, bound))
        }).pipe(Effect.provideService(Scope.Scope, scopes[rank]!))
      const joining = yield* Effect.forkChild(join(0, 0))
      const bound = yield* Deferred.await(port)
      const [late] = yield* Effect.all([join(1, bound), join(2, bound)], { concurrency: "unbounded" })
      const hub = yield* Fiber.join(joining)

      yield* Scope.close(scopes[2]!, Exit.void)
      const first = yield* Effect.flip(hub.barrier("copy"))
      assert.deepStrictEqual([...first.ranks], [2])
      yield* Scope.close(scopes[0]!, Exit.void)
      const error = yield* Effect.flip(late.barrier("copy"))
      assert.strictEqual(error.reason._tag, "PeerGone")
      assert.deepStrictEqual([...error.ranks], [2], error.message)
      assert.include(error.message, "Rank 2 left the group")
      yield* Scope.close(scopes[1]!, Exit.void)
    })
  )
})
