// SPDX-License-Identifier: Apache-2.0
/** Fleets in a served store whose members are made up: they beat, and do nothing else. */
import { serveStore } from "@tensorferry/bus/store/KeyValueServer"
import type { KeyValueStoreShape } from "@tensorferry/bus/store/KeyValueStore"
import { make } from "@tensorferry/bus/store/KeyValueStoreTcp"
import type { MemberProgress, VersionProgress } from "@tensorferry/fleet/progress/MemberProgress"
import { progressRoot } from "@tensorferry/fleet/progress/reportProgress"
import { makeFleetStore } from "@tensorferry/fleet/service/FleetStore"
import { emptyFleet, type FleetMember, type LogEntry } from "@tensorferry/fleet/version/FleetLog"
import { type Manifest, manifestOf } from "@tensorferry/fleet/version/Manifest"
import type { MemberReport } from "@tensorferry/fleet/version/MemberState"
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"

/** What a store is to hold. Members are by rank; rank 0 is the source. */
export interface MadeUp {
  readonly name: string
  readonly entries: ReadonlyArray<LogEntry>
  readonly reports: ReadonlyArray<MemberReport>
  readonly progress: ReadonlyArray<MemberProgress>
}

export const madeUpMember = (rank: number): FleetMember => ({
  id: `${rank}-${rank.toString(16).padStart(8, "0")}-c0de`,
  rank,
  role: rank === 0 ? "source" : "replica"
})

export const madeUpVersion = (serial: number): Manifest =>
  manifestOf(serial, `step ${serial}`, { w: `digest ${serial}` })

/** Replicas serve version 2, which was committed within 3 seconds: 2 of staging, 1 of standing still. */
export const served = (replicas: number): MadeUp => {
  const members = Array.from({ length: replicas + 1 }, (_, rank) => madeUpMember(rank))
  const manifest = madeUpVersion(2)
  const state = { ...emptyFleet, generation: 1, members, current: madeUpVersion(1), nextSerial: 2 }
  return {
    name: "prod",
    entries: [
      { _tag: "Genesis", state, at: 1000 },
      { _tag: "Propose", manifest, policy: { _tag: "All" }, by: members[0]!.id, at: 10_000 },
      { _tag: "Prepare", serial: 2, at: 12_000 },
      { _tag: "Commit", serial: 2, at: 13_000 }
    ],
    reports: members.map((member) => ({
      member,
      beat: 1,
      incarnation: "memory",
      live: member.role === "source" ? null : manifest,
      staged: null,
      paused: null,
      highest: 2,
      failure: "",
      knows: null
    })),
    progress: members.map(({ rank, id }) => ({
      id,
      host: `host-${rank}`,
      process: 100 + rank,
      beat: 0.5,
      dead: 4,
      received: 1000 * rank,
      versions: []
    }))
  }
}

/** A member took a version, or is about to. */
export const took = (
  stated: MemberProgress,
  serial: number,
  seconds: number | null,
  parts: VersionProgress["parts"] = []
): MemberProgress => {
  const stagedAt = seconds === null ? null : 10_000 + seconds * 1000
  const liveAt = seconds === null ? null : 13_000
  return { ...stated, versions: [{ serial, bytes: 1000, begunAt: 10_000, stagedAt, liveAt, tries: 1, parts }] }
}

/** States how members are with versions on their way. */
export const putProgress = (store: KeyValueStoreShape, name: string, progress: ReadonlyArray<MemberProgress>) =>
  Effect.forEach(
    progress,
    (stated) => store.put(`${progressRoot(name)}${stated.id}`, JSON.stringify(stated), { isEphemeral: true }),
    { discard: true }
  )

/** Puts everything into a store. */
export const putFleet = (store: KeyValueStoreShape, { name, entries, reports, progress }: MadeUp) =>
  Effect.gen(function* () {
    const fleet = makeFleetStore(store, name)
    const { incarnation } = yield* fleet.lookAtLog
    for (const [at, entry] of entries.entries()) yield* fleet.append(incarnation, at + 1, entry)
    for (const report of reports) yield* fleet.report(report)
    yield* putProgress(store, name, progress)
  })

/** Puts one entry more. */
export const append = (store: KeyValueStoreShape, name: string, entry: LogEntry) =>
  Effect.gen(function* () {
    const fleet = makeFleetStore(store, name)
    const { incarnation, entries } = yield* fleet.lookAtLog
    yield* fleet.append(incarnation, Math.max(0, ...entries.keys()) + 1, entry)
  })

/** Reports again, ten times a second, until the scope closes. */
export const beat = (store: KeyValueStoreShape, name: string, reports: () => ReadonlyArray<MemberReport>) => {
  const fleet = makeFleetStore(store, name)
  let turn = 1
  const again = Effect.suspend(() => {
    turn += 1
    const report = (each: MemberReport) => fleet.report({ ...each, beat: turn })
    return Effect.forEach(reports(), report, { discard: true, concurrency: 100 })
  })
  return Effect.forkScoped(Effect.repeat(Effect.ignore(again), Schedule.spaced(100)))
}

/** A store on a port of its own, and a client of it. */
export const servedStore = (options: { readonly token?: string } = {}) =>
  Effect.gen(function* () {
    const port = yield* serveStore(options)
    return { port, store: yield* make({ host: "127.0.0.1", port, ...options }) }
  })
