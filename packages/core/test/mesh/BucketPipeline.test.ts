// SPDX-License-Identifier: Apache-2.0
/**
 * How parcels are dealt into waves, the steps of one parcel, and the pipeline on an engine that is late: what overlaps, what
 * waits, and how much memory there is at a time.
 */

import { assert, describe, it } from "@effect/vitest"
import { delayedEngine, delayedLayer, makeDelays } from "@tensorferry/testing/DelayedEngine"
import { loopbackLayer, makeLoopbackNetwork } from "@tensorferry/testing/Loopback"
import { meshPair } from "@tensorferry/testing/planning/meshArbitraries"
import { isReducible } from "@tensorferry/testing/planning/meshLaws"
import * as ReferenceEngine from "@tensorferry/testing/ReferenceEngine"
import { isSoak } from "@tensorferry/testing/testLevel"
import { runCluster } from "@tensorferry/testing/VirtualCluster"
import * as Arbitrary from "effect/Arbitrary"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type { Rank } from "../../src/base/Ids.ts"
import { elementCount } from "../../src/base/Region.ts"
import type { MeshPlan } from "../../src/ir/MeshPlan.ts"
import { makeBufferPool } from "../../src/mesh/BufferPool.ts"
import { executeMeshPlan } from "../../src/mesh/executeMeshPlan.ts"
import {
  bufferLimit,
  parcelsOf,
  recvBufferBytes,
  type Schedule,
  type StagingRule,
  scheduleOf
} from "../../src/mesh/MeshParcels.ts"
import { makeReductions } from "../../src/mesh/MeshReductions.ts"
import { resolveViews } from "../../src/mesh/MeshTensors.ts"
import { makeInbound, makeOutbound, type RunProgress, type Transferable } from "../../src/mesh/Transferable.ts"
import { partAlignment } from "../../src/planner/Bucketing.ts"
import { reshardError } from "../../src/reshard/ReshardError.ts"
import { CopyService, type CopyServiceShape } from "../../src/service/CopyService.ts"
import { TensorEngine, type TensorEngineShape } from "../../src/service/TensorEngine.ts"
import { cpu } from "../../src/tensor/Device.ts"
import {
  compact,
  dictOf,
  outcomeOf,
  pairSpecs,
  pairText,
  plansOf,
  runRounds,
  setBytes,
  shardValues,
  sidesOf,
  specsOf,
  worldOf
} from "./meshSupport.ts"

const timeout = isSoak ? 900_000 : 60_000

/** Task ids that a rank's waves hold, by channel. */
const channelsOf = (rank: Rank, schedule: Schedule) => {
  const waves = new Map<string, Array<ReadonlyArray<readonly [taskId: number, key: string, wave: string]>>>()
  for (const kind of ["reductions", "transfers"] as const) {
    for (const [at, wave] of schedule[kind].entries()) {
      const here = new Map<string, Array<readonly [number, string, string]>>()
      const add = (channel: string, taskId: number, key: string) =>
        here.set(channel, [...(here.get(channel) ?? []), [taskId, key, `${kind} ${at}`]])
      for (const { parcel, to } of wave.sends) {
        for (const peer of to) add(`${rank}>${peer.rank}`, peer.taskId, parcel.key)
      }
      for (const { parcel, taskId } of wave.recvs) add(`${parcel.from}>${rank}`, taskId, parcel.key)
      for (const [channel, list] of here) waves.set(channel, [...(waves.get(channel) ?? []), list])
    }
  }
  return waves
}

