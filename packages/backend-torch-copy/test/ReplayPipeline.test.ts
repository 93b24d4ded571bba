// SPDX-License-Identifier: Apache-2.0
/**
 * Replay pipelines over this package's replay backend and real shared memory: the right rows at every tick, copied at once
 * and in the consumer's wait, and a heap that does not grow with the ticks.
 */

import { getHeapStatistics } from "node:v8"
import { assert, describe, it } from "@effect/vitest"
import { layerInProcess } from "@tensorferry/core/replay/ReplayPackRequests"
import { makeReplayPipeline } from "@tensorferry/core/replay/ReplayPipeline"
import { claimReplayWriter, createReplayRing, replayRingBytes } from "@tensorferry/core/replay/ReplayRing"
import { makeRowLayout } from "@tensorferry/core/replay/ReplayRowLayout"
import { drawRows } from "@tensorferry/core/replay/ReplaySampling"
import { allocateHostSlots } from "@tensorferry/core/replay/ReplaySlots"
import { ReplayTransferDeadline } from "@tensorferry/core/replay/ReplayTransferLayer"
import { HostMemory as HostMemoryService } from "@tensorferry/core/service/HostMemory"
import { cpu } from "@tensorferry/core/tensor/Device"
import { tensorBytes } from "@tensorferry/core/tensor/Tensor"
import { collectGarbage } from "@tensorferry/testing/machine/collectGarbage"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import { descriptor } from "../src/descriptor.ts"
import { HostMemory } from "../src/index.ts"
import { openMemoryFiles } from "./support.ts"

// The test runner starts its workers without it.

/** Bytes in use once everything forgotten is gone. */
const heapBytes = (): number => {
  collectGarbage()
  return getHeapStatistics().used_heap_size
}

const ticks = isSoak ? 10_000 : 300
/** A pipeline that hangs is found after this. */
const patience = Duration.seconds(5)
const rows = 37
const width = 12
const capacity = 50
const seed = 4

const layout = Result.getOrThrow(
  makeRowLayout([
    { name: "row", dtype: "float64", shape: [] },
    { name: "x", dtype: "float64", shape: [width - 1] }
  ])
)

/** Rows whose words are all their number. */
const rowsFrom = (first: number, count: number): Uint8Array =>
  new Uint8Array(Float64Array.from({ length: count * width }, (_, at) => first + Math.floor(at / width)).buffer)

const replay = (depth: number, deferred: boolean) =>
  descriptor.replayTransfer!(cpu, depth, deferred ? { deferred } : {}, descriptor.tensorEngine!({}))

/** What the heap has grown by over the second half of the ticks, in bytes per tick. */
const runTicks = (depth: number, deferred: boolean, total: number) =>
  Effect.gen(function* () {
    const memory = yield* HostMemoryService
    const storage = yield* memory.allocate(replayRingBytes(layout, capacity))
    const ring = Result.getOrThrow(createReplayRing(storage, layout, capacity))
    const writer = yield* claimReplayWriter(ring)
    yield* writer.append(rowsFrom(0, 7))
    const hostSlots = yield* allocateHostSlots(layout, rows, depth)
    const transfer = Layer.provide(replay(depth, deferred), Layer.succeed(ReplayTransferDeadline, patience))
    const services = yield* Layer.build(Layer.merge(transfer, layerInProcess(ring, hostSlots)))
    const pipeline = yield* Effect.provideContext(
      makeReplayPipeline({ layout, rows, seed, hostSlots, deadline: patience }),
      services
    )
    const views = { prepared: 0, written: 7, heap: 0 }
    const prepareAhead = Effect.gen(function* () {
      while (views.prepared < total && (yield* pipeline.idleSlots) > 0) yield* pipeline.startPrepare(views.prepared++)
    })
    for (let tick = 0; tick < total; tick++) {
      yield* prepareAhead
      if (tick % 2 === 0) yield* pipeline.waitUntilReady
      const batch = yield* pipeline.sampleLargeBatch()
      yield* prepareAhead
      assert.strictEqual(batch.tick, tick)
      const bytes = tensorBytes(batch.rows)!
      const words = new Float64Array(bytes.buffer, bytes.byteOffset, rows * width)
      const { first, end } = batch.packed
      const picked = drawRows({ seed, tick, rows, range: Number(end - first) })
      for (let at = 0; at < words.length; at++) {
        const expected = Number(first) + picked[Math.floor(at / width)]!
        if (words[at] !== expected) assert.fail(`tick ${tick}: ${words[at]} instead of ${expected}`)
      }
      bytes.fill(0xee)
      const count = 1 + (tick % 5)
      yield* writer.append(rowsFrom(views.written, count))
      views.written += count
      yield* pipeline.afterTick()
      if (tick === total >> 1) views.heap = heapBytes()
    }
    const heap = heapBytes()
    const report = yield* pipeline.report
    assert.deepStrictEqual([report.batches, report.rows], [total, total * rows])
    assert.isAbove(report.copySeconds + report.stallSeconds, 0)
    return (heap - views.heap) / (total / 2)
  }).pipe(Effect.scoped, Effect.provide(HostMemory.layer))

describe("a pipeline over shared memory", () => {
  for (const [depth, deferred] of [
    [1, false],
    [2, false],
    [5, false],
    [2, true]
  ] as const) {
    it.live(`gives the right rows at depth ${depth}${deferred ? ", copied in the wait" : ""}`, () =>
      Effect.gen(function* () {
        const before = openMemoryFiles()
        yield* runTicks(depth, deferred, 40)
        assert.deepStrictEqual(openMemoryFiles(), before)
      })
    )
  }

  it.live(
    `keeps nothing of a tick, over ${ticks} ticks`,
    () =>
      Effect.gen(function* () {
        const growth = yield* runTicks(3, false, ticks)
        // What is compiled meanwhile counts more than leaks where ticks are few.
        if (ticks >= 10_000) assert.isBelow(growth, 100)
      }),
    300_000
  )
})
