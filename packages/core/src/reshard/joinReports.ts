// SPDX-License-Identifier: Apache-2.0
/** The runs of one update as one report. Pure. */
import type { CopyReport } from "../service/CopyService.ts"

type Peer = CopyReport["peers"][number]

/** Device times of one peer, where the driver knows them. */
const joinedSeconds = (runs: ReadonlyArray<Peer>): Pick<Peer, "seconds"> => {
  const known = runs.flatMap(({ seconds }) => (seconds === undefined ? [] : [seconds]))
  if (known.length === 0) return {}
  const sum = (part: "pack" | "wire" | "unpack") => known.reduce((total, seconds) => total + seconds[part], 0)
  return { seconds: { pack: sum("pack"), wire: sum("wire"), unpack: sum("unpack") } }
}

/** Adds up the reports of at least one run, and what the rank copied by itself beside them. */
export const joinReports = (
  reports: ReadonlyArray<CopyReport>,
  local: Pick<CopyReport, "localBytes" | "localOps">
): CopyReport => {
  const [first] = reports
  if (reports.length === 1 && local.localOps === 0) return first!
  const sum = (of: (report: CopyReport) => number): number => reports.reduce((total, report) => total + of(report), 0)
  const phases = Object.keys(first!.phases) as ReadonlyArray<keyof CopyReport["phases"]>
  const peers = Map.groupBy(
    reports.flatMap((report) => report.peers),
    ({ peer }) => peer
  )
  return {
    ...first!,
    localBytes: local.localBytes + sum((report) => report.localBytes),
    localOps: local.localOps + sum((report) => report.localOps),
    remoteBytesSent: sum((report) => report.remoteBytesSent),
    remoteBytesReceived: sum((report) => report.remoteBytesReceived),
    remoteOps: sum((report) => report.remoteOps),
    messages: sum((report) => report.messages),
    stagingBytes: reports.reduce((most, report) => Math.max(most, report.stagingBytes), 0),
    reusedProgram: reports.every((report) => report.reusedProgram),
    phases: Object.fromEntries(
      phases.map((name) => [name, sum((report) => report.phases[name])])
    ) as CopyReport["phases"],
    peers: [...peers.values()].map((runs) => ({
      ...runs.at(-1)!,
      bytesSent: runs.reduce((total, run) => total + run.bytesSent, 0),
      bytesReceived: runs.reduce((total, run) => total + run.bytesReceived, 0),
      ...joinedSeconds(runs)
    }))
  }
}