describe("schedules", () => {
  it.effect("both ends of a channel have the same parcels in the same waves, few at a time, each once", () =>
    Effect.gen(function* () {
      for (const isPartial of [false, true]) {
        const pairs = yield* Arbitrary.sampleEffect(meshPair({ isPartial }), { count: 40, seed: "schedules" })
        for (const [at, pair] of pairs.entries()) {
          if (!isReducible(pair)) continue
          const plans = plansOf(pairSpecs(pair, at % 2 === 0 ? "balanced" : "etha"), 64)
          const maxInFlight = 1 + (at % 3)
          const seen = new Map<string, string>()
          for (const plan of plans) {
            const parcels = parcelsOf(plan, 100)
            const schedule = scheduleOf(plan.rank, parcels, maxInFlight)
            for (const [channel, waves] of channelsOf(plan.rank, schedule)) {
              const ids = waves.flatMap((list) => list.map(([taskId]) => taskId))
              assert.deepStrictEqual(ids, [...ids.keys()], pairText(pair))
              assert.isTrue(waves.every((list) => list.length <= maxInFlight))
              assert.strictEqual(seen.get(channel) ?? JSON.stringify(waves), JSON.stringify(waves), channel)
              seen.set(channel, JSON.stringify(waves))
            }
            // Pieces of a chunk make it up, at aligned places.
            const elements = new Map(plan.buckets.flatMap(({ entries }) => entries.map(({ chunk }) => [chunk, 0])))
            for (const { pieces, totalBytes } of parcels) {
              assert.isTrue(pieces.every(({ offset }) => offset % partAlignment === 0))
              assert.strictEqual(totalBytes, pieces.at(-1)!.offset + pieces.at(-1)!.nbytes)
              for (const { chunk, shape } of pieces) elements.set(chunk, elements.get(chunk)! + elementCount(shape))
            }
            for (const [chunk, count] of elements) assert.strictEqual(count, elementCount(chunk.chunkShape))
          }
        }
      }
    })
  )

  it.effect("the pool refuses what exceeds its limit, and frees what is idle for a buffer of another size", () =>
    Effect.gen(function* () {
      const pool = yield* makeBufferPool(3, ReferenceEngine.make(), 100)
      const first = yield* pool.take(60, cpu)
      const error = yield* Effect.flip(pool.take(41, cpu))
      assert.deepStrictEqual([error.reason._tag, error.reason.rank], ["WritebackFailed", 3])
      const second = yield* pool.take(40, cpu)
      yield* pool.giveBack(first)
      const again = yield* pool.take(60, cpu)
      assert.strictEqual(again.storage, first.storage)
      yield* pool.giveBack(again)
      yield* pool.giveBack(again)
      yield* pool.take(20, cpu)
      yield* pool.take(40, cpu)
      assert.isTrue(first.storage.isFreed())
      assert.isFalse(second.storage.isFreed())
      assert.strictEqual(pool.peakBytes(), 100)
    })
  )
})

/** Both ends of the one bucket between rank 0 and rank 1, on an engine that is late. */
const ends = (reducing = false) =>
  Effect.gen(function* () {
    const delays = makeDelays(1)
    const engine = delayedEngine(ReferenceEngine.make(), delays)
    const tensors = [{ shape: [6], from: "float32", to: "bfloat16" }] as const
    const plans = plansOf(reducing ? specsOf("2:P(sum)", "1@2:R", tensors) : specsOf("1:R", "1@1:R", tensors))
    const submitted: Array<string> = []
    const service = {
      rank: 0,
      submitSend: (_tensor, rank, taskId) => Effect.sync(() => void submitted.push(`send ${taskId} to ${rank}`)),
      submitRecv: (_tensor, rank, taskId) => Effect.sync(() => void submitted.push(`recv ${taskId} from ${rank}`))
    } as Partial<CopyServiceShape> as CopyServiceShape
    const background = yield* Effect.scope
    const side = Effect.fnUntraced(function* (plan: MeshPlan) {
      const { sources, targets } = yield* Effect.provideService(sidesOf(plan), TensorEngine, engine)
      setBytes(sources, (at) => shardValues(plan, at, 0).bytes)
      setBytes(targets, () => 0xa5)
      const views = yield* resolveViews(plan, plan.rank, dictOf(plan, sources), dictOf(plan, targets))
      const rule: StagingRule = { tensors: plan.tensors, isPacked: false }
      const schedule = scheduleOf(plan.rank, parcelsOf(plan, 1024), 1)
      const pool = yield* makeBufferPool(plan.rank, engine, bufferLimit(rule, schedule, schedule.reductions.length))
      const reductions = yield* makeReductions(plan, views.sources, engine)
      return { schedule, targets, context: { plan, rule, service, engine, pool, views, reductions, background } }
    })
    return { delays, submitted, sides: yield* Effect.forEach(plans, side) }
  })

const wrongState = (step: Transferable["launch"] | Transferable["prepare"]) =>
  Effect.map(Effect.flip(step), (error) => {
    assert.strictEqual(error._tag, "TransferableError")
    assert.strictEqual(error.reason._tag, "WrongState")
    return error.message
  })

