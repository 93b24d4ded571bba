// SPDX-License-Identifier: Apache-2.0
/**
 * What a rank notes of its work when a trace or a record is asked for: what it held and where that came from, memory, and
 * the spans of its phases. Plain data.
 */
import * as os from "node:os"
import type { ReshardPlan } from "@tensorferry/core/ir/ReshardPlan"
import { opByteLength } from "@tensorferry/core/planner/PlanCheck"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import { inSpan } from "@tensorferry/core/service/Spans"
import { makeTrace } from "@tensorferry/core/trace/TraceFile"
import type { TraceRecord } from "@tensorferry/core/trace/TraceRecord"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { systemFiles } from "../machine/SystemFiles.ts"

/** A destination tensor of one rank. */
export const ObservedTensor = Schema.Struct({
  name: Schema.String,
  dtype: Schema.String,
  /** Of the whole tensor. */
  shape: Schema.Array(Schema.Int),
  /** Of the rank's shard. */
  bytes: Schema.Int,
  /** SHA-256 of the rank's shard; null where nobody asked for it. */
  digest: Schema.NullOr(Schema.String),
  /** Bytes by the rank that they came from. */
  from: Schema.Array(Schema.Tuple([Schema.Int, Schema.Int]))
})
export type ObservedTensor = typeof ObservedTensor.Type

/** Bytes. */
export const ObservedMemory = Schema.Struct({
  /** Resident when the job began: the program itself. */
  before: Schema.Int,
  /** What the plan says that tensors and buffers need on top. */
  estimate: Schema.Int,
  /** Most that was resident at once. */
  peak: Schema.Int,
  /** Memory of other ranks that was mapped at the end and counts as resident here too: it exists once. */
  mapped: Schema.optionalKey(Schema.Int)
})
export type ObservedMemory = typeof ObservedMemory.Type

export const Observed = Schema.Struct({
  hostName: Schema.String,
  memory: ObservedMemory,
  tensors: Schema.Array(ObservedTensor)
})
export type Observed = typeof Observed.Type

/** Spans of one rank that are kept. */
const spanLimit = 100_000

/** Names the boot whose monotonic clock this process reads; processes of one host share it. */
export const clockName = (): string => systemFiles().read("/proc/sys/kernel/random/boot_id") ?? os.hostname()

/** Resident bytes of memory files that are mapped only to be read: those of other processes. From /proc/PID/smaps. */
export const mappedBytes = (smaps: string): number => {
  let [bytes, isForeign] = [0, false]
  for (const line of smaps.split("\n")) {
    const mapping = /^[0-9a-f]+-[0-9a-f]+ (\S{4}) .*?(\/memfd:|\/dev\/shm\/|$)/.exec(line)
    if (mapping !== null) isForeign = mapping[1] === "r--s" && mapping[2] !== ""
    else if (isForeign && line.startsWith("Rss:")) bytes += 1024 * Number.parseInt(line.slice(4), 10)
  }
  return bytes
}

export const observed = (
  memory: Pick<ObservedMemory, "before" | "estimate">,
  tensors: ReadonlyArray<ObservedTensor>
): Observed => ({
  hostName: os.hostname(),
  memory: {
    ...memory,
    peak: process.resourceUsage().maxRSS * 1024,
    mapped: mappedBytes(systemFiles().read("/proc/self/smaps") ?? "")
  },
  tensors
})

/** Bytes of each tensor by the rank that they come from; `tensorOf` names the tensor that a parameter is a view of. */
export const originsOf = (
  plan: ReshardPlan,
  tensorOf: (paramName: string) => string
): ReadonlyMap<string, ReadonlyArray<readonly [rank: number, bytes: number]>> => {
  const origins = new Map<string, Map<number, number>>()
  for (const op of plan.recvOps) {
    const name = tensorOf(op.paramName)
    const byRank = origins.get(name) ?? new Map<number, number>()
    byRank.set(op.peerRank, (byRank.get(op.peerRank) ?? 0) + opByteLength(op))
    origins.set(name, byRank)
  }
  return new Map([...origins].map(([name, byRank]) => [name, [...byRank].sort(([a], [b]) => a - b)]))
}

/** What a process did before its job, in milliseconds since the process began. */
export interface EarlierPhase {
  readonly name: string
  readonly start: number
  readonly end: number
}

const nanosOf = (millis: number): number => Math.round(millis * 1e6)

const earlierSpans = (earlier: ReadonlyArray<EarlierPhase>): TraceRecord["spans"] =>
  earlier.map(({ name, start, end }, at) => ({
    id: `earlier ${at}`,
    parent: null,
    name,
    start: nanosOf(start),
    duration: nanosOf(end - start),
    attributes: {},
    notes: [],
    error: null
  }))

/** By the machine's monotonic clock, in nanoseconds. */
const processBegan = (): bigint => process.hrtime.bigint() - BigInt(nanosOf(performance.now()))

/** The record with earlier phases of its process, as spans before the others. */
export const withEarlier = (record: TraceRecord, earlier: ReadonlyArray<EarlierPhase>): TraceRecord => {
  const begun = processBegan()
  const shift = record.spans.length === 0 ? 0 : Math.max(0, Number(BigInt(record.monotonic) - begun))
  return {
    ...record,
    wall: String(BigInt(record.wall) - BigInt(shift)),
    monotonic: String(begun),
    spans: [...earlierSpans(earlier), ...record.spans.map((span) => ({ ...span, start: span.start + shift }))]
  }
}

/** The phases of the process that started the ranks, as one more process of their trace. */
export const commandTrace = (pid: number, phases: ReadonlyArray<EarlierPhase>): TraceRecord => ({
  pid,
  processName: "command",
  track: "phases",
  host: clockName(),
  wall: String(BigInt(Math.round(performance.timeOrigin * 1000)) * 1000n),
  monotonic: String(processBegan()),
  spans: earlierSpans(phases),
  droppedSpans: 0
})

/** Runs a rank's job with a tracer and adds the spans to its report. */
export const withTrace = <A, E, R>(
  job: Effect.Effect<A, E, R>,
  earlier: ReadonlyArray<EarlierPhase>
): Effect.Effect<A & { readonly trace: TraceRecord }, E, R | ProcessGroup> =>
  Effect.gen(function* () {
    const { rank } = yield* ProcessGroup
    const trace = makeTrace({
      processName: `rank ${rank}`,
      pid: rank,
      track: "phases",
      host: clockName(),
      limit: spanLimit
    })
    const done = yield* Effect.withTracer(
      inSpan(job, "job", () => ({ rank })),
      trace.tracer
    )
    return { ...done, trace: withEarlier(yield* trace.record, earlier) }
  })
