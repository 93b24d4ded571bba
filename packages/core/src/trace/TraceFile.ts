// SPDX-License-Identifier: Apache-2.0
/**
 * A tracer that keeps the spans which end, as a trace that Perfetto and Chrome show, or as a record that is put together
 * with those of other processes.
 *
 * Contract: works for every span of the program, whoever makes it. At most `limit` spans are kept, the first ones; trace and
 * record say how many more there were.
 */
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Tracer from "effect/Tracer"
import { type TraceDocument, traceDocument } from "./TraceDocument.ts"
import { earliest, type SpanRecord, type TraceRecord } from "./TraceRecord.ts"

export type { TraceDocument, TraceEvent } from "./TraceDocument.ts"

/** Options of a trace. */
export interface TraceOptions {
  readonly processName: string
  /** By default this process's own. */
  readonly pid?: number
  /** The row of spans that name none, where phases stand under what they are part of; by default a row per name. */
  readonly track?: string
  /** Names the machine whose clocks are read, for records that are put together. */
  readonly host?: string
  readonly limit?: number
}

/** Collects the spans of what runs with its tracer. */
export interface Trace {
  /** Give it to what is to be traced, by `traced` or `Effect.withTracer`. */
  readonly tracer: Tracer.Tracer
  /** The spans that have ended so far, for Perfetto and Chrome. */
  readonly document: () => TraceDocument
  /** What goes into the file. */
  readonly json: () => string
  /** What another process needs to put this trace together with its own. */
  readonly record: Effect.Effect<TraceRecord>
}

/** Values that JSON can carry. */
const plain = (value: unknown): unknown =>
  value === null || typeof value === "string" || typeof value === "boolean" || Number.isFinite(value)
    ? value
    : String(value)

const plainAttributes = (attributes: Iterable<readonly [string, unknown]>): Record<string, unknown> =>
  Object.fromEntries([...attributes].map(([name, value]) => [name, plain(value)]))

interface Ended {
  readonly span: Tracer.NativeSpan
  readonly end: bigint
  readonly exit: Exit.Exit<unknown, unknown>
}

const errorOf = (exit: Exit.Exit<unknown, unknown>): string | null => {
  if (Exit.isSuccess(exit)) return null
  if (Cause.hasInterruptsOnly(exit.cause)) return "Interrupt"
  return exit.cause.reasons[0]?._tag ?? "failed"
}

const spanRecord = (begin: bigint, { span, end, exit }: Ended): SpanRecord => ({
  id: span.spanId,
  parent: Option.isSome(span.parent) ? span.parent.value.spanId : null,
  name: span.name,
  start: Number(span.startTime - begin),
  duration: Number(end - span.startTime),
  attributes: plainAttributes(span.attributes),
  notes: span.events.map(([name, , attributes]) => ({ name, attributes: plainAttributes(Object.entries(attributes)) })),
  error: errorOf(exit)
})

/** Collects spans of everything that runs with its tracer (`Effect.withTracer(trace.tracer)`). */
export const makeTrace = (options: TraceOptions): Trace => {
  const limit = options.limit ?? 1_000_000
  const ended: Array<Ended> = []
  let dropped = 0
  class KeptSpan extends Tracer.NativeSpan {
    override end(endTime: bigint, exit: Exit.Exit<unknown, unknown>): void {
      if (this.status._tag === "Ended") return
      super.end(endTime, exit)
      if (ended.length < limit) ended.push({ span: this, end: endTime, exit })
      else dropped += 1
    }
  }
  /** `ahead`: how far the clock that spans are taken by is ahead of the machine's monotonic one. */
  const recordOf = (ahead: bigint): TraceRecord => {
    const begin = earliest(ended.map(({ span }) => span.startTime))
    const monotonic = begin - ahead
    return {
      pid: options.pid ?? process.pid,
      processName: options.processName,
      track: options.track ?? null,
      host: options.host ?? "",
      wall: String(begin),
      monotonic: String(monotonic < 0n ? 0n : monotonic),
      spans: ended.map((one) => spanRecord(begin, one)),
      droppedSpans: dropped
    }
  }
  const document = (): TraceDocument => traceDocument([recordOf(0n)])
  return {
    tracer: Tracer.make({ span: (spanOptions) => new KeptSpan(spanOptions) }),
    document,
    json: () => `${JSON.stringify(document())}\n`,
    record: Effect.map(Clock.currentTimeNanos, (now) => recordOf(now - process.hrtime.bigint()))
  }
}

/** Runs an effect with the trace's tracer. */
export const traced =
  (trace: Trace) =>
  <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
    Effect.withTracer(effect, trace.tracer)