describe("the steps of a parcel", () => {
  it.live("launch is false until the buffer is ready, and steps out of order are refused", () =>
    Effect.gen(function* () {
      const { delays, submitted, sides } = yield* ends()
      const { schedule, context } = sides[0]!
      const run: RunProgress = { hasArrived: false }
      const parcel = makeOutbound(context, schedule.transfers[0]!.sends[0]!, run)
      assert.include(yield* wrongState(parcel.launch), "is Idle")
      yield* wrongState(parcel.finalize)
      yield* parcel.prepare
      yield* wrongState(parcel.prepare)
      assert.deepStrictEqual([yield* parcel.launch, yield* parcel.launch], [false, false])
      assert.deepStrictEqual(submitted, [])
      assert.strictEqual(delays.waiting(), 1)
      assert.isTrue(yield* delays.releaseOne)
      yield* Deferred.await(parcel.bufferReadyEvent)
      assert.isTrue(yield* parcel.launch)
      assert.deepStrictEqual(submitted, ["send 0 to 1"])
      yield* wrongState(parcel.launch)
      assert.isFalse(yield* parcel.isComplete)
      assert.include(yield* wrongState(parcel.finalize), "is Launched")
      run.hasArrived = true
      assert.isTrue(yield* parcel.isComplete)
      yield* parcel.finalize
      assert.include(yield* wrongState(parcel.finalize), "is Finalized")
      // The buffer went back: another one of its size is the same.
      assert.strictEqual(context.pool.peakBytes(), 12)
      yield* context.pool.take(12, cpu)
      assert.strictEqual(context.pool.peakBytes(), 12)
    })
  )

  it.live("what is shipped after a reduction waits for it, and learns of its failure", () =>
    Effect.gen(function* () {
      for (const outcome of ["reduced", "abandoned"] as const) {
        const { delays, submitted, sides } = yield* ends(true)
        // One of the two members reduces and ships; the other one contributes.
        const reducer = sides.find(({ schedule }) => schedule.reductions.some(({ recvs }) => recvs.length > 0))!
        const inbound = makeInbound(reducer.context, reducer.schedule.reductions[0]!.recvs[0]!, { hasArrived: true })
        yield* inbound.prepare
        assert.isTrue(yield* inbound.launch)
        const outbound = makeOutbound(reducer.context, reducer.schedule.transfers[0]!.sends[0]!, { hasArrived: false })
        yield* outbound.prepare
        assert.isFalse(yield* outbound.launch)
        const emptied = yield* Effect.forkChild(inbound.finalize, { startImmediately: true })
        if (outcome === "abandoned") {
          const error = reshardError("WritebackFailed", { rank: 0, op: "reduce", detail: "It failed.", remedy: "" })
          yield* reducer.context.reductions.abandon(error)
          assert.strictEqual(yield* Effect.flip(Deferred.await(outbound.bufferReadyEvent)), error)
          assert.strictEqual(yield* Effect.flip(outbound.launch), error)
          yield* Fiber.interrupt(emptied)
          assert.strictEqual(delays.waiting(), 0)
          continue
        }
        yield* delays.releaseOne
        yield* Fiber.join(emptied)
        while (delays.waiting() === 0) yield* Effect.yieldNow
        assert.isFalse(yield* outbound.launch)
        yield* delays.releaseOne
        yield* Deferred.await(outbound.bufferReadyEvent)
        assert.isTrue(yield* outbound.launch)
        assert.strictEqual(submitted.length, 2)
      }
    })
  )
})

