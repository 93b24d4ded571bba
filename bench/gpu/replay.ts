// SPDX-License-Identifier: Apache-2.0
/**
 * What replay transfer does on one device: bytes per second of registered slots against the vendor's copy function alone,
 * the time of a submission, and how much of the copies a learner that computes meanwhile does not notice.
 *
 * Everything compared is measured in turns in the same run. The copy function alone runs in one native call over pinned
 * slots, copy behind copy, without events or JavaScript in between.
 */
import type { CudaOptions } from "@tensorferry/backend-cuda"
import type { ReplayQueue } from "@tensorferry/backend-cuda/ReplayQueue"
import * as ReplayTesting from "@tensorferry/backend-cuda/ReplayTesting"
import { type OpenReplay, open } from "@tensorferry/backend-cuda/ReplayTransfer"
import { descriptor as hostBackend } from "@tensorferry/backend-torch-copy"
import { median } from "@tensorferry/core/base/Numbers"
import { replayTransferLayer } from "@tensorferry/core/replay/ReplayTransferLayer"
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import { type ReplaySubmission, ReplayTransferBackend } from "@tensorferry/core/service/ReplayTransferBackend"
import { type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import type { AllocatedMemory } from "@tensorferry/gpu/Addon"
import * as TensorEngineLayer from "@tensorferry/gpu/TensorEngine"
import { type CaseResult, runReplayCases } from "@tensorferry/testing"
import { subjectOf } from "@tensorferry/testing/conformance/ReplaySubject"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import type * as EffectScope from "effect/Scope"
import { timeRawCopies } from "./rawCopies.ts"

const mebibyte = 2 ** 20

/** Longer than a case looks at a copy that is held back. */
const heldNanoseconds = 400e6

/** Every case of the kit on one device; consumers' streams are other queues. A simulated device holds nothing back. */
export const replayCases = (
  { options, vendor }: ReplaySpec,
  isSimulated: boolean
): Effect.Effect<ReadonlyArray<CaseResult>, unknown> => {
  const chosen = { ...options, vendor, device: options.device ?? 0 }
  const hold = (queues: ReadonlySet<ReplayQueue>) =>
    Effect.orDie(Effect.forEach(queues, (queue) => queue.delayCopies(heldNanoseconds), { discard: true }))
  const subject = subjectOf(
    ReplayTesting.layer(
      { family: vendor, index: chosen.device },
      chosen,
      "backend-cuda",
      isSimulated ? undefined : hold
    ),
    { ticks: isSimulated ? 60 : 2000 }
  )
  const memory = hostBackend.hostMemory!({})
  return runReplayCases(Layer.merge(Layer.provide(subject, memory), TensorEngineLayer.layer(chosen)))
}

/** One figure and what it is judged by. */
export interface Figure {
  readonly case: string
  readonly value: number
  readonly unit: string
  readonly target?: number
  readonly lowerIsBetter: boolean
  readonly detail: string
}

export interface ReplaySpec {
  readonly options: CudaOptions
  readonly vendor: "cuda" | "rocm"
  /** Divides lengths and counts, for rehearsals. */
  readonly shrink: number
}

const seconds = (): number => performance.now() / 1000

export const hostSlots = Effect.fnUntraced(function* (count: number, byteLength: number) {
  const memory = yield* HostMemory
  const slots: Array<Tensor> = []
  for (let at = 0; at < count; at++) {
    const storage = yield* memory.allocate(byteLength)
    storage.bytes!.fill(at + 1)
    slots.push(Result.getOrThrow(tensorView(storage, "uint8", [byteLength])))
  }
  return slots
})

/** Host slots that are registered, and device slots, as submissions made once. */
const submissions = Effect.fnUntraced(function* (count: number, byteLength: number) {
  const backend = yield* ReplayTransferBackend
  const sources = yield* hostSlots(count, byteLength)
  yield* backend.registerHostSlots(sources)
  const destinations = yield* backend.allocateDeviceSlots({ count, shape: [byteLength], dtype: "uint8" })
  return sources.map((source, slot): ReplaySubmission => ({ slot, source, destination: destinations[slot]! }))
})

/** Seconds of so many copies through the backend, as many under way as there are slots. */
export const timeBackend = Effect.fnUntraced(function* (ring: ReadonlyArray<ReplaySubmission>, count: number) {
  const backend = yield* ReplayTransferBackend
  const begun = seconds()
  for (let at = 0; at < count; at++) {
    const submission = ring[at % ring.length]!
    if (at >= ring.length) yield* backend.waitReady(submission.slot)
    yield* backend.submitH2d(submission)
  }
  for (const { slot } of ring) yield* backend.waitReady(slot)
  return seconds() - begun
})

/** Pinned and device memory for the vendor's function alone. */
export const rawSlots = Effect.fnUntraced(function* ({ queue, device }: OpenReplay, slots: number, byteLength: number) {
  const { gpu } = queue
  const pinned = yield* Effect.acquireRelease(
    gpu.run<AllocatedMemory & { readonly buffer: ArrayBuffer }>((done) =>
      gpu.addon.startAllocateHost(gpu.native, slots * byteLength, done)
    ),
    ({ memory, buffer }) => Effect.sync(() => gpu.addon.freeHostMemory(memory, buffer))
  )
  new Uint8Array(pinned.buffer).fill(7)
  const destination = yield* device.allocate([slots * byteLength], "uint8")
  return {
    destination: destination.storage.address,
    source: pinned.address,
    byteLength,
    slots,
    streams: 1,
    copiesPerSignal: 1
  }
})

const rounds = 9

const bandwidth = Effect.fnUntraced(function* (
  opened: OpenReplay,
  length: number,
  ringDepth: number,
  spec: ReplaySpec
) {
  const byteLength = Math.max(4096, Math.floor((length * mebibyte) / spec.shrink))
  const count = Math.max(2 * ringDepth, Math.floor(Math.min(256, 2048 / length) / Math.sqrt(spec.shrink)))
  const ring = yield* submissions(ringDepth, byteLength)
  const raw = yield* rawSlots(opened, ringDepth, byteLength)
  const ours: Array<number> = []
  const theirs: Array<number> = []
  const marked: Array<number> = []
  // The first round warms up.
  for (let round = 0; round <= rounds; round++) {
    const own = yield* timeBackend(ring, count)
    const alone = yield* timeRawCopies(opened.queue.gpu, { ...raw, signal: "nothing" }, count)
    const withEvents = yield* timeRawCopies(opened.queue.gpu, { ...raw, signal: "timedEvent" }, count)
    if (round === 0) continue
    ours.push(own)
    theirs.push(alone.seconds)
    marked.push(withEvents.seconds)
  }
  const speed = (times: ReadonlyArray<number>): number => (byteLength * count) / median(times) / 1e9
  return {
    case: `host to device, ${length} MiB, registered slots, against the copy function alone`,
    value: speed(ours) / speed(theirs),
    unit: "x",
    target: 0.98,
    lowerIsBetter: false,
    detail: `${speed(ours).toFixed(2)} GB/s, alone ${speed(theirs).toFixed(2)} GB/s, with an event behind each copy ${speed(marked).toFixed(2)} GB/s, ring of ${ringDepth}, ${count} copies, median of ${rounds}`
  }
})

/** Microseconds of every submission: around the Effect, and as it told itself. */
interface SubmitTimes {
  /** The first of a burst comes after a wait, the others find everything warm. */
  readonly first: Array<number>
  readonly warm: Array<number>
  readonly told: Array<number>
}

const submitBursts = Effect.fnUntraced(function* (ring: ReadonlyArray<ReplaySubmission>, bursts: number) {
  const backend = yield* ReplayTransferBackend
  const times: SubmitTimes = { first: [], warm: [], told: [] }
  for (let burst = 0; burst < bursts; burst++) {
    for (const submission of ring) {
      const begun = performance.now()
      const told = yield* backend.submitH2d(submission)
      const ended = performance.now()
      const list = submission.slot === 0 ? times.first : times.warm
      list.push((ended - begun) * 1000)
      times.told.push(told * 1e6)
    }
    for (const { slot } of ring) yield* backend.waitReady(slot)
  }
  return times
})

const submitTimes = Effect.fnUntraced(function* (length: number, ringDepth: number, spec: ReplaySpec) {
  const byteLength = Math.max(4096, Math.floor((length * mebibyte) / spec.shrink))
  const bursts = Math.max(10, Math.floor(12_800 / ringDepth / length / spec.shrink))
  // Short copies until JavaScript's compilers have done what they do for a loop that runs for long: with a few thousand
  // submissions only, each costs a microsecond more.
  const short = yield* submissions(ringDepth, 4096)
  for (let chunk = 0; chunk < 100; chunk++) yield* submitBursts(short, Math.floor(3200 / ringDepth / spec.shrink))
  const ring = yield* submissions(ringDepth, byteLength)
  yield* submitBursts(ring, bursts)
  const { first, warm, told } = yield* submitBursts(ring, bursts)
  const sorted = warm.toSorted((a, b) => a - b)
  return {
    case: `submission of ${length} MiB, warm, around the Effect, ${ringDepth} in a row`,
    value: median(warm),
    unit: "us",
    target: 5,
    lowerIsBetter: true,
    detail: `${warm.length} times, 90 of 100 below ${sorted[Math.floor(sorted.length * 0.9)]!.toFixed(2)} us; first after a wait ${median(first).toFixed(2)} us; told by submitH2d ${median(told).toFixed(2)} us`
  }
})

const lengthOf = (length: number, spec: ReplaySpec): number =>
  Math.max(4096, Math.floor((length * mebibyte) / spec.shrink))

/** Seconds of a copy alone, by the device's clock: of a backend that keeps time. */
const timeCopy = Effect.fnUntraced(function* (length: number, spec: ReplaySpec) {
  const backend = yield* ReplayTransferBackend
  const ring = yield* submissions(2, lengthOf(length, spec))
  const copySeconds: Array<number> = []
  for (let at = 0; at < 20; at++) {
    const slot = at % 2
    yield* backend.submitH2d(ring[slot]!)
    yield* backend.waitReady(slot)
    copySeconds.push((yield* backend.copySeconds(slot)) ?? 0)
  }
  return median(copySeconds)
})

/** The learner's wait for what it computes: as frameworks wait for their stream, without going to sleep. */
const consumed = ({ queue }: OpenReplay) =>
  Effect.suspend(() => {
    let next = setImmediate(function look() {
      next = setImmediate(look)
    })
    return Effect.ensuring(
      queue.consumed,
      Effect.sync(() => clearImmediate(next))
    )
  })

/** Ticks of a learner: what it computes lasts longer than the copy for the next tick, which takes `copy` seconds. */
const overlap = Effect.fnUntraced(function* (opened: OpenReplay, length: number, spec: ReplaySpec, copy: number) {
  const { queue } = opened
  const backend = yield* ReplayTransferBackend
  const ring = yield* submissions(2, lengthOf(length, spec))
  const computing = Math.ceil(Math.max(copy * 1.5, 50e-6) * 1e9)
  const withCopies: Array<number> = []
  const without: Array<number> = []
  const chunks = 6
  const chunkTicks = 40
  const ticks = chunks * chunkTicks
  // In turns, so that a change of clocks meets both alike.
  for (let chunk = 0; chunk < chunks; chunk++) {
    yield* backend.submitH2d(ring[0]!)
    yield* backend.waitReady(0)
    for (let tick = 0; tick < chunkTicks; tick++) {
      const begun = seconds()
      // The learner's kernels first: the next copy is queued while they run.
      yield* backend.waitCurrentStreamForReady(tick % 2)
      yield* queue.spin(computing)
      yield* backend.submitH2d(ring[(tick + 1) % 2]!)
      yield* consumed(opened)
      withCopies.push(seconds() - begun)
    }
    yield* backend.waitReady(0)
    yield* backend.waitReady(1)
    for (let tick = 0; tick < chunkTicks; tick++) {
      const begun = seconds()
      yield* queue.spin(computing)
      yield* consumed(opened)
      without.push(seconds() - begun)
    }
  }
  const stall = Math.max(0, median(withCopies) - median(without))
  return {
    case: `overlap of ${length} MiB copies with a learner's tick, 1 - stall / copy`,
    value: 100 * (1 - stall / copy),
    unit: "%",
    target: 95,
    lowerIsBetter: false,
    detail: `${ticks} ticks: ${(median(withCopies) * 1e3).toFixed(3)} ms with, ${(median(without) * 1e3).toFixed(3)} ms without copies; stall ${(stall * 1e6).toFixed(1)} us, copy ${(copy * 1e3).toFixed(3)} ms`
  }
})

/** All figures, each told as soon as it is known. */
export const measureReplay = (spec: ReplaySpec, tell: (figure: Figure) => void): Effect.Effect<void, unknown> => {
  const onRing = <A, E>(
    ringDepth: number,
    body: (opened: OpenReplay) => Effect.Effect<A, E, ReplayTransferBackend | HostMemory | EffectScope.Scope>,
    timing = false
  ) =>
    Effect.scoped(
      Effect.gen(function* () {
        const opened = yield* open({ family: spec.vendor, index: spec.options.device ?? 0 }, ringDepth, {
          ...spec.options,
          timing
        })
        return yield* Effect.scoped(body(opened)).pipe(
          Effect.provide(replayTransferLayer(Effect.succeed(opened.device), { ringDepth }))
        )
      })
    ).pipe(Effect.provide(hostBackend.hostMemory!({})))
  return Effect.gen(function* () {
    for (const [length, ringDepth] of [
      [4, 8],
      [32, 8],
      [256, 4]
    ] as const) {
      tell(yield* onRing(ringDepth, (opened) => bandwidth(opened, length, ringDepth, spec)))
    }
    for (const length of [4, 32]) {
      for (const ringDepth of [8, 32]) tell(yield* onRing(ringDepth, () => submitTimes(length, ringDepth, spec)))
    }
    for (const length of [32, 256]) {
      const copy = yield* onRing(2, () => timeCopy(length, spec), true)
      tell(yield* onRing(2, (opened) => overlap(opened, length, spec, copy)))
    }
  })
}
