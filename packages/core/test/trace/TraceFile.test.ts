// SPDX-License-Identifier: Apache-2.0
/** Trace files: what events they hold, that rows nest, and that they stay bounded. */
import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { traceDocument } from "../../src/trace/TraceDocument.ts"
import { makeTrace, type Trace, type TraceEvent, traced } from "../../src/trace/TraceFile.ts"
import { type SpanRecord, TraceRecord } from "../../src/trace/TraceRecord.ts"

const spanOf = (trace: Trace, name: string, start: number, end: number, attributes: Record<string, unknown> = {}) => {
  const span = trace.tracer.span({
    name,
    parent: Option.none(),
    annotations: Context.empty(),
    links: [],
    startTime: BigInt(start),
    kind: "internal",
    root: true,
    sampled: true
  })
  for (const [key, value] of Object.entries(attributes)) span.attribute(key, value)
  span.end(BigInt(end), Exit.void)
}

const complete = (trace: Trace): ReadonlyArray<TraceEvent> =>
  (JSON.parse(trace.json()) as { traceEvents: ReadonlyArray<TraceEvent> }).traceEvents.filter(({ ph }) => ph === "X")

describe("a trace file", () => {
  it.live("holds the spans of effects with attributes and failures", () =>
    Effect.gen(function* () {
      const trace = makeTrace({ processName: "test" })
      const inner = Effect.fail("no").pipe(
        Effect.withSpan("inner", { attributes: { tick: 3, big: 4n } }),
        Effect.ignore
      )
      yield* inner.pipe(Effect.withSpan("outer"), traced(trace))
      yield* inner
      const events = complete(trace)
      assert.deepStrictEqual(events.map(({ name }) => name).sort(), ["inner", "outer"], "only what was traced")
      const failed = events.find(({ name }) => name === "inner")!
      assert.deepStrictEqual(failed.args, { tick: 3, big: "4", error: "Fail" })
      const outer = events.find(({ name }) => name === "outer")!
      assert.isTrue(outer.ts! <= failed.ts! && outer.ts! + outer.dur! >= failed.ts! + failed.dur! - 0.001)
    })
  )

  it("places events by process and track, in microseconds from its beginning", () => {
    const trace = makeTrace({ processName: "learner" })
    spanOf(trace, "b", 5_000, 7_500)
    spanOf(trace, "a", 1_000, 2_000, { "process.pid": 12345, "process.name": "collector", track: "work", slot: 1 })
    const { traceEvents } = trace.document()
    const names = traceEvents.filter(({ ph }) => ph === "M").map(({ name, pid, args }) => [name, pid, args.name])
    assert.deepStrictEqual(names, [
      ["process_name", process.pid, "learner"],
      ["process_name", 12345, "collector"],
      ["thread_name", 12345, "work"],
      ["thread_name", process.pid, "b"]
    ])
    const [a, b] = complete(trace)
    assert.deepStrictEqual([a!.pid, a!.ts, a!.dur, a!.args], [12345, 0, 1, { slot: 1 }])
    assert.deepStrictEqual([b!.pid, b!.ts, b!.dur], [process.pid, 4, 2.5])
    assert.notStrictEqual(a!.tid, b!.tid)
  })

  const Time = Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 20 }))
  it.prop(
    "never lets two events of a row overlap unless one holds the other",
    [Arbitrary.array(Arbitrary.schema(Schema.Tuple([Time, Time])), { maxLength: 12 })],
    ([spans]) => {
      const trace = makeTrace({ processName: "test" })
      for (const [start, length] of spans) spanOf(trace, "x", start * 1000, (start + length) * 1000)
      const events = complete(trace)
      assert.strictEqual(events.length, spans.length)
      for (const [at, one] of events.entries()) {
        for (const two of events.slice(at + 1)) {
          if (one.tid !== two.tid) continue
          const [end1, end2] = [one.ts! + one.dur!, two.ts! + two.dur!]
          const isApart = end1 <= two.ts! || end2 <= one.ts!
          const isInside = (one.ts! <= two.ts! && end2 <= end1) || (two.ts! <= one.ts! && end1 <= end2)
          assert.isTrue(isApart || isInside, `${one.ts}-${end1} and ${two.ts}-${end2}`)
        }
      }
    }
  )

  it("keeps so many and says how many more there were", () => {
    const trace = makeTrace({ processName: "test", limit: 3 })
    for (let at = 0; at < 5; at++) spanOf(trace, "x", at, at + 1)
    assert.strictEqual(complete(trace).length, 3)
    assert.strictEqual(trace.document().otherData.droppedSpans, 2)
  })
})

