// SPDX-License-Identifier: Apache-2.0
/**
 * Ways to queue replay copies side by side: what the link carries and what a submission costs, of this package's ways and of
 * a native loop of the vendor's functions with the same signals. All are measured in turns, on one device, in one process.
 */

import { makeReplayDevice } from "@tensorferry/backend-cuda/ReplayDevice"
import { openReplayQueue, type ReplayWay, replayWay } from "@tensorferry/backend-cuda/ReplayQueue"
import { type OpenReplay, open } from "@tensorferry/backend-cuda/ReplayTransfer"
import { descriptor as hostBackend } from "@tensorferry/backend-torch-copy"
import { median } from "@tensorferry/core/base/Numbers"
import { replayTransferLayer } from "@tensorferry/core/replay/ReplayTransferLayer"
import { type ReplaySubmission, ReplayTransferBackend } from "@tensorferry/core/service/ReplayTransferBackend"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import { makeDeviceMemory } from "@tensorferry/gpu/DeviceMemory"
import type { NativeFailure } from "@tensorferry/native/NativeAddon"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { type RawSlots, timeRawCopies } from "./rawCopies.ts"
import { hostSlots, type ReplaySpec, rawSlots, timeBackend } from "./replay.ts"

const mebibyte = 2 ** 20
const ringDepth = 8
const rounds = 7

const ways: ReadonlyArray<ReplayWay> = [
  { streams: 1, copiesPerEvent: 1, isTimed: true },
  { streams: 1, copiesPerEvent: 1, isTimed: false },
  { streams: 2, copiesPerEvent: 1, isTimed: true },
  { streams: 2, copiesPerEvent: 1, isTimed: false },
  { streams: 3, copiesPerEvent: 1, isTimed: true },
  { streams: 1, copiesPerEvent: 4, isTimed: true },
  { streams: 1, copiesPerEvent: 4, isTimed: false },
  { streams: 2, copiesPerEvent: 2, isTimed: true }
]

type Loop = Pick<RawSlots, "signal" | "streams" | "copiesPerSignal">

const loops: ReadonlyArray<Loop> = [
  { signal: "nothing", streams: 1, copiesPerSignal: 1 },
  { signal: "timedEvent", streams: 1, copiesPerSignal: 1 },
  { signal: "event", streams: 1, copiesPerSignal: 1 },
  { signal: "value", streams: 1, copiesPerSignal: 1 },
  { signal: "event", streams: 1, copiesPerSignal: 4 },
  { signal: "nothing", streams: 2, copiesPerSignal: 1 },
  { signal: "timedEvent", streams: 2, copiesPerSignal: 1 },
  { signal: "event", streams: 2, copiesPerSignal: 1 },
  { signal: "value", streams: 2, copiesPerSignal: 1 },
  { signal: "timedEvent", streams: 4, copiesPerSignal: 1 }
]

const signalNames = { nothing: "no signal", timedEvent: "timed event", event: "event", value: "written value" } as const

const often = (copies: number): string => (copies === 1 ? "each copy" : `every ${copies} copies`)

export const describeWay = (way: ReplayWay): string => {
  const chosen = Object.entries(replayWay).every(([name, value]) => way[name as keyof ReplayWay] === value)
  const events = `${way.isTimed ? "timed event" : "event"} behind ${often(way.copiesPerEvent)}`
  return `ours, streams ${way.streams}, ${events}${chosen ? " (default)" : ""}`
}

const describeLoop = ({ signal, streams, copiesPerSignal }: Loop): string =>
  `loop, streams ${streams}, ${signalNames[signal]}${signal === "nothing" ? "" : ` behind ${often(copiesPerSignal)}`}`

export interface WayRow {
  readonly way: string
  readonly gigabytesPerSecond: number
  /** Of the loop with one stream and no signal. */
  readonly ofLoop: number
  /** Microseconds of a submission: around the Effect, and of the device's own call without the backend's states. */
  readonly submit: { readonly [length: string]: { readonly around: number; readonly call: number } }
}