describe("the pipeline on an engine that is late", () => {
  for (const transport of ["gather", "packed"] as const) {
    it.live(
      `every order of late work gives the oracle's bytes, ${transport}`,
      () =>
        Effect.gen(function* () {
          const sampled = yield* Arbitrary.sampleEffect(meshPair({ isPartial: transport === "gather" }), {
            count: isSoak ? 400 : 40,
            seed: "late"
          })
          const pairs = sampled.map(compact).filter((pair) => isReducible(pair) && worldOf(pair) <= 8)
          let deferred = 0
          for (const [at, pair] of pairs.entries()) {
            const delays = makeDelays(at)
            // Several tensors, so that buckets have several chunks.
            const specs = pairSpecs(pair, "balanced")
            const several = ["a", "b"].flatMap((name) => specs.map((spec) => ({ ...spec, name })))
            const plans = plansOf(several, [64, 400][at % 2])
            const outcomes = [outcomeOf(plans, 0), outcomeOf(plans, 1)]
            const pump = yield* Effect.forkChild(delays.releaseAlways)
            const network = makeLoopbackNetwork()
            const ranks = yield* runCluster(
              {
                size: plans.length,
                engine: delayedLayer(() => ReferenceEngine.make(), delays),
                driver: () => loopbackLayer(network, { gather: transport === "gather" })
              },
              (rank) => runRounds(plans, outcomes, rank, { maxInFlight: 1 + (at % 2), pieceBytes: [100, 400][at % 2]! })
            )
            yield* Fiber.interrupt(pump)
            for (const { faults, reports } of ranks) {
              assert.deepStrictEqual(faults, [], pairText(pair))
              for (const report of reports) {
                assert.isAtMost(report.bufferBytes, report.bufferLimit)
                deferred += report.launchesDeferred
              }
            }
          }
          assert.isAbove(deferred, 0)
        }),
      timeout
    )
  }

  it.live("the next wave is assembled, and the one before emptied, while a wave is under way", () =>
    Effect.gen(function* () {
      // Casts at both ends, six buckets in three waves.
      const specs = [
        ...specsOf(
          "1:R",
          "1@1:R",
          Array.from({ length: 3 }, () => ({ shape: [16], from: "float32", to: "bfloat16" }) as const)
        ),
        ...specsOf(
          "1:R",
          "1@1:R",
          Array.from({ length: 3 }, () => ({ shape: [16], from: "bfloat16", to: "float32" }) as const)
        ).map((spec, at) => ({ ...spec, name: `wide.${at}` }))
      ]
      const plans = plansOf(specs, 32)
      const traces = yield* runCluster({ size: 2 }, (rank) =>
        Effect.gen(function* () {
          const trace: Array<string> = []
          const note = (text: string) => Effect.sync(() => void trace.push(text))
          const inner = yield* TensorEngine
          const engine: TensorEngineShape = {
            ...inner,
            copy: (moves) => Effect.andThen(note("copy"), inner.copy(moves))
          }
          const copies = yield* CopyService
          let runs = -1
          const service: CopyServiceShape = {
            ...copies,
            // The first run is the agreement.
            run: (options) =>
              Effect.suspend(() => {
                const at = ++runs
                return Effect.andThen(
                  note(`begin ${at}`),
                  Effect.tap(copies.run(options), () => note(`end ${at}`))
                )
              })
          }
          const { sources, targets } = yield* sidesOf(plans[rank]!)
          setBytes(sources, (at) => shardValues(plans[rank]!, at, 0).bytes)
          yield* executeMeshPlan(plans[rank]!, dictOf(plans[rank]!, sources), dictOf(plans[rank]!, targets)).pipe(
            Effect.provideService(TensorEngine, engine),
            Effect.provideService(CopyService, service)
          )
          return trace
        })
      )
      const text = traces.map((trace) => trace.join(" "))
      // The first three buckets are cast by the sender, which has the second wave's ready before the first one ends.
      assert.strictEqual(text[0], "begin 0 end 0 copy copy copy begin 1 end 1 begin 2 end 2 begin 3 end 3")
      // The last three are cast by the receiver: one after the second wave, two in the third wave's own run.
      assert.strictEqual(text[1], "begin 0 end 0 begin 1 end 1 begin 2 end 2 copy begin 3 copy copy end 3")
    })
  )

  it.effect("buffers of a wave: what is received stays until the wave after it", () =>
    Effect.sync(() => {
      const plans = plansOf(
        specsOf(
          "1:R",
          "1@1:R",
          Array.from({ length: 4 }, () => ({ shape: [8], from: "bfloat16", to: "float32" }) as const)
        ),
        16
      )
      const rule: StagingRule = { tensors: plans[1]!.tensors, isPacked: false }
      for (const [maxInFlight, limit] of [
        [1, 32],
        [2, 64],
        [3, 64],
        [4, 64]
      ] as const) {
        const schedule = scheduleOf(1, parcelsOf(plans[1]!, 1024), maxInFlight)
        assert.strictEqual(recvBufferBytes(rule, schedule.transfers[0]!.recvs[0]!.parcel), 16)
        assert.strictEqual(bufferLimit(rule, schedule, 0), limit)
      }
    })
  )
})
