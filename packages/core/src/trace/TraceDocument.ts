// SPDX-License-Identifier: Apache-2.0
/**
 * Records of spans as the JSON that Perfetto and Chrome show. Pure.
 *
 * Contract
 * - `traceEvents` are complete events (`X`) with microseconds since the trace began, and names for processes and tracks.
 *   A span's attributes are the event's `args`; a failed span has `error` there.
 * - Attributes decide where an event is shown: `process.pid` and `process.name` name another process, `track` a row of its
 *   own; by default a span is on the row of its name, or on the one that its record names. Only what a span is part of is
 *   shown around it: what merely happens meanwhile is on a further row.
 * - Where spans note what they sent to and received from peers (`peer`), arrows lead from sender to receiver.
 */
import { offsetsOf, type SpanRecord, type TraceRecord } from "./TraceRecord.ts"

/** One event of a trace file. */
export interface TraceEvent {
  readonly name: string
  readonly ph: "X" | "M" | "s" | "f"
  readonly pid: number
  readonly tid: number
  readonly ts?: number
  readonly dur?: number
  readonly cat?: string
  readonly id?: string
  readonly bp?: "e"
  readonly args: Readonly<Record<string, unknown>>
}

/** A timeline in the Trace Event Format of Chrome, which Perfetto reads too. */
export interface TraceDocument {
  readonly traceEvents: ReadonlyArray<TraceEvent>
  readonly displayTimeUnit: "ms"
  readonly otherData: { readonly droppedSpans: number }
}

const placing = new Set(["process.pid", "process.name", "track"])

/** A span with its place in the trace; nanoseconds, so that nothing is rounded while spans are compared. */
interface Slice {
  readonly span: SpanRecord
  readonly parent: Slice | undefined
  readonly pid: number
  readonly tid: number
  readonly start: number
  readonly end: number
}

/** What is not placed yet. */
interface Pending {
  readonly span: SpanRecord
  readonly record: TraceRecord
  readonly key: string
  readonly start: number
  readonly end: number
}

interface Track {
  readonly lanes: Array<Array<Slice>>
  readonly tids: Array<number>
}

const isWithin = (slice: Slice | undefined, outer: Slice): boolean =>
  slice !== undefined && (slice === outer || isWithin(slice.parent, outer))

/** The first row of a track where the span would stand under nothing but what it is part of. */
const laneFor = ({ lanes }: Track, parent: Slice | undefined, { start, end }: Pending): number => {
  for (const [lane, open] of lanes.entries()) {
    while (open.length > 0 && open.at(-1)!.end <= start) open.pop()
    const around = open.at(-1)
    if (around === undefined || (isWithin(parent, around) && end <= around.end)) return lane
  }
  return lanes.push([]) - 1
}

interface PeerNote {
  readonly slice: Slice
  readonly bytes: number
}

const numberOf = (value: unknown): number => (typeof value === "number" ? value : 0)

/** Arrows from what sends to what receives, of the same run and round. */
const arrowsOf = (slices: ReadonlyArray<Slice>): ReadonlyArray<TraceEvent> => {
  const sent = new Map<string, PeerNote>()
  const received = new Map<string, PeerNote>()
  for (const slice of slices) {
    const { rank, run, round } = slice.span.attributes
    for (const { name, attributes } of slice.span.notes) {
      if (name !== "peer") continue
      const at = `${run}.${round}`
      const { peer, bytesSent, bytesReceived } = attributes
      if (numberOf(bytesSent) > 0) sent.set(`${at}.${rank}>${peer}`, { slice, bytes: numberOf(bytesSent) })
      if (numberOf(bytesReceived) > 0) received.set(`${at}.${peer}>${rank}`, { slice, bytes: numberOf(bytesReceived) })
    }
  }
  return [...sent].flatMap(([id, { slice: from, bytes }]): ReadonlyArray<TraceEvent> => {
    const to = received.get(id)?.slice
    if (to === undefined) return []
    // Inside of the slice that it points to, or it would point to whatever is there next.
    const ends = to.start + Math.floor((to.end - to.start) * 0.999)
    // A receiver that fetches may be done before its sender's part has begun: then the arrow comes from what is around.
    let begins: Slice | undefined = from
    while (begins !== undefined && begins.start > ends) begins = begins.parent
    if (begins === undefined) return []
    const arrow = { name: "bytes", cat: "copy", id, args: { bytes } }
    return [
      { ...arrow, ph: "s", pid: begins.pid, tid: begins.tid, ts: begins.start / 1000 },
      { ...arrow, ph: "f", bp: "e", pid: to.pid, tid: to.tid, ts: ends / 1000 }
    ]
  })
}