const span = (id: string, parent: string | null, start: number, end: number, more: Partial<SpanRecord> = {}) => ({
  id,
  parent,
  name: id,
  start,
  duration: end - start,
  attributes: {},
  notes: [],
  error: null,
  ...more
})

const recordOf = (rank: number, monotonic: number, wall: number, spans: ReadonlyArray<SpanRecord>): TraceRecord => ({
  pid: rank,
  processName: `rank ${rank}`,
  track: "phases",
  host: "one",
  wall: String(wall),
  monotonic: String(monotonic),
  spans,
  droppedSpans: rank
})

const slices = (records: ReadonlyArray<TraceRecord>) =>
  traceDocument(records).traceEvents.filter(({ ph }) => ph === "X")

describe("traces of several processes", () => {
  const work = (rank: number, bytesTo: number) => [
    span("run", null, 0, 9_000),
    span("wire", "run", 2_000, 8_000, {
      attributes: { rank, run: 1, round: 0 },
      notes: [{ name: "peer", attributes: { peer: 1 - rank, bytesSent: bytesTo, bytesReceived: 0 } }]
    })
  ]

  it("of one host follow its monotonic clock, whatever their wall clocks say", () => {
    const all = slices([recordOf(0, 5_000, 900_000, work(0, 0)), recordOf(1, 6_000, 100, work(1, 0))])
    const begun = all.filter(({ name }) => name === "run").map(({ pid, ts }) => [pid, ts])
    assert.deepStrictEqual(begun, [
      [0, 0],
      [1, 1]
    ])
  })

  it("of several hosts follow their wall clocks", () => {
    const other = { ...recordOf(1, 7, 907_000, work(1, 0)), host: "two" }
    const runs = slices([recordOf(0, 5_000, 900_000, work(0, 0)), other]).filter(({ name }) => name === "run")
    assert.deepStrictEqual(
      runs.map(({ pid, ts }) => [pid, ts]),
      [
        [0, 0],
        [1, 7]
      ]
    )
  })

  it("put phases under what they are part of, and what merely happens meanwhile on another row", () => {
    const found = slices([
      recordOf(0, 0, 0, [
        span("run", null, 0, 10_000),
        span("local", "run", 1_000, 9_000),
        span("wire", "run", 2_000, 8_000),
        span("part", "wire", 3_000, 4_000)
      ])
    ])
    const rows = Object.fromEntries(found.map(({ name, tid }) => [name, tid]))
    assert.strictEqual(rows.run, rows.local)
    assert.notStrictEqual(rows.wire, rows.local, "wire is no part of local")
    assert.strictEqual(rows.part, rows.wire)
  })

  it("lead arrows from who sends to who receives, forward in time", () => {
    const receiver = [
      span("run", null, 0, 9_000),
      // Done before the sender's own part began: it fetched.
      span("wire", "run", 500, 1_000, {
        attributes: { rank: 1, run: 1, round: 0 },
        notes: [{ name: "peer", attributes: { peer: 0, bytesSent: 0, bytesReceived: 64 } }]
      })
    ]
    const document = traceDocument([recordOf(0, 0, 0, work(0, 64)), recordOf(1, 0, 0, receiver)])
    const [begin, end] = document.traceEvents.filter(({ ph }) => ph === "s" || ph === "f")
    assert.deepStrictEqual([begin!.ph, begin!.pid, end!.ph, end!.pid], ["s", 0, "f", 1])
    assert.strictEqual(begin!.id, end!.id)
    assert.deepStrictEqual(begin!.args, { bytes: 64 })
    assert.isAtMost(begin!.ts!, end!.ts!)
    const within = ({ pid, tid, ts }: TraceEvent) =>
      document.traceEvents.some(
        (one) => one.ph === "X" && one.pid === pid && one.tid === tid && one.ts! <= ts! && ts! <= one.ts! + one.dur!
      )
    assert.isTrue(within(begin!) && within(end!), "both ends are in a slice")
    assert.strictEqual(document.otherData.droppedSpans, 1)
  })

  it.live("travel as they are", () =>
    Effect.gen(function* () {
      const trace = makeTrace({ processName: "rank 3", pid: 3, track: "phases", host: "here" })
      const before = process.hrtime.bigint()
      yield* Effect.void.pipe(Effect.withSpan("inner"), Effect.withSpan("outer"), traced(trace))
      const record = yield* trace.record
      const decoded = yield* Schema.decodeUnknownEffect(TraceRecord)(JSON.parse(JSON.stringify(record)))
      assert.deepStrictEqual(decoded, record)
      assert.isTrue(BigInt(record.monotonic) >= before && BigInt(record.monotonic) <= process.hrtime.bigint())
      const [inner, outer] = record.spans
      assert.strictEqual(inner!.parent, outer!.id)
      assert.strictEqual(outer!.start, 0)
    })
  )
})
