// SPDX-License-Identifier: Apache-2.0
/**
 * Replay pipelines over both rings by a layer: the same loop, the same seeds and the same rows; slots that are ready only for
 * the batch that was asked for; and nothing that grows with the ticks.
 */
import { getHeapStatistics } from "node:v8"
import { assert, describe, it } from "@effect/vitest"
import { descriptor, TensorEngine as HostEngine, HostMemory } from "@tensorferry/backend-torch-copy"
import { layerInProcess, type ReplayPackRequests } from "@tensorferry/core/replay/ReplayPackRequests"
import { makeReplayPipeline } from "@tensorferry/core/replay/ReplayPipeline"
import { claimReplayWriter, createReplayRing, replayRingBytes } from "@tensorferry/core/replay/ReplayRing"
import { drawRows } from "@tensorferry/core/replay/ReplaySampling"
import { allocateHostSlots } from "@tensorferry/core/replay/ReplaySlots"
import { HostMemory as HostMemoryService } from "@tensorferry/core/service/HostMemory"
import { ReplayTransferBackend } from "@tensorferry/core/service/ReplayTransferBackend"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { cpu } from "@tensorferry/core/tensor/Device"
import { type Tensor, tensorBytes } from "@tensorferry/core/tensor/Tensor"
import { collectGarbage } from "@tensorferry/testing/machine/collectGarbage"
import { ringLayout, ringRows, ringRowsFrom, windowRows } from "@tensorferry/testing/ring/ringRows"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import { allocatePipelineSlots, type DevicePipelineOptions, layer as pipelineLayer } from "../src/DevicePipeline.ts"
import { DeviceReplayRing } from "../src/DeviceReplayRing.ts"
import { layer as ringLayer } from "../src/DeviceRingLayer.ts"

/** Bytes in use once everything forgotten is gone. */
const heapBytes = (): number => {
  collectGarbage()
  return getHeapStatistics().used_heap_size
}

const [capacity, rows, depth, seed] = [64, 40, 2, 9]

interface Side {
  readonly push: (rows: Uint8Array) => Effect.Effect<unknown, Error>
  readonly hostSlots: ReadonlyArray<Tensor>
  readonly layer: Layer.Layer<ReplayPackRequests | ReplayTransferBackend, Error>
}

const onHost = Effect.gen(function* () {
  const storage = yield* (yield* HostMemoryService).allocate(replayRingBytes(ringLayout, capacity))
  const ring = Result.getOrThrow(createReplayRing(storage, ringLayout, capacity))
  const writer = yield* claimReplayWriter(ring)
  const hostSlots = yield* allocateHostSlots(ringLayout, rows, depth)
  const transfer = descriptor.replayTransfer!(cpu, depth, {}, descriptor.tensorEngine!({}))
  const side: Side = { push: writer.append, hostSlots, layer: Layer.merge(transfer, layerInProcess(ring, hostSlots)) }
  return side
})

const onDevice = (options: DevicePipelineOptions = {}, window = 1) =>
  Effect.gen(function* () {
    const context = yield* Effect.context<DeviceReplayRing | TensorEngine>()
    const ring = yield* DeviceReplayRing
    const slots = yield* allocatePipelineSlots(rows / window, depth, window)
    const side: Side = {
      push: ring.push,
      hostSlots: slots.hostSlots,
      layer: Layer.provide(pipelineLayer(slots, options), Layer.succeedContext(context))
    }
    return side
  })

const services = Layer.merge(
  HostMemory.layer,
  Layer.provideMerge(ringLayer({ layout: ringLayout, capacity, episodeEnd: "end" }), HostEngine.layer())
)

/** The rows of every tick, and how the heap grew per tick over the second half. */
const runLoop = (
  side: Side,
  ticks: number,
  see: (tick: number, rows: Uint8Array, first: number, end: number) => void
) =>
  Effect.gen(function* () {
    yield* side.push(ringRowsFrom(0, 30))
    const context = yield* Layer.build(side.layer)
    const pipeline = yield* Effect.provideContext(
      makeReplayPipeline({ layout: ringLayout, rows, seed, hostSlots: side.hostSlots, deadline: "10 seconds" }),
      context
    )
    let [prepared, end, heap] = [0, 30, 0]
    for (let tick = 0; tick < ticks; tick++) {
      while (prepared < ticks && (yield* pipeline.idleSlots) > 0) yield* pipeline.startPrepare(prepared++)
      yield* pipeline.waitUntilReady
      const batch = yield* pipeline.sampleLargeBatch()
      assert.strictEqual(batch.tick, tick)
      const bytes = tensorBytes(batch.rows)!
      see(tick, bytes, Number(batch.packed.first), Number(batch.packed.end))
      const observed = batch.columns.observation!
      assert.deepStrictEqual([observed.shape, observed.dtype], [[rows, 2, 5], "float32"])
      bytes.fill(0xdd)
      yield* side.push(ringRowsFrom(end, 1 + (tick % 3)))
      end += 1 + (tick % 3)
      yield* pipeline.afterTick()
      if (tick === ticks >> 1) heap = heapBytes()
    }
    assert.deepStrictEqual((yield* pipeline.report).batches, ticks)
    return (heapBytes() - heap) / (ticks / 2)
  })