const argsOf = ({ attributes, notes, error }: SpanRecord): Record<string, unknown> => {
  const args: Record<string, unknown> = {}
  for (const [attribute, value] of Object.entries(attributes)) if (!placing.has(attribute)) args[attribute] = value
  for (const { name, attributes: noted } of notes) {
    args[name === "peer" ? `peer ${String(noted.peer)}` : name] = noted
  }
  if (error !== null) args.error = error
  return args
}

/** All records in one trace, in the order given; ranks by their numbers, for a job. */
export const traceDocument = (records: ReadonlyArray<TraceRecord>): TraceDocument => {
  const offsets = offsetsOf(records)
  // Some record's first span is where the trace begins.
  const begin = records.reduce(
    (least, { spans }, at) => spans.reduce((sofar, { start }) => Math.min(sofar, offsets[at]! + start), least),
    Number.POSITIVE_INFINITY
  )
  const pending = records
    .flatMap((record, at) =>
      record.spans.map((span): Pending => {
        const start = offsets[at]! + span.start - begin
        return { span, record, key: `${at}/${span.id}`, start, end: start + span.duration }
      })
    )
    .sort((a, b) => a.start - b.start || b.end - a.end)
  const processes = new Map(records.map(({ pid, processName }) => [pid, processName]))
  const tracks = new Map<string, Track>()
  const threads = new Map<number, { readonly pid: number; readonly name: string }>()
  const placed = new Map<string, Slice>()
  for (const one of pending) {
    const { span, record, key } = one
    const { "process.pid": stated, "process.name": processName, track: row } = span.attributes
    const pid = typeof stated === "number" ? stated : record.pid
    if (!processes.has(pid)) processes.set(pid, String(processName ?? `process ${pid}`))
    const name = String(row ?? record.track ?? span.name)
    const track = tracks.get(`${pid} ${name}`) ?? { lanes: [], tids: [] }
    tracks.set(`${pid} ${name}`, track)
    const parent = span.parent === null ? undefined : placed.get(`${key.slice(0, key.indexOf("/"))}/${span.parent}`)
    const lane = laneFor(track, parent, one)
    if (track.tids[lane] === undefined) {
      track.tids[lane] = threads.size + 1
      threads.set(threads.size + 1, { pid, name: lane === 0 ? name : `${name} (${lane + 1})` })
    }
    const slice: Slice = { span, parent, pid, tid: track.tids[lane], start: one.start, end: one.end }
    track.lanes[lane]!.push(slice)
    placed.set(key, slice)
  }
  return documentOf(records, processes, threads, [...placed.values()])
}

const documentOf = (
  records: ReadonlyArray<TraceRecord>,
  processes: ReadonlyMap<number, string>,
  threads: ReadonlyMap<number, { readonly pid: number; readonly name: string }>,
  slices: ReadonlyArray<Slice>
): TraceDocument => {
  const about = (name: string, pid: number, tid: number, args: TraceEvent["args"]): TraceEvent => ({
    name,
    ph: "M",
    pid,
    tid,
    args
  })
  return {
    traceEvents: [
      ...[...processes].map(([pid, name]) => about("process_name", pid, 0, { name })),
      ...(records.length < 2
        ? []
        : [...processes.keys()].map((pid, at) => about("process_sort_index", pid, 0, { sort_index: at }))),
      ...[...threads].map(([tid, { pid, name }]) => about("thread_name", pid, tid, { name })),
      ...slices.map(({ span, pid, tid, start, end }): TraceEvent => {
        const cat = span.name.split(".")[0]!
        return {
          name: span.name,
          ph: "X",
          cat,
          pid,
          tid,
          ts: start / 1000,
          dur: (end - start) / 1000,
          args: argsOf(span)
        }
      }),
      ...arrowsOf(slices)
    ],
    displayTimeUnit: "ms",
    otherData: { droppedSpans: records.reduce((sum, { droppedSpans }) => sum + droppedSpans, 0) }
  }
}