interface Contender {
  readonly way: ReplayWay
  readonly opened: OpenReplay
  readonly backend: ReplayTransferBackend["Service"]
}

const contend = Effect.fnUntraced(function* ({ queue }: OpenReplay, way: ReplayWay) {
  const { gpu } = queue
  const own = yield* openReplayQueue(gpu, ringDepth, way)
  const device = makeReplayDevice(own, makeDeviceMemory(gpu, {}))
  const built = yield* Layer.build(replayTransferLayer(Effect.succeed(device), { ringDepth }))
  return { way, opened: { queue: own, device }, backend: Context.get(built, ReplayTransferBackend) }
})

const ringOf = Effect.fnUntraced(function* ({ backend }: Contender, sources: ReadonlyArray<Tensor>) {
  yield* backend.registerHostSlots(sources)
  const shape = sources[0]!.shape
  const destinations = yield* backend.allocateDeviceSlots({ count: ringDepth, shape, dtype: "uint8" })
  return sources.map((source, slot): ReplaySubmission => ({ slot, source, destination: destinations[slot]! }))
})

/** Microseconds of the warm submissions of one burst, all but its first. */
const burst = Effect.fnUntraced(function* ({ backend }: Contender, ring: ReadonlyArray<ReplaySubmission>) {
  const times: Array<number> = []
  for (const submission of ring) {
    const begun = performance.now()
    yield* backend.submitH2d(submission)
    if (submission.slot > 0) times.push((performance.now() - begun) * 1000)
  }
  for (const { slot } of ring) yield* backend.waitReady(slot)
  return times
})

const callBurst = Effect.fnUntraced(function* ({ opened }: Contender, ring: ReadonlyArray<ReplaySubmission>) {
  const copies = yield* Effect.forEach(ring, ({ slot, destination, source }) =>
    opened.device.prepare(slot, destination, source)
  )
  return Effect.gen(function* () {
    const times: Array<number> = []
    for (const [slot, copy] of copies.entries()) {
      const begun = performance.now()
      copy.start()
      if (slot > 0) times.push((performance.now() - begun) * 1000)
    }
    for (const copy of copies) yield* copy.wait
    return times
  })
})

const submissionTimes = Effect.fnUntraced(function* (
  contenders: ReadonlyArray<Contender>,
  byteLength: number,
  bursts: number
) {
  const sources = yield* hostSlots(ringDepth, byteLength)
  const measured = yield* Effect.forEach(contenders, (contender) =>
    Effect.gen(function* () {
      const ring = yield* ringOf(contender, sources)
      const call = yield* callBurst(contender, ring)
      return { around: burst(contender, ring), call, times: { around: [] as Array<number>, call: [] as Array<number> } }
    })
  )
  for (let round = 0; round < 2 * bursts; round++) {
    for (const { around, call, times } of measured) {
      const [whole, part] = [yield* around, yield* call]
      if (round < bursts) continue
      times.around.push(...whole)
      times.call.push(...part)
    }
  }
  return measured.map(({ times }) => ({ around: median(times.around), call: median(times.call) }))
})

