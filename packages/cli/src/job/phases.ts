// SPDX-License-Identifier: Apache-2.0
/**
 * Where the seconds of a rank's job go: each phase by its own, and waiting for others by itself, in whatever phase it happens.
 * The same intervals are spans where the job is observed.
 *
 * Invariant: phases follow each other, so their seconds together are those of the job. Within the copy, waiting is counted by
 * the steps of its report instead, because it overlaps with transfers there.
 */
import type { ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import { inSpan } from "@tensorferry/core/service/Spans"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"

/** In their order. A job has some of them; "wait" is for other ranks, in all phases. */
export const jobPhases = [
  "ranks",
  "start",
  "open",
  "plan",
  "allocate",
  "load",
  "wait",
  "copy",
  "verify",
  "prove",
  "write",
  "finish",
  "release"
] as const
export type JobPhase = (typeof jobPhases)[number]

/** What a phase is called in tables. */
export const phaseNames: Readonly<Record<JobPhase, string>> = {
  ranks: "start of ranks",
  start: "start of services",
  open: "open files",
  plan: "plan",
  allocate: "take memory",
  load: "load",
  wait: "wait for others",
  copy: "copy",
  verify: "verify",
  prove: "trace elements",
  write: "write",
  finish: "finish",
  release: "release memory"
}

export interface JobClock {
  /** By phase. */
  readonly seconds: { [phase: string]: number }
  /** Runs a phase; its own seconds are those in which it does not wait in a collective of the watched group. */
  readonly phase: <A, E, R>(name: JobPhase, effect: Effect.Effect<A, E, R>) => Effect.Effect<A, E, R>
  /** The group, with its collectives counted as waiting. */
  readonly watched: (group: ProcessGroupShape) => ProcessGroupShape
}

const secondsSince = (start: bigint, end: bigint): number => Number(end - start) / 1e9

/** `ranks` is how many seconds the process took to meet the others. */
export const makeJobClock = (ranks: number): JobClock => {
  const seconds: { [phase: string]: number } = { ranks }
  const add = (name: JobPhase, some: number): void => {
    seconds[name] = (seconds[name] ?? 0) + some
  }
  const waiting = <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
    Effect.gen(function* () {
      const start = yield* Clock.monotonicTimeNanos
      const value = yield* effect
      add("wait", secondsSince(start, yield* Clock.monotonicTimeNanos))
      return value
    })
  return {
    seconds,
    phase: (name, effect) =>
      Effect.gen(function* () {
        const [start, waited] = [yield* Clock.monotonicTimeNanos, seconds.wait ?? 0]
        const value = yield* inSpan(effect, `job.${name}`)
        const own = secondsSince(start, yield* Clock.monotonicTimeNanos) - ((seconds.wait ?? 0) - waited)
        add(name, Math.max(0, own))
        return value
      }),
    watched: (group) => ({
      ...group,
      allGather: (label, payload) => waiting(group.allGather(label, payload)),
      barrier: (label) => waiting(group.barrier(label)),
      broadcast: (label, root, payload) => waiting(group.broadcast(label, root, payload))
    })
  }
}
