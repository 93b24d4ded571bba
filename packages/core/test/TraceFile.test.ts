/** Trace files: what events they hold, that rows nest, and that they stay bounded. */
import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { makeTrace, type Trace, type TraceEvent, traced } from "../src/exec/TraceFile.ts"

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
