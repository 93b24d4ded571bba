// SPDX-License-Identifier: Apache-2.0
/**
 * A source of four processes and replicas of two each, over a served store, with poisoned memory: every process gets its part of
 * every version, a replica serves only when it is whole, and one whose process was killed is whole again with another.
 */
import { assert, describe, it } from "@effect/vitest"
import { serveStore } from "@tensorferry/bus/store/KeyValueServer"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import { type MemberProcess, startMember } from "./processes.ts"
import { replicaRanks, shardHash, sourceRanks } from "./shardedWeights.ts"

const useOf = (members: ReadonlyArray<MemberProcess>, label: string, seed: number) =>
  Effect.forEach(
    members,
    (member) =>
      Effect.gen(function* () {
        yield* member.serves(label)
        const hash = shardHash(member.input.rank, seed)
        assert.deepStrictEqual(yield* member.ask("use"), { event: "used", label, hash })
      }),
    { concurrency: "unbounded", discard: true }
  )

const publishFrom = (sources: ReadonlyArray<MemberProcess>, label: string, seed: number) =>
  Effect.forEach(sources, (source) => source.ask(`publish ${label} ${seed}`), { concurrency: "unbounded" })

describe("a fleet of sharded replicas", () => {
  it.live(
    "gets each version whole from a sharded source, and serves with whole replicas only",
    () =>
      Effect.scoped(
        Effect.gen(function* () {
          const port = yield* serveStore()
          const start = (rank: number) =>
            startMember({
              rank,
              ranks: 8,
              store: port,
              size: "small",
              isSharded: true,
              role: sourceRanks.includes(rank) ? "source" : "replica",
              controls: rank <= 1
            })
          const ranks = [...sourceRanks, ...replicaRanks.flat()]
          const all = yield* Effect.forEach(ranks, start, { concurrency: "unbounded" })
          const sources = all.filter(({ input }) => input.role === "source")
          const replicas = all.filter(({ input }) => input.role === "replica")
          yield* sources[0]!.until((line) => line.event === "status" && line.members.length === ranks.length)

          for (const [label, seed] of [
            ["one", 1],
            ["two", 2]
          ] as const) {
            const published = yield* publishFrom(sources, label, seed)
            for (const answer of published) assert.deepInclude(answer, { event: "published", label, serial: seed })
            yield* useOf(replicas, label, seed)
          }

          // One process of a replica dies while a version is taken.
          const [victim, partner, ...others] = replicas as [MemberProcess, MemberProcess, ...Array<MemberProcess>]
          const publishing = yield* Effect.forkChild(publishFrom(sources, "three", 3), { startImmediately: true })
          yield* victim.until((line) => line.event === "status" && line.staging === "three")
          victim.kill()
          for (const answer of yield* Fiber.join(publishing)) assert.deepInclude(answer, { event: "published" })
          yield* useOf(others, "three", 3)
          const left = partner.mark
          yield* partner.until((line) => line.event === "status" && !line.members.includes(victim.input.rank))
          assert.include(JSON.stringify(yield* partner.ask("use")), "NotServing")
          assert.isFalse(partner.statuses.some(({ serving, members }) => serving !== null && members.length < 8))

          // Another process takes the part of the dead one from the other replica, and both serve again.
          const joiner = yield* start(victim.input.rank)
          yield* joiner.serves("three")
          yield* useOf([joiner], "three", 3)
          yield* partner.until((line) => line.event === "status" && line.serving === "three", left)
          yield* useOf([partner], "three", 3)
          yield* publishFrom(sources, "four", 4)
          yield* useOf([joiner, partner, ...others], "four", 4)
        })
      ),
    { timeout: 180_000 }
  )
})
