// SPDX-License-Identifier: Apache-2.0
/**
 * The replay pipeline against its model, for any depth and any interleaving of collector and device; its failures,
 * deadlines, interruptions and end; and what its trace tells.
 */

import { assert, describe, it } from "@effect/vitest"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Arbitrary from "effect/Arbitrary"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import { type PackRequest, packFromRing, ReplayPackRequests } from "../../src/replay/ReplayPackRequests.ts"
import { type LargeBatch, makeReplayPipeline } from "../../src/replay/ReplayPipeline.ts"
import { claimReplayWriter, createReplayRing, replayRingBytes } from "../../src/replay/ReplayRing.ts"
import { batchShape } from "../../src/replay/ReplayRowLayout.ts"
import { drawRows } from "../../src/replay/ReplaySampling.ts"
import { replayTransferLayer } from "../../src/replay/ReplayTransferLayer.ts"
import { tensorBytes, tensorView } from "../../src/tensor/Tensor.ts"
import { makeTrace } from "../../src/trace/TraceFile.ts"
import { makeHeldDevice } from "./replayDevice.ts"
import { replayLayout, rowsFrom, storageOf } from "./replaySupport.ts"

const rows = 6
const seed = 77
const capacity = 8
/** Milliseconds in which a batch that nothing holds back must come: a pipeline that hangs is found at once. */
const patience = 1000

/** Lets every fiber run that can. */
const settle = Effect.repeat(Effect.yieldNow, { times: 30 })

const makeWorld = (depth: number, options: { readonly deadline?: number; readonly fill?: number } = {}) =>
  Effect.gen(function* () {
    const ring = Result.getOrThrow(
      createReplayRing(storageOf(replayRingBytes(replayLayout, capacity)), replayLayout, capacity)
    )
    const writer = yield* claimReplayWriter(ring)
    const appended = { end: 0 }
    const append = (count: number) =>
      Effect.tap(writer.append(rowsFrom(appended.end, count)), () =>
        Effect.sync(() => {
          appended.end += count
        })
      )
    yield* append(options.fill ?? 3)
    const hostSlots = Array.from({ length: depth }, () =>
      Result.getOrThrow(tensorView(storageOf(rows * replayLayout.rowBytes), "uint8", batchShape(replayLayout, rows)))
    )
    /** Requests that the collector has not served yet. */
    const asked: Array<{ readonly request: PackRequest; readonly go: Deferred.Deferred<void> }> = []
    const interrupted: Array<number> = []
    const pack = packFromRing(ring, hostSlots)
    const requests = ReplayPackRequests.of({
      pack: (request) =>
        Effect.gen(function* () {
          const go = yield* Deferred.make<void>()
          asked.push({ request, go })
          yield* Deferred.await(go)
          return yield* pack(request)
        }).pipe(Effect.onInterrupt(() => Effect.sync(() => void interrupted.push(request.tick))))
    })
    const serve = Effect.gen(function* () {
      const next = asked.shift()!
      yield* Deferred.succeed(next.go, undefined)
      yield* settle
      return next.request
    })
    const held = makeHeldDevice()
    const services = yield* Layer.build(
      Layer.merge(
        replayTransferLayer(Effect.succeed(held.device), { ringDepth: depth, deadline: Duration.millis(patience) }),
        Layer.succeed(ReplayPackRequests, requests)
      )
    )
    const scope = yield* Scope.fork(yield* Effect.scope)
    const pipeline = yield* makeReplayPipeline({
      ...{ layout: replayLayout, rows, seed, hostSlots },
      deadline: options.deadline ?? patience
    }).pipe(Scope.provide(scope), Effect.provideContext(services))
    return { append, appended, asked, held, hostSlots, interrupted, pipeline, ring, scope, serve }
  })
type World = Effect.Success<ReturnType<typeof makeWorld>>

/** The rows that a batch must hold. */
const expectedRows = (tick: number, end: number): Buffer => {
  const first = Math.max(0, end - capacity)
  const picked = drawRows({ seed, tick, rows, range: end - first })
  return Buffer.concat(Array.from(picked, (offset) => rowsFrom(first + offset, 1)))
}

const assertRows = (batch: LargeBatch, end: number): void => {
  assert.isTrue(expectedRows(batch.tick, end).equals(tensorBytes(batch.rows)!), `the rows of tick ${batch.tick}`)
}

const tagOf = <A, R>(effect: Effect.Effect<A, { readonly reason: { readonly _tag: string } }, R>) =>
  Effect.map(Effect.flip(effect), ({ reason }) => reason._tag)

