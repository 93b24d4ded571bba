/**
 * Spans as a trace that Perfetto and Chrome show: a tracer that keeps what ends, and its JSON.
 *
 * Contract
 * - `traceEvents` are complete events (`X`) with microseconds since the trace began, and names for processes and tracks.
 *   A span's attributes are the event's `args`; a failed span has `error` there.
 * - Attributes decide where an event is shown: `process.pid` and `process.name` name another process, `track` a row of its
 *   own; by default a span is on the row of its name. Events of a row that overlap without one holding the other are
 *   spread over as many rows as that takes, because the format can show only nested ones.
 * - At most `limit` spans are kept, the first ones; the file tells how many more there were.
 *
 * Works for every span of the program, whoever makes it.
 */
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Tracer from "effect/Tracer"

export interface TraceEvent {
  readonly name: string
  readonly ph: "X" | "M"
  readonly pid: number
  readonly tid: number
  readonly ts?: number
  readonly dur?: number
  readonly cat?: string
  readonly args: Readonly<Record<string, unknown>>
}

export interface TraceDocument {
  readonly traceEvents: ReadonlyArray<TraceEvent>
  readonly displayTimeUnit: "ms"
  readonly otherData: { readonly droppedSpans: number }
}

export interface Trace {
  readonly tracer: Tracer.Tracer
  readonly document: () => TraceDocument
  /** What goes into the file. */
  readonly json: () => string
}

const placing = new Set(["process.pid", "process.name", "track"])

/** Values that JSON can carry. */
const plain = (value: unknown): unknown =>
  typeof value === "bigint"
    ? String(value)
    : value === null || ["string", "number", "boolean"].includes(typeof value)
      ? value
      : String(value)

interface Ended {
  readonly span: Tracer.Span
  readonly start: bigint
  readonly end: bigint
  readonly exit: Exit.Exit<unknown, unknown>
}

const microseconds = (nanos: bigint): number => Number(nanos) / 1000

/** Rows for intervals, given by start and, where starts are equal, the longest first. */
const laneOf = (lanes: Array<Array<bigint>>, { start, end }: Ended): number => {
  for (const [lane, open] of lanes.entries()) {
    while (open.length > 0 && open.at(-1)! <= start) open.pop()
    if (open.length > 0 && open.at(-1)! < end) continue
    open.push(end)
    return lane
  }
  return lanes.push([end]) - 1
}

const documentOf = (ended: ReadonlyArray<Ended>, dropped: number, processName: string): TraceDocument => {
  const sorted = [...ended].sort((a, b) => (a.start === b.start ? Number(b.end - a.end) : a.start < b.start ? -1 : 1))
  const begin = sorted[0]?.start ?? 0n
  const events: Array<TraceEvent> = []
  const processes = new Map<number, string>([[process.pid, processName]])
  const tracks = new Map<string, { readonly first: number; readonly lanes: Array<Array<bigint>> }>()
  const threads = new Map<number, { readonly pid: number; readonly name: string }>()
  const lanes = new Map<string, number>()
  for (const one of sorted) {
    const { attributes, name } = one.span
    const stated = attributes.get("process.pid")
    const pid = typeof stated === "number" ? stated : process.pid
    if (!processes.has(pid)) processes.set(pid, String(attributes.get("process.name") ?? `process ${pid}`))
    const track = String(attributes.get("track") ?? name)
    const key = `${pid} ${track}`
    const known = tracks.get(key) ?? { first: tracks.size, lanes: [] }
    tracks.set(key, known)
    const lane = laneOf(known.lanes, one)
    const laneKey = `${key} ${lane}`
    const tid = lanes.get(laneKey) ?? lanes.size + 1
    lanes.set(laneKey, tid)
    threads.set(tid, { pid, name: lane === 0 ? track : `${track} (${lane + 1})` })
    const args: Record<string, unknown> = {}
    for (const [attribute, value] of attributes) if (!placing.has(attribute)) args[attribute] = plain(value)
    if (Exit.isFailure(one.exit)) args.error = String(one.exit.cause.reasons[0]?._tag ?? "failed")
    const ts = microseconds(one.start - begin)
    events.push({ name, ph: "X", cat: name.split(".")[0]!, pid, tid, ts, dur: microseconds(one.end - one.start), args })
  }
  const named = (what: string, pid: number, tid: number, name: string): TraceEvent => ({
    name: what,
    ph: "M",
    pid,
    tid,
    args: { name }
  })
  return {
    traceEvents: [
      ...[...processes].map(([pid, name]) => named("process_name", pid, 0, name)),
      ...[...threads].map(([tid, { pid, name }]) => named("thread_name", pid, tid, name)),
      ...events
    ],
    displayTimeUnit: "ms",
    otherData: { droppedSpans: dropped }
  }
}

/** Collects spans of everything that runs with its tracer (`Effect.withTracer(trace.tracer)`). */
export const makeTrace = (options: { readonly processName: string; readonly limit?: number }): Trace => {
  const limit = options.limit ?? 1_000_000
  const ended: Array<Ended> = []
  let dropped = 0
  class KeptSpan extends Tracer.NativeSpan {
    override end(endTime: bigint, exit: Exit.Exit<unknown, unknown>): void {
      if (this.status._tag === "Ended") return
      super.end(endTime, exit)
      if (ended.length < limit) ended.push({ span: this, start: this.startTime, end: endTime, exit })
      else dropped += 1
    }
  }
  const document = (): TraceDocument => documentOf(ended, dropped, options.processName)
  return {
    tracer: Tracer.make({ span: (spanOptions) => new KeptSpan(spanOptions) }),
    document,
    json: () => `${JSON.stringify(document())}\n`
  }
}

/** Runs an effect with the trace's tracer. */
export const traced =
  (trace: Trace) =>
  <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
    Effect.withTracer(effect, trace.tracer)
