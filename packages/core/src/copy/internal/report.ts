// SPDX-License-Identifier: Apache-2.0
/** What a run reports: its totals, and by peer the path that its program took. Pure. */
import type { Rank } from "../../base/Ids.ts"
import type { PeerPath } from "../../service/CopyDriver.ts"
import type { CopyReport } from "../../service/CopyService.ts"
import { type CopyBatch, totalsOf } from "./batch.ts"
import type { CompiledProgram } from "./runState.ts"
import type { RunTimes } from "./telemetry.ts"

export const reportOf = (
  { backend, rank }: Pick<CopyReport, "backend" | "rank">,
  batch: CopyBatch,
  program: CompiledProgram,
  isReused: boolean,
  times: RunTimes
): CopyReport => {
  const paths = new Map<Rank, PeerPath>(
    program.rounds.flatMap((round) => round.program.paths.map((path) => [path.peer, path] as const))
  )
  const totals = totalsOf(batch)
  return {
    backend,
    rank,
    localBytes: totals.localBytes,
    localOps: batch.local.length,
    remoteBytesSent: totals.sentBytes,
    remoteBytesReceived: totals.receivedBytes,
    remoteOps: totals.remoteOps,
    messages: program.messages,
    stagingBytes: program.stagingBytes,
    reusedProgram: isReused,
    phases: times.seconds,
    peers: totals.peers.map((moved) => {
      const path = paths.get(moved.peer)
      const taken = times.peers.get(moved.peer)
      return {
        ...moved,
        path: path?.path ?? backend,
        reason: path?.reason ?? "the only path of this backend",
        ...(taken === undefined ? {} : { seconds: { pack: taken.pack, wire: taken.wire, unpack: taken.unpack } })
      }
    })
  }
}