/** A whole tick without any delay. */
const runTick = ({ held, pipeline, serve }: World, tick: number) =>
  Effect.gen(function* () {
    yield* pipeline.startPrepare(tick)
    yield* settle
    yield* serve
    for (const slot of held.running()) held.finish(slot)
    yield* settle
    const batch = yield* pipeline.sampleLargeBatch()
    yield* pipeline.afterTick()
    return batch
  })

describe("any interleaving", () => {
  const commands = ["prepare", "append", "serve", "finish", "sample", "after"] as const

  /** What the model knows of a batch: how many rows were written when it was packed, and whether it was copied. */
  interface ModelBatch {
    readonly tick: number
    end: number | undefined
    isCopied: boolean
  }

  it.live.prop(
    "gives each tick the rows that its seed picks out of the snapshot",
    {
      depth: Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 5 })),
      steps: Arbitrary.array(Arbitrary.schema(Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 5 }))), {
        minLength: 10,
        maxLength: 60
      })
    },
    ({ depth, steps }) =>
      Effect.gen(function* () {
        const world = yield* makeWorld(depth)
        const { append, appended, held, pipeline, serve } = world
        const queue: Array<ModelBatch> = []
        let hot: ModelBatch | undefined
        let tick = 0
        const slotOf = new Map<number, number>()
        for (const step of steps) {
          const command = commands[step]!
          if (command === "append") yield* append(1 + ((step + tick) % 5))
          if (command === "prepare") {
            const isFree = queue.length + (hot === undefined ? 0 : 1) < depth
            // Ticks may skip numbers.
            tick += 1 + (queue.length % 2)
            if (isFree) {
              yield* pipeline.startPrepare(tick)
              queue.push({ tick, end: undefined, isCopied: false })
            } else assert.strictEqual(yield* tagOf(pipeline.startPrepare(tick)), "WrongState")
            assert.strictEqual(yield* tagOf(pipeline.startPrepare(tick - 2)), "WrongState")
            yield* settle
          }
          if (command === "serve" && world.asked.length > 0) {
            const request = yield* serve
            slotOf.set(request.slot, request.tick)
            queue.find((batch) => batch.tick === request.tick)!.end = appended.end
          }
          if (command === "finish") {
            const slot = held.running()[step % Math.max(1, held.running().length)]
            if (slot !== undefined) {
              held.finish(slot)
              const batch = [...queue, ...(hot === undefined ? [] : [hot])].find(
                (one) => one.tick === slotOf.get(slot)
              )!
              batch.isCopied = true
              yield* settle
            }
          }
          const [oldest] = queue
          if (command === "sample") {
            if (hot !== undefined) {
              assert.strictEqual((yield* pipeline.sampleLargeBatch()).tick, hot.tick, "the hot batch again")
            } else if (oldest === undefined) {
              assert.strictEqual(yield* tagOf(pipeline.sampleLargeBatch()), "WrongState")
            } else if (oldest.end !== undefined) {
              const batch = yield* pipeline.sampleLargeBatch()
              queue.shift()
              hot = oldest
              assert.deepStrictEqual([batch.tick, Number(batch.packed.end)], [hot.tick, hot.end!])
              assert.strictEqual(batch.slot, [...slotOf].find(([, one]) => one === batch.tick)![0])
            }
          }
          if (command === "after") {
            if (hot === undefined) assert.strictEqual(yield* tagOf(pipeline.afterTick()), "WrongState")
            else if (hot.isCopied) {
              yield* pipeline.afterTick()
              hot = undefined
            }
          }
          // Whatever happens to the other slots, the hot rows stay as they are.
          if (hot?.isCopied === true) assertRows(yield* pipeline.sampleLargeBatch(), hot.end!)
          const cold = queue[0]
          assert.strictEqual(yield* pipeline.batchReady, cold?.isCopied ?? false)
          assert.strictEqual(yield* pipeline.idleSlots, depth - queue.length - (hot === undefined ? 0 : 1))
        }
        for (const slot of held.running()) held.finish(slot)
      }),
    { arbitrary: { runs: isSoak ? 2000 : 60 } }
  )
})

