// SPDX-License-Identifier: Apache-2.0
/** The life of a fleet of real processes: many updates, of which every few one process dies at a random moment and is replaced. */
import assert from "node:assert/strict"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type { Scope } from "effect/Scope"
import type { MemberProcess } from "./processes.ts"
import { hashOf, type MemberLine } from "./weights.ts"

/** Numbers from 0 on, the same for the same seed. */
export const randomOf = (seed: number) => () => {
  seed = (Math.imul(seed, 1_664_525) + 1_013_904_223) >>> 0
  return seed / 2 ** 32
}

/** What a life consists of. */
export interface LifeInput {
  /** Starts the source of rank 0, or a replica; ranks of replicas begin at 1. */
  readonly start: (rank: number) => Effect.Effect<MemberProcess, never, Scope>
  readonly replicas: number
  readonly updates: number
  readonly random: () => number
  /** Updates from one death to the next. */
  readonly every: number
  /** During which updates the store is restarted, and how. */
  readonly isRestart: (update: number) => boolean
  readonly restartStore: Effect.Effect<void>
}

/** What was seen. */
export interface LifeReport {
  /** Ranks of those who died. */
  readonly deaths: ReadonlyArray<number>
  readonly restarts: number
  /** Updates that were given up and published again. */
  readonly givenUp: ReadonlyArray<string>
  /** Versions whose bytes were looked at. */
  readonly looks: number
  /** From the end of the last update until all replicas served it. */
  readonly secondsToTheLast: number
}

const labelOf = (update: number): string => `update-${update}`

const isStaging =
  (update: number) =>
  (line: MemberLine): boolean =>
    line.event === "status" && line.staging === labelOf(update)

/** Publishes until an update is committed; those that are given up name who was at fault. */
const publish = (source: MemberProcess, update: number, givenUp: Array<string>, tries = 4): Effect.Effect<void> =>
  Effect.gen(function* () {
    const answer = yield* source.ask(`publish ${labelOf(update)} ${update}`)
    if (answer.event === "published") return
    const message = answer.event === "failed" ? answer.message : ""
    assert.match(message, /was given up: .+ Members: .+\./)
    givenUp.push(`${update}: ${message}`)
    assert.ok(tries > 1, message)
    yield* publish(source, update, givenUp, tries - 1)
  })

/** Ends when the member serves the update; fails where bytes that it serves are not those of the version that it names. */
const usesUpdate = (member: MemberProcess, update: number, hashes: Map<string, string>): Effect.Effect<number> =>
  Effect.gen(function* () {
    for (let looks = 1; ; looks++) {
      yield* member.serves(labelOf(update))
      const answer = yield* member.ask("use")
      // It may have lost the store since; it serves again later.
      if (answer.event !== "used") continue
      const seed = Number(answer.label.slice(labelOf(0).length - 1))
      const hash = hashes.get(answer.label) ?? hashOf(seed, member.input.size)
      hashes.set(answer.label, hash)
      assert.equal(answer.hash, hash, `rank ${member.input.rank} serves wrong bytes as ${answer.label}`)
      if (answer.label === labelOf(update)) return looks
    }
  })

/** Lives it. Dies with what went wrong. */
export const live = ({ start, replicas, updates, random, every, isRestart, restartStore }: LifeInput) =>
  Effect.gen(function* () {
    const ranks = Array.from({ length: replicas + 1 }, (_, rank) => rank)
    const [first, ...members] = yield* Effect.forEach(ranks, start, { concurrency: "unbounded" })
    let source = first!
    yield* source.until((line) => line.event === "status" && line.members.length === ranks.length)
    const givenUp: Array<string> = []
    const hashes = new Map<string, string>()
    const deaths: Array<number> = []
    let [restarts, looks, secondsToTheLast] = [0, 0, 0]
    for (let update = 1; update <= updates; update++) {
      const publishing = Effect.forkChild(
        Effect.suspend(() => publish(source, update, givenUp)),
        { startImmediately: true }
      )
      let published = yield* publishing
      if (update % every === 0) {
        const rank = Math.floor(random() * ranks.length)
        // Some die while the version is taken, others whenever it is.
        if (random() < 0.7) yield* (members[rank - 1] ?? members[0]!).until(isStaging(update))
        deaths.push(rank)
        if (rank === 0) {
          yield* Fiber.interrupt(published)
          source.kill()
          source = yield* start(0)
          published = yield* publishing
        } else {
          members[rank - 1]!.kill()
          members[rank - 1] = yield* start(rank)
        }
      }
      if (isRestart(update)) {
        restarts += 1
        yield* restartStore
      }
      yield* Fiber.join(published)
      const ended = performance.now()
      const all = yield* Effect.forEach(members, (member) => usesUpdate(member, update, hashes), {
        concurrency: "unbounded"
      })
      looks += all.reduce((sum, count) => sum + count, 0)
      secondsToTheLast = (performance.now() - ended) / 1000
      hashes.clear()
    }
    for (const member of members) {
      const served = member.statuses.flatMap(({ serving }) => (serving === null ? [] : [Number(serving.slice(7))]))
      assert.deepEqual(
        served,
        served.toSorted((a, b) => a - b),
        "a version was served after a later one"
      )
    }
    return { deaths, restarts, givenUp, looks, secondsToTheLast } satisfies LifeReport
  })
