// SPDX-License-Identifier: Apache-2.0
/** Looks at made-up fleets. */
import type { MemberProgress, VersionProgress } from "../../src/progress/MemberProgress.ts"
import type { FleetMember, LogEntry } from "../../src/version/FleetLog.ts"
import { emptyFleet } from "../../src/version/FleetLog.ts"
import { type Manifest, manifestOf } from "../../src/version/Manifest.ts"
import type { MemberReport } from "../../src/version/MemberState.ts"
import type { Seen } from "../../src/view/FleetView.ts"

export const memberOf = (rank: number, role: FleetMember["role"] = rank === 0 ? "source" : "replica"): FleetMember => ({
  id: `${rank}-${String(rank).padStart(8, "0")}-aaaa`,
  rank,
  role
})

export const versionOf = (serial: number): Manifest => manifestOf(serial, `step ${serial}`, { w: `digest ${serial}` })

export const reportOf = (member: FleetMember, more: Partial<MemberReport> = {}): MemberReport => ({
  member,
  beat: 1,
  incarnation: "memory",
  live: null,
  staged: null,
  paused: null,
  highest: 0,
  failure: "",
  knows: null,
  ...more
})

export const progressOf = (
  member: FleetMember,
  versions: ReadonlyArray<Partial<VersionProgress> & { readonly serial: number }> = []
): MemberProgress => ({
  id: member.id,
  host: `host-${member.rank}`,
  process: 100 + member.rank,
  beat: 0.5,
  dead: 4,
  received: 1000 * member.rank,
  versions: versions.map((version) => ({
    bytes: 100,
    begunAt: 1000,
    stagedAt: null,
    liveAt: null,
    tries: 1,
    parts: [],
    ...version
  }))
})

/** Version 1 is in use, and these entries follow. */
export const seenOf = (
  members: ReadonlyArray<FleetMember>,
  more: ReadonlyArray<LogEntry>,
  reports: ReadonlyArray<MemberReport>,
  progress: ReadonlyArray<MemberProgress> = [],
  silent: ReadonlyMap<string, number> = new Map()
): Seen => {
  const genesis: LogEntry = {
    _tag: "Genesis",
    state: { ...emptyFleet, generation: 1, members, current: versionOf(1), nextSerial: 2 }
  }
  return {
    name: "prod",
    look: {
      incarnation: "memory",
      entries: new Map([genesis, ...more].map((entry, at) => [at + 1, entry])),
      reports
    },
    progress: new Map(progress.map((each) => [each.id, each])),
    silent
  }
}

/** An update of version 2 that went well within 3 seconds. */
export const committed: ReadonlyArray<LogEntry> = [
  { _tag: "Propose", manifest: versionOf(2), policy: { _tag: "All" }, by: memberOf(0).id, at: 10_000 },
  { _tag: "Prepare", serial: 2, at: 12_000 },
  { _tag: "Commit", serial: 2, at: 13_000 }
]