describe("a pipeline", { timeout: 20_000 }, () => {
  it.live("gives the same rows at every depth", () =>
    Effect.gen(function* () {
      const all: Array<ReadonlyArray<Buffer>> = []
      for (const depth of [1, 2, 5]) {
        const world = yield* makeWorld(depth, { fill: 20 })
        const seen: Array<Buffer> = []
        for (let tick = 0; tick < 7; tick++) {
          const batch = yield* runTick(world, tick)
          assertRows(batch, 20)
          assert.strictEqual(batch.slot, tick % depth)
          seen.push(Buffer.from(tensorBytes(batch.rows)!))
        }
        all.push(seen)
        const report = yield* world.pipeline.report
        assert.deepStrictEqual(
          [report.batches, report.rows, report.bytes, report.copySeconds],
          [7, 7 * rows, 7 * rows * replayLayout.rowBytes, 7 * 0.25]
        )
      }
      assert.deepStrictEqual(all[1], all[0])
      assert.deepStrictEqual(all[2], all[0])
    })
  )

  it.live("overwrites a device slot only when the consumer is done with it", () =>
    Effect.gen(function* () {
      const world = yield* makeWorld(1)
      const { held, pipeline, serve } = world
      yield* pipeline.startPrepare(0)
      yield* settle
      yield* serve
      held.finish(0)
      const batch = yield* pipeline.sampleLargeBatch()
      const before = Buffer.from(tensorBytes(batch.rows)!)
      const consumed = yield* Deferred.make<void>()
      yield* pipeline.afterTick(Deferred.await(consumed))
      yield* pipeline.startPrepare(1)
      yield* settle
      yield* serve
      assert.deepStrictEqual(held.running(), [], "packed, not copied")
      assert.deepStrictEqual(Buffer.from(tensorBytes(batch.rows)!), before)
      yield* Deferred.succeed(consumed, undefined)
      yield* settle
      assert.deepStrictEqual(held.running(), [0])
      held.finish(0)
      assertRows(yield* pipeline.sampleLargeBatch(), 3)
    })
  )

  it.live("names views of the device slot", () =>
    Effect.gen(function* () {
      const batch = yield* runTick(yield* makeWorld(2), 0)
      assert.deepStrictEqual(Object.keys(batch.columns), ["row", "rest"])
      assert.deepStrictEqual(batch.columns.rest!.shape, [rows, 19])
      assert.strictEqual(batch.columns.row!.storage, batch.rows.storage)
    })
  )
})

describe("failures", { timeout: 20_000 }, () => {
  it.live("of a pack are reported once, with tick and slot, and the tick can be prepared again", () =>
    Effect.gen(function* () {
      const world = yield* makeWorld(2, { fill: 0 })
      const { append, pipeline, serve } = world
      yield* pipeline.startPrepare(4)
      yield* settle
      yield* serve
      const { reason } = yield* Effect.flip(pipeline.waitUntilReady)
      assert.deepStrictEqual([reason._tag, reason.slot, reason.isRetryable], ["PackFailed", 0, true])
      assert.match(reason.detail, /Tick 4/)
      assert.strictEqual(yield* tagOf(pipeline.waitUntilReady), "WrongState")
      assert.strictEqual(yield* pipeline.idleSlots, 2)
      yield* append(3)
      assertRows(yield* runTick(world, 4), 3)
    })
  )

  it.live("of a damaged ring are reported as such", () =>
    Effect.gen(function* () {
      const { pipeline, ring, serve } = yield* makeWorld(1)
      ring.words[24] = 100n
      yield* pipeline.startPrepare(0)
      yield* settle
      yield* serve
      assert.strictEqual(yield* tagOf(pipeline.sampleLargeBatch()), "RingTorn")
    })
  )

  it.live("of a copy are reported by the wait, or by afterTick where the batch was hot already", () =>
    Effect.gen(function* () {
      const world = yield* makeWorld(2)
      const { held, pipeline, serve } = world
      for (const tick of [0, 1]) yield* pipeline.startPrepare(tick)
      yield* settle
      yield* serve
      yield* serve
      yield* pipeline.sampleLargeBatch()
      held.fail(0)
      held.fail(1)
      yield* settle
      const { reason } = yield* Effect.flip(pipeline.afterTick())
      assert.deepStrictEqual([reason._tag, reason.slot], ["TransferFailed", 0])
      assert.match(reason.detail, /Tick 0.*The test says so/)
      assert.isTrue(yield* pipeline.batchReady, "there is something to hear")
      const second = yield* Effect.flip(pipeline.waitUntilReady)
      assert.deepStrictEqual([second.reason._tag, second.reason.slot], ["TransferFailed", 1])
      assertRows(yield* runTick(world, 2), 3)
    })
  )

  it.live("of time leave the pipeline unchanged", () =>
    Effect.gen(function* () {
      const world = yield* makeWorld(2, { deadline: 20 })
      const { held, pipeline, serve } = world
      yield* pipeline.startPrepare(0)
      for (const wait of [pipeline.waitUntilReady, pipeline.sampleLargeBatch()]) {
        const { reason } = yield* Effect.flip(wait)
        assert.deepStrictEqual([reason._tag, reason.slot, reason.isRetryable], ["DeadlineExceeded", 0, true])
        assert.match(reason.detail, /Tick 0/)
      }
      yield* serve
      assert.strictEqual(yield* tagOf(pipeline.waitUntilReady), "DeadlineExceeded")
      yield* pipeline.sampleLargeBatch()
      assert.strictEqual(yield* tagOf(pipeline.afterTick()), "DeadlineExceeded")
      held.finish(0)
      assertRows(yield* pipeline.sampleLargeBatch(), 3)
      yield* pipeline.afterTick()
    })
  )

  it.live("of pipelines that are none are refused", () =>
    Effect.gen(function* () {
      const { hostSlots } = yield* makeWorld(1)
      const held = makeHeldDevice()
      const good = { layout: replayLayout, rows, seed, hostSlots }
      const wrong = [{ hostSlots: [] }, { rows: 0 }, { rows: 1.5 }, { seed: -1 }, { rows: rows + 1 }]
      for (const input of wrong) {
        const made = Effect.scoped(makeReplayPipeline({ ...good, ...input })).pipe(
          Effect.provide(replayTransferLayer(Effect.succeed(held.device), { ringDepth: 1 })),
          Effect.provideService(ReplayPackRequests, ReplayPackRequests.of({ pack: () => Effect.never }))
        )
        assert.strictEqual(yield* tagOf(made), "WrongState", JSON.stringify(Object.keys(input)))
        assert.deepStrictEqual(held.counts(), { registered: 0, allocated: 0 })
      }
    })
  )
})

