// SPDX-License-Identifier: Apache-2.0
/**
 * Many updates of real processes, of which one dies at a random moment every few updates and is replaced: a replica, a
 * relay, or the served store with all its memory. Once over the served store, once over a real etcd.
 */
import { describe, it } from "@effect/vitest"
import { serveStore } from "@tensorferry/bus/store/KeyValueServer"
import { freePort } from "@tensorferry/testing/machine/freePort"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import { noEtcd, startEtcd } from "./etcd.ts"
import { live, randomOf } from "./life.ts"
import { startMember } from "./processes.ts"

const updates = isSoak ? 200 : 30
const every = 5

/** What happens differs from run to run only in a soak. */
const life = (store: number | string, replicas: number, restartStore?: Effect.Effect<void>) =>
  live({
    replicas,
    updates,
    every,
    random: randomOf(isSoak ? Date.now() : 17),
    start: (rank) =>
      startMember({
        rank,
        ranks: replicas + 1,
        store,
        size: "small",
        role: rank === 0 ? "source" : "replica",
        controls: rank <= 2
      }),
    isRestart: (update) => restartStore !== undefined && update % (2 * every) === 7,
    restartStore: restartStore ?? Effect.void
  })

describe("many updates of processes that die", () => {
  it.live(
    "end with the version on all replicas, also when the served store loses its memory",
    () =>
      Effect.scoped(
        Effect.gen(function* () {
          let scope = yield* Scope.make()
          const serve = (port: number) => Effect.orDie(Scope.provide(serveStore({ port }), scope))
          yield* Effect.addFinalizer(() => Effect.suspend(() => Scope.close(scope, Exit.void)))
          const port = yield* serve(yield* Effect.promise(freePort))
          const restart = Effect.gen(function* () {
            yield* Scope.close(scope, Exit.void)
            scope = yield* Scope.make()
            yield* serve(port)
          })
          yield* life(port, isSoak ? 8 : 4, restart)
        })
      ),
    { timeout: isSoak ? 7_200_000 : 600_000 }
  )

  const reason = noEtcd()
  it.live.skipIf(reason !== undefined)(
    `end with the version on all replicas over etcd${reason === undefined ? "" : ` (skipped: ${reason})`}`,
    () =>
      Effect.scoped(
        Effect.gen(function* () {
          const [clientPort, peerPort] = yield* Effect.forEach([0, 1], () => Effect.promise(freePort))
          const { url } = yield* startEtcd({ address: "127.0.0.1", clientPort: clientPort!, peerPort: peerPort! })
          yield* life(url, 3)
        })
      ),
    { timeout: isSoak ? 7_200_000 : 600_000 }
  )
})