const measure = Effect.fnUntraced(function* (opened: OpenReplay, spec: ReplaySpec) {
  const byteLength = Math.max(4096, Math.floor((4 * mebibyte) / spec.shrink))
  const count = Math.max(2 * ringDepth, Math.floor(256 / Math.sqrt(spec.shrink)))
  const contenders = yield* Effect.forEach(ways, (way) => contend(opened, way))
  const raw = yield* rawSlots(opened, ringDepth, byteLength)
  const sources = yield* hostSlots(ringDepth, byteLength)
  const rings = yield* Effect.forEach(contenders, (contender) => ringOf(contender, sources))
  const ours = contenders.map((): Array<number> => [])
  const theirs = loops.map((): Array<{ readonly seconds: number; readonly submitSeconds: number }> => [])
  const lacking = new Map<number, NativeFailure>()
  // The first round warms up.
  for (let round = 0; round <= rounds; round++) {
    for (const [at, { backend }] of contenders.entries()) {
      const time = yield* Effect.provideService(timeBackend(rings[at]!, count), ReplayTransferBackend, backend)
      if (round > 0) ours[at]!.push(time)
    }
    for (const [at, loop] of loops.entries()) {
      if (lacking.has(at)) continue
      const timed = yield* Effect.result(timeRawCopies(opened.queue.gpu, { ...raw, ...loop }, count))
      if (timed._tag === "Failure") lacking.set(at, timed.failure)
      else if (round > 0) theirs[at]!.push(timed.success)
    }
  }
  const bursts = Math.max(10, Math.floor(40 / Math.sqrt(spec.shrink)))
  const short = yield* Effect.scoped(submissionTimes(contenders, byteLength, bursts))
  const long = yield* Effect.scoped(submissionTimes(contenders, 8 * byteLength, bursts))
  const speed = (times: ReadonlyArray<number>): number => (byteLength * count) / median(times) / 1e9
  const alone = speed(theirs[0]!.map(({ seconds }) => seconds))
  const rowsOfLoops = loops.flatMap((loop, at): ReadonlyArray<WayRow> => {
    if (lacking.has(at)) return []
    const gigabytesPerSecond = speed(theirs[at]!.map(({ seconds }) => seconds))
    const each = (median(theirs[at]!.map(({ submitSeconds }) => submitSeconds)) / count) * 1e6
    const submit = { "4 MiB": { around: each, call: each } }
    return [{ way: describeLoop(loop), gigabytesPerSecond, ofLoop: gigabytesPerSecond / alone, submit }]
  })
  const rowsOfOurs = ways.map((way, at): WayRow => {
    const gigabytesPerSecond = speed(ours[at]!)
    const submit = { "4 MiB": short[at]!, "32 MiB": long[at]! }
    return { way: describeWay(way), gigabytesPerSecond, ofLoop: gigabytesPerSecond / alone, submit }
  })
  const notes = [...lacking].map(([at, failure]) => `${describeLoop(loops[at]!)}: ${failure.detail}`)
  return { rows: [...rowsOfLoops, ...rowsOfOurs], notes }
})

const columns = ["4 MiB GB/s", "of loop", "submit 4 MiB us", "its call", "submit 32 MiB us", "its call"]

const lineOf = (first: string, cells: ReadonlyArray<string>): string =>
  first.padEnd(62) + cells.map((cell, at) => cell.padStart(columns[at]!.length + 2)).join("")

/** As a table for people. */
export const formatWays = (rows: ReadonlyArray<WayRow>): ReadonlyArray<string> => {
  const cell = (value: number | undefined): string => (value === undefined ? "" : value.toFixed(2))
  return [
    lineOf("way", columns),
    ...rows.map(({ way, gigabytesPerSecond, ofLoop, submit }) => {
      const [short, long] = [submit["4 MiB"], submit["32 MiB"]]
      const cells = [gigabytesPerSecond, undefined, short?.around, short?.call, long?.around, long?.call].map(cell)
      return lineOf(way, [cells[0]!, ofLoop.toFixed(3), ...cells.slice(2)])
    })
  ]
}

/** All ways, in turns. Takes some seconds. */
export const compareWays = (
  spec: ReplaySpec
): Effect.Effect<{ readonly rows: ReadonlyArray<WayRow>; readonly notes: ReadonlyArray<string> }, unknown> =>
  Effect.scoped(
    Effect.gen(function* () {
      const place = { family: spec.vendor, index: spec.options.device ?? 0 }
      return yield* measure(yield* open(place, 1, spec.options), spec)
    })
  ).pipe(Effect.provide(hostBackend.hostMemory!({})))
