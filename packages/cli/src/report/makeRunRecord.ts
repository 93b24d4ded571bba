// SPDX-License-Identifier: Apache-2.0
/** Puts the reports of all ranks together as the record of a run. Pure, but for the time of day. */
import { digestOf } from "@tensorferry/core/base/Digest"
import { offsetsOf, type SpanRecord, type TraceRecord } from "@tensorferry/core/trace/TraceRecord"
import type { RankReport } from "../job/JobSpec.ts"
import type { ObservedTensor } from "../job/Observed.ts"
import type { RecordedPhase, RecordedTensor, RecordedTraffic, RunRecord } from "./RunRecord.ts"

/** Phases of one rank that are kept: the longest, where there are more. */
const phaseLimit = 5_000

/** Attributes that the place of a phase already shows. */
const told = new Set(["rank", "backend", "run"])

const aboutOf = ({ attributes, error }: SpanRecord): string =>
  [
    ...Object.entries(attributes).flatMap(([name, value]) => (told.has(name) ? [] : [`${name} ${String(value)}`])),
    ...(error === null ? [] : [`failed: ${error}`])
  ].join(", ")

/** Spans on rows: each below what it is part of, and apart from what happens meanwhile. */
export const phasesOf = (spans: ReadonlyArray<SpanRecord>, offsetNanos: number): ReadonlyArray<RecordedPhase> => {
  const kept =
    spans.length <= phaseLimit ? spans : [...spans].sort((a, b) => b.duration - a.duration).slice(0, phaseLimit)
  const rows = new Map<string, number>()
  /** When what is on each row ends. */
  const ends: Array<number> = []
  return [...kept]
    .sort((a, b) => a.start - b.start || b.duration - a.duration)
    .map((span) => {
      let row = span.parent === null ? 0 : (rows.get(span.parent) ?? -1) + 1
      while ((ends[row] ?? 0) > span.start) row += 1
      rows.set(span.id, row)
      ends[row] = span.start + span.duration
      return {
        name: span.name,
        row,
        start: (span.start + offsetNanos) / 1e9,
        seconds: span.duration / 1e9,
        about: aboutOf(span)
      }
    })
}

const trafficOf = (reports: ReadonlyArray<RankReport>): ReadonlyArray<RecordedTraffic> =>
  reports.flatMap(({ rank, copy }) => [
    ...(copy.localBytes === 0
      ? []
      : [{ from: rank, to: rank, bytes: copy.localBytes, path: "local copy", reason: "same rank" }]),
    ...copy.peers
      .filter(({ bytesReceived }) => bytesReceived > 0)
      .map(({ peer, bytesReceived, path, reason }) => ({ from: peer, to: rank, bytes: bytesReceived, path, reason }))
  ])

interface Shard extends ObservedTensor {
  readonly rank: number
}

const tensorOf = (name: string, shards: ReadonlyArray<Shard>): RecordedTensor => {
  const digests = shards.map(({ digest }) => digest)
  const [first] = digests
  return {
    name,
    dtype: shards[0]!.dtype,
    shape: shards[0]!.shape,
    bytes: shards.reduce((sum, { bytes }) => sum + bytes, 0),
    sources: [...new Set(shards.flatMap(({ from }) => from.map(([rank]) => rank)))].sort((a, b) => a - b),
    destinations: shards.map(({ rank }) => rank),
    digest: digests.includes(null) ? null : digests.every((digest) => digest === first) ? first! : digestOf(digests)
  }
}

const tensorsOf = (reports: ReadonlyArray<RankReport>): ReadonlyArray<RecordedTensor> => {
  const shards = new Map<string, Array<Shard>>()
  for (const { rank, observed } of reports) {
    for (const tensor of observed?.tensors ?? []) {
      const known = shards.get(tensor.name)
      if (known === undefined) shards.set(tensor.name, [{ ...tensor, rank }])
      else known.push({ ...tensor, rank })
    }
  }
  return [...shards].map(([name, held]) => tensorOf(name, held))
}

export const tracesOf = (reports: ReadonlyArray<RankReport>): ReadonlyArray<TraceRecord> =>
  reports.flatMap(({ trace }) => (trace === undefined ? [] : [trace]))

export interface RecordInput {
  readonly job: RunRecord["job"]
  readonly facts: RunRecord["facts"]
  readonly reports: ReadonlyArray<RankReport>
  readonly created: Date
}

export const makeRunRecord = ({ job, facts, reports, created }: RecordInput): RunRecord => {
  const traces = tracesOf(reports)
  const offsets = new Map(offsetsOf(traces).map((offset, at) => [traces[at]!.pid, offset]))
  return {
    format: "tensorferry.run",
    version: 1,
    created: created.toISOString(),
    job,
    backend: { name: reports[0]?.copy.backend ?? "", reason: reports[0]?.backendReason ?? "" },
    facts,
    ranks: reports.map(({ rank, observed, trace, sourceBytes, destinationBytes, seconds, copy, peakMemory }) => ({
      rank,
      host: observed?.hostName ?? "",
      sourceBytes,
      destinationBytes,
      memory: observed?.memory ?? { before: 0, estimate: 0, peak: peakMemory },
      seconds,
      copy,
      phases: phasesOf(trace?.spans ?? [], offsets.get(rank) ?? 0)
    })),
    traffic: trafficOf(reports),
    tensors: tensorsOf(reports),
    droppedSpans: traces.reduce((sum, { droppedSpans }) => sum + droppedSpans, 0)
  }
}