describe("interruption and end", { timeout: 20_000 }, () => {
  it.live("of a wait changes nothing", () =>
    Effect.gen(function* () {
      const world = yield* makeWorld(2)
      const { held, pipeline, serve } = world
      yield* pipeline.startPrepare(0)
      const waits = [pipeline.waitUntilReady, pipeline.sampleLargeBatch()]
      for (const wait of waits) {
        const fiber = yield* Effect.forkChild(wait, { startImmediately: true })
        yield* settle
        yield* Fiber.interrupt(fiber)
      }
      yield* serve
      held.finish(0)
      yield* settle
      assertRows(yield* pipeline.sampleLargeBatch(), 3)
    })
  )

  it.live("of the scope ends packs and copies before memory goes", () =>
    Effect.gen(function* () {
      const world = yield* makeWorld(3)
      const { held, interrupted, pipeline, scope, serve } = world
      for (const tick of [0, 1]) yield* pipeline.startPrepare(tick)
      yield* settle
      yield* serve
      const waiting = yield* Effect.forkChild(Effect.flip(pipeline.waitUntilReady), { startImmediately: true })
      const closing = yield* Effect.forkChild(Scope.close(scope, Exit.void), { startImmediately: true })
      yield* settle
      assert.deepStrictEqual(interrupted, [1], "the pack that was open")
      assert.deepStrictEqual(held.counts(), { registered: 3, allocated: 3 }, "while the copy runs")
      held.finish(0)
      yield* Fiber.join(closing)
      assert.deepStrictEqual(held.counts(), { registered: 0, allocated: 0 })
      assert.strictEqual((yield* Fiber.join(waiting)).reason._tag, "WrongState")
      assert.strictEqual(yield* tagOf(pipeline.startPrepare(9)), "WrongState")
    })
  )
})

describe("a trace", { timeout: 20_000 }, () => {
  it.live("has a span for pack, collector, submit, copy, wait and swap of each tick", () =>
    Effect.gen(function* () {
      const trace = makeTrace({ processName: "learner" })
      yield* Effect.gen(function* () {
        const world = yield* makeWorld(2)
        for (let tick = 0; tick < 3; tick++) yield* runTick(world, tick)
      }).pipe(Effect.withTracer(trace.tracer))
      const { traceEvents } = JSON.parse(trace.json()) as ReturnType<typeof trace.document>
      for (const name of ["pack", "collect", "submit", "copy", "wait", "swap"]) {
        const events = traceEvents.filter((event) => event.name === `replay.${name}`)
        assert.deepStrictEqual(
          events.map(({ args }) => args.tick),
          [0, 1, 2],
          name
        )
        for (const { dur, ph, ts } of events) {
          assert.strictEqual(ph, "X")
          assert.isAtLeast(dur!, 0)
          assert.isTrue(Number.isFinite(ts))
        }
      }
    })
  )
})