describe("a pipeline", () => {
  for (const [where, make] of [
    ["the ring on the host", onHost],
    ["the ring on the device", onDevice()]
  ] as const) {
    it.live(`gives the rows that seed and tick draw, over ${where}`, () =>
      Effect.scoped(
        Effect.gen(function* () {
          let wrapped = 0
          yield* runLoop(yield* make, 40, (tick, bytes, first, end) => {
            const numbers = Array.from(drawRows({ seed, tick, rows, range: end - first }), (offset) => first + offset)
            assert.isTrue(Buffer.compare(bytes, ringRows(numbers)) === 0, `tick ${tick}, rows ${first} to ${end}`)
            if (first > 0) wrapped += 1
          })
          assert.isAbove(wrapped, 5)
        })
      ).pipe(Effect.provide(services, { local: true }))
    )
  }

  it.live("draws windows by weights, which the learner changes by the positions of its batch", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const engine = yield* TensorEngine
        const ring = yield* DeviceReplayRing
        const weights = yield* engine.allocate("uint32", [rows / 2])
        yield* engine.fill(weights, 0)
        // What was drawn once is not drawn again.
        const onDrawn: NonNullable<DevicePipelineOptions["onDrawn"]> = ({ positions }) =>
          Effect.orDie(ring.weigh(positions, weights))
        const side = yield* onDevice({ draws: "weighted", episodes: "whole", onDrawn }, 2)
        const starts = new Map<number, number>()
        yield* runLoop(side, 1, (tick, bytes) => {
          const view = new DataView(bytes.buffer, bytes.byteOffset)
          const numbers = Array.from({ length: rows }, (_, at) =>
            Number(view.getBigInt64(at * ringLayout.rowBytes, true))
          )
          const positions = numbers.filter((_, at) => at % 2 === 0)
          const expected = ringRows(windowRows(positions, new Array(positions.length).fill(2), 2))
          assert.isTrue(Buffer.compare(bytes, expected) === 0, `tick ${tick}`)
          for (const position of positions) starts.set(position, tick)
        })
        const batch = yield* ring.allocateBatch({ count: 50, window: 1, packing: "columns" })
        yield* ring.sample(batch, { seed: 1, tick: 77, draws: "weighted" })
        const again = new BigInt64Array(tensorBytes(batch.positions)!.slice().buffer)
        assert.isEmpty([...again].filter((position) => starts.has(Number(position))))
      })
    ).pipe(Effect.provide(services, { local: true }))
  )

  it.live("has a slot ready for the batch that was asked for, not for one before it", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const side = yield* onDevice()
        yield* side.push(ringRowsFrom(0, 30))
        const backend = Context.get(yield* Layer.build(side.layer), ReplayTransferBackend)
        yield* backend.registerHostSlots(side.hostSlots)
        const shape = [rows, ringLayout.rowBytes]
        const slots = yield* backend.allocateDeviceSlots({ count: depth, shape, dtype: "uint8" })
        const submission = { slot: 0, destination: slots[0]!, source: side.hostSlots[0]! }
        yield* backend.submitH2d(submission)
        yield* backend.waitReady(0)
        assert.isTrue(yield* backend.isReady(0))
        yield* backend.clearReady(0)
        assert.deepStrictEqual([yield* backend.isReady(0), yield* backend.slotState(0)], [false, "idle"])
        yield* backend.submitH2d(submission)
        yield* backend.waitReady(0)
        assert.deepStrictEqual([yield* backend.isReady(0), yield* backend.slotState(0)], [true, "ready"])
        const attributes = yield* backend.attributes
        assert.deepStrictEqual([attributes.h2dSubmitter, attributes.hostMemoryKind], ["device_ring", "device"])
      })
    ).pipe(Effect.provide(services, { local: true }))
  )

  const ticks = isSoak ? 10_000 : 400
  it.live(
    `keeps nothing of a tick, over ${ticks} ticks on the device`,
    () =>
      Effect.scoped(
        Effect.gen(function* () {
          const growth = yield* runLoop(yield* onDevice(), ticks, () => undefined)
          // What is compiled meanwhile counts more than leaks where ticks are few.
          if (isSoak) assert.isBelow(growth, 100)
        })
      ).pipe(Effect.provide(services, { local: true })),
    600_000
  )
})
