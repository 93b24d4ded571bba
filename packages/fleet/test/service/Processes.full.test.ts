// SPDX-License-Identifier: Apache-2.0
/**
 * Many updates of real processes, of which one dies at a random moment every few updates and is replaced: a replica, a
 * relay, or the served store with all its memory. Once over the served store, once over a real etcd.
 */
import { type ChildProcess, spawn, spawnSync } from "node:child_process"
import { assert, describe, it } from "@effect/vitest"
import { serveStore } from "@tensorferry/bus/store/KeyValueServer"
import { freePort } from "@tensorferry/testing/machine/freePort"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Schedule from "effect/Schedule"
import * as Scope from "effect/Scope"
import { allUse, type MemberProcess, startMember } from "./processes.ts"
import { scratchFolder } from "./scratch.ts"

const updates = isSoak ? 200 : 30
const every = 5

/** Numbers from 0 on that differ from run to run only in a soak. */
const randomOf = (seed: number) => () => {
  seed = (Math.imul(seed, 1_664_525) + 1_013_904_223) >>> 0
  return seed / 2 ** 32
}

/** Publishes until an update is committed; those that are given up name who was at fault. */
const publish = (source: MemberProcess, label: string, seed: number, tries = 4): Effect.Effect<void> =>
  Effect.gen(function* () {
    const answer = yield* source.ask(`publish ${label} ${seed}`)
    if (answer.event === "published") return
    const message = answer.event === "failed" ? answer.message : ""
    assert.match(message, /was given up: .+ Members: .+\./)
    assert.isAbove(tries, 1, message)
    yield* publish(source, label, seed, tries - 1)
  })

const life = (store: number | string, replicas: number, restartStore: Effect.Effect<void>) =>
  Effect.gen(function* () {
    const ranks = replicas + 1
    const random = randomOf(isSoak ? Date.now() : 17)
    const start = (rank: number) =>
      startMember({
        rank,
        ranks,
        store,
        size: "small",
        role: rank === 0 ? "source" : "replica",
        controls: rank <= 2
      })
    const all = yield* Effect.forEach(
      Array.from({ length: ranks }, (_, rank) => rank),
      start,
      { concurrency: "unbounded" }
    )
    const source = all[0]!
    const members = all.slice(1)
    yield* source.until((line) => line.event === "status" && line.members.length === ranks)
    for (let update = 1; update <= updates; update++) {
      const label = `update-${update}`
      const publishing = yield* Effect.forkChild(publish(source, label, update), { startImmediately: true })
      if (update % every === 0) {
        const place = Math.floor(random() * replicas)
        const victim = members[place]!
        if (random() < 0.7) yield* victim.until((line) => line.event === "status" && line.staging === label)
        victim.kill()
        members[place] = yield* start(victim.input.rank)
      }
      if (update % (2 * every) === 7) yield* restartStore
      yield* Fiber.join(publishing)
      yield* allUse(members, label, update)
    }
    for (const member of members) {
      const served = member.statuses.flatMap(({ serving }) => (serving === null ? [] : [Number(serving.slice(7))]))
      assert.deepStrictEqual(
        served,
        served.toSorted((a, b) => a - b)
      )
    }
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

  const hasEtcd = spawnSync("etcd", ["--version"]).status === 0
  it.live.skipIf(!hasEtcd)(
    `end with the version on all replicas over etcd${hasEtcd ? "" : " (skipped: etcd is not installed)"}`,
    () =>
      Effect.scoped(
        Effect.gen(function* () {
          const folder = yield* scratchFolder
          const [client, peer] = yield* Effect.forEach([0, 1], () => Effect.promise(freePort))
          const url = `http://127.0.0.1:${client}`
          yield* Effect.acquireRelease(
            Effect.sync(() => startEtcd(folder, url, peer!)),
            (etcd) => Effect.sync(() => etcd.kill("SIGKILL"))
          )
          const answers = Effect.tryPromise(() =>
            fetch(`${url}/v3/kv/range`, { method: "POST", body: '{"key":"AA=="}' })
          )
          yield* Effect.orDie(Effect.retry(answers, { schedule: Schedule.spaced("100 millis"), times: 200 }))
          yield* life(url, 3, Effect.void)
        })
      ),
    { timeout: isSoak ? 7_200_000 : 600_000 }
  )
})

const startEtcd = (folder: string, url: string, peer: number): ChildProcess => {
  const peers = `http://127.0.0.1:${peer}`
  return spawn(
    "etcd",
    [
      ...["--data-dir", folder, "--listen-client-urls", url, "--advertise-client-urls", url],
      ...["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", `default=${peers}`]
    ],
    { stdio: "ignore" }
  )
}
