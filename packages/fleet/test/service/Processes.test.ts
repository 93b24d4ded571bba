// SPDX-License-Identifier: Apache-2.0
/**
 * A fleet of real processes on one host, with poisoned memory: a source and four replicas over a served store. A relay is
 * killed in the middle of an update, and a process takes its place.
 */
import { hostname } from "node:os"
import { assert, describe, it } from "@effect/vitest"
import { serveStore } from "@tensorferry/bus/store/KeyValueServer"
import type { KeyValueStoreShape } from "@tensorferry/bus/store/KeyValueStore"
import { make } from "@tensorferry/bus/store/KeyValueStoreTcp"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Result from "effect/Result"
import * as Schedule from "effect/Schedule"
import { planFanOut } from "../../src/fanout/FanOut.ts"
import { edgeCosts } from "../../src/service/stagePlan.ts"
import { indexTopology } from "../../src/topology/Topology.ts"
import { explainVersion } from "../../src/view/explainVersion.ts"
import type { FleetView } from "../../src/view/FleetView.ts"
import { readFleet } from "../../src/view/readFleet.ts"
import { allUse, startMember } from "./processes.ts"
import { shapesOf, testTopology } from "./weights.ts"

const ranks = 5
const replicas = [1, 2, 3, 4]

/** A replica from which others take this update. */
const relay = (): number => {
  const topology = Result.getOrThrow(indexTopology(testTopology(ranks)))
  const bytes = Object.values(shapesOf("large")).reduce((sum, length) => sum + length * 4, 0)
  const { trees } = Result.getOrThrow(
    planFanOut({ bundles: [{ key: "b", bytes, holders: [0], wanters: replicas }] }, topology, edgeCosts)
  )
  return trees.flatMap(({ edges }) => edges).find(({ from }) => from !== 0)!.from
}

/** Looks until the fleet is as it soon should be. */
const lookUntil = (store: KeyValueStoreShape, isThere: (view: FleetView) => boolean) =>
  Effect.repeat(readFleet(store, "test"), {
    until: ({ view }) => isThere(view),
    schedule: Schedule.spaced("200 millis")
  }).pipe(Effect.timeout("30 seconds"))

describe("a fleet of processes", () => {
  it.live(
    "brings all replicas to one version, also when a relay is killed on the way and another process takes its place",
    () =>
      Effect.scoped(
        Effect.gen(function* () {
          const port = yield* serveStore()
          const start = (rank: number) =>
            startMember({
              rank,
              ranks,
              store: port,
              size: "large",
              role: rank === 0 ? "source" : "replica",
              controls: rank <= 1
            })
          const [source, ...others] = yield* Effect.forEach([0, ...replicas], start, { concurrency: "unbounded" })
          yield* source!.until((line) => line.event === "status" && line.members.length === ranks)
          assert.include(JSON.stringify(yield* others[0]!.ask("use")), "NotServing")

          assert.deepInclude(yield* source!.ask("publish one 1"), { event: "published", label: "one", serial: 1 })
          yield* allUse(others, "one", 1)

          // People see the same through the store: who took it from whom, and what everybody does now.
          const store = yield* make({ host: "127.0.0.1", port })
          const bytes = Object.values(shapesOf("large")).reduce((sum, length) => sum + length * 4, 0)
          const { view } = yield* lookUntil(
            store,
            ({ flow }) => flow?.links.every((link) => link.done === bytes) === true
          )
          assert.deepStrictEqual(
            view.members.map(({ rank, state, isServing, host }) => [rank, state, isServing, host]),
            [0, ...replicas].map((rank) => [rank, rank === 0 ? "source" : "serving", rank !== 0, hostname()])
          )
          assert.deepInclude(view.updates[0], { serial: 1, label: "one", outcome: "committed", reason: "" })
          assert.isAbove(view.updates[0]!.seconds!, 0)
          assert.deepStrictEqual(view.updates[0]!.taken.map(({ rank }) => rank).toSorted(), replicas)
          assert.deepStrictEqual(view.flow!.trees.flatMap(({ nodes }) => nodes.map(({ rank }) => rank)).toSorted(), [
            0,
            ...replicas
          ])

          const victim = others.find(({ input }) => input.rank === relay())!
          const left = others.filter((member) => member !== victim)
          const published = yield* Effect.forkChild(source!.ask("publish two 2"), { startImmediately: true })
          yield* victim.until((line) => line.event === "status" && line.staging === "two")
          victim.kill()
          const joiner = yield* startMember({ ...victim.input, controls: false })
          assert.deepInclude(yield* Fiber.join(published), { event: "published", label: "two" })
          yield* allUse(left, "two", 2)
          yield* allUse([joiner], "two", 2)

          const { seen } = yield* lookUntil(store, ({ members }) => members.every(({ isAdmitted }) => isAdmitted))
          const told = explainVersion(seen, 2)!
          assert.strictEqual(told.update.outcome, "committed")
          const removed = told.steps.filter(({ what }) => what === "removed")
          assert.deepStrictEqual(
            removed.map(({ member }) => member?.rank),
            [victim.input.rank]
          )
          assert.include(told.advice.join(" "), `rank ${victim.input.rank} was removed meanwhile`)

          assert.deepInclude(yield* source!.ask("publish three 3"), { event: "published", label: "three" })
          yield* allUse([...left, joiner], "three", 3)
          // Nobody served a version after a later one.
          for (const member of [...left, joiner]) {
            const served = member.statuses.flatMap(({ serving }) => (serving === null ? [] : [serving]))
            const order = served.map((label) => ["one", "two", "three"].indexOf(label))
            assert.deepStrictEqual(order, order.toSorted())
          }
        })
      ),
    { timeout: 180_000 }
  )
})
