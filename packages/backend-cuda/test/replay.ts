// SPDX-License-Identifier: Apache-2.0
/**
 * Replay backends over simulated devices for tests, and random ticks of a producer and a consumer over one: everything that
 * a consumer reads must be what was submitted last.
 */
import { assert } from "@effect/vitest"
import { descriptor as hostBackend } from "@tensorferry/backend-torch-copy"
import { replayTransferLayer } from "@tensorferry/core/replay/ReplayTransferLayer"
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import { ReplayTransferBackend, type ReplayTransferBackendShape } from "@tensorferry/core/service/ReplayTransferBackend"
import { type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import { type Addon, loadAddon } from "@tensorferry/gpu/Addon"
import { makeDeviceMemory } from "@tensorferry/gpu/DeviceMemory"
import { openGpu } from "@tensorferry/gpu/Gpu"
import { simulator } from "@tensorferry/simulators/gpu"
import { makeRandom } from "@tensorferry/testing/transfers/randomTransfers"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import type { CudaOptions } from "../src/options.ts"
import { makeReplayDevice } from "../src/ReplayDevice.ts"
import { openReplayQueue, type ReplayQueue, type ReplayWay, replayWay } from "../src/ReplayQueue.ts"
import { testOptions } from "./cluster.ts"

export interface OpenedReplay {
  readonly backend: ReplayTransferBackendShape
  readonly queue: ReplayQueue
}

/** Ways to queue copies, all of which must be right. */
export const waysOfReplay: ReadonlyArray<ReplayWay> = [
  replayWay,
  { streams: 2, copiesPerEvent: 1, isTimed: true },
  { streams: 1, copiesPerEvent: 3, isTimed: true },
  { streams: 3, copiesPerEvent: 2, isTimed: false }
]

/** A wait that hangs is found after this. */
const deadline = Duration.seconds(10)

/** A backend over an addon that `change` may have spoilt. */
export const openReplay = Effect.fnUntraced(function* (
  ringDepth: number,
  change: (addon: Addon) => Addon = (addon) => addon,
  options: CudaOptions = {},
  way?: ReplayWay
) {
  const all = { ...testOptions, device: 0, ...options }
  const gpu = yield* openGpu(change(yield* loadAddon), "test", all)
  const queue = yield* openReplayQueue(gpu, ringDepth, way)
  const device = makeReplayDevice(queue, makeDeviceMemory(gpu, { arenaBytes: all.arenaBytes }))
  const built = yield* Layer.build(replayTransferLayer(Effect.succeed(device), { ringDepth, deadline }))
  return { backend: Context.get(built, ReplayTransferBackend), queue }
})

/** Memory that other processes could map, too. */
export const hostSlot = Effect.fnUntraced(function* (byteLength: number) {
  const memory = yield* HostMemory
  return Result.getOrThrow(tensorView(yield* memory.allocate(byteLength), "uint8", [byteLength]))
})

export const hostMemoryLayer = hostBackend.hostMemory!({})

export const withHostMemory = Effect.provide(hostMemoryLayer)

export const bytesOf = ({ storage, byteOffset, shape }: Tensor): Uint8Array =>
  storage.bytes!.subarray(byteOffset, byteOffset + shape[0]!)

/** What lies in a device slot at this very moment, whoever is still writing. */
export const peek = ({ storage, byteOffset, shape }: Tensor): Uint8Array =>
  simulator.read(storage.address + BigInt(byteOffset), shape[0]!)

export const poison = (tensor: Tensor): void =>
  simulator.write(tensor.storage.address + BigInt(tensor.byteOffset), new Uint8Array(tensor.shape[0]!).fill(0xd7))

const fillSlot = (tensor: Tensor, value: number): void => {
  const bytes = bytesOf(tensor)
  for (let at = 0; at < bytes.length; at++) bytes[at] = (at * 7 + value * 13) & 0xff
}

const differs = (a: Uint8Array, b: Uint8Array): boolean => Buffer.compare(a, b) !== 0

const streamOn = (device: number) =>
  Effect.acquireRelease(
    Effect.sync(() => simulator.createStream(device)),
    (stream) => Effect.sync(() => void simulator.destroyStream(stream))
  )

/** What consumers read wrongly in so many ticks; empty where nothing is wrong. */
export const runTicks = Effect.fnUntraced(function* (
  seed: number,
  ticks: number,
  change?: (addon: Addon) => Addon,
  options: CudaOptions = {}
) {
  const random = makeRandom(seed)
  const ringDepth = 1 + random.below(3)
  const byteLength = 1 + random.below(3 * 4096)
  const { backend, queue } = yield* openReplay(ringDepth, change, options, waysOfReplay[seed % waysOfReplay.length])
  const foreign = yield* streamOn(0)
  const wrong: Array<string> = []
  const slots = Array.from({ length: ringDepth }, (_, slot) => slot)
  const sources: Array<Tensor> = []
  for (const _ of slots) sources.push(yield* hostSlot(byteLength))
  if (random.below(4) > 0) yield* backend.registerHostSlots(sources)
  let held = yield* Scope.make()
  let destinations = yield* Scope.provide(
    backend.allocateDeviceSlots({ count: ringDepth, shape: [byteLength], dtype: "uint8" }),
    held
  )
  for (let tick = 0; tick < ticks; tick++) {
    const slot = tick % ringDepth
    const [source, destination] = [sources[slot]!, destinations[slot]!]
    fillSlot(source, tick + seed)
    const expected = Buffer.from(bytesOf(source))
    poison(destination)
    yield* backend.clearReady(slot)
    yield* backend.submitH2d({ slot, source, destination })
    const say = (what: string) => wrong.push(`seed ${seed}, tick ${tick}, slot ${slot}: ${what}`)
    switch (random.below(5)) {
      case 0:
        yield* backend.waitReady(slot)
        if (differs(peek(destination), expected)) say("not there after the wait")
        break
      case 1:
        for (let asked = 0; asked < 10_000 && !(yield* backend.isReady(slot)); asked++) yield* Effect.yieldNow
        if ((yield* backend.isReady(slot)) && differs(peek(destination), expected)) say("called ready too early")
        break
      case 2: {
        yield* backend.waitCurrentStreamForReady(slot)
        const read = simulator.readOnStream(
          queue.stream.handle,
          destination.storage.address + BigInt(destination.byteOffset),
          byteLength
        )
        if (differs(read, expected)) say("the own stream read too early")
        break
      }
      case 3: {
        yield* backend.waitCurrentStreamForReady(slot, { device: queue.gpu.device, handle: foreign })
        const read = simulator.readOnStream(
          foreign,
          destination.storage.address + BigInt(destination.byteOffset),
          byteLength
        )
        if (differs(read, expected)) say("a foreign stream read too early")
        break
      }
      case 4: {
        // The memory goes while the copy runs; what is allocated next must not be written by it.
        for (const { storage } of destinations) storage.free()
        const former = held
        held = yield* Scope.make()
        const next = yield* Scope.provide(
          backend.allocateDeviceSlots({ count: ringDepth, shape: [byteLength], dtype: "uint8" }),
          held
        )
        for (const tensor of next) poison(tensor)
        yield* backend.waitReady(slot)
        yield* Scope.close(former, Exit.void)
        for (const tensor of next) {
          if (peek(tensor).some((byte) => byte !== 0xd7)) say("a copy wrote into memory of somebody else")
        }
        destinations = next
        break
      }
    }
    yield* backend.waitReady(slot)
  }
  yield* Scope.close(held, Exit.void)
  return wrong
}, Effect.scoped)

/**
 * What consumers read wrongly where many copies are under way and slots are submitted into and waited for in any order;
 * empty where nothing is wrong.
 */
export const runDeepTicks = Effect.fnUntraced(function* (
  seed: number,
  ticks: number,
  change?: (addon: Addon) => Addon
) {
  const random = makeRandom(seed)
  const ringDepth = 8
  const byteLength = 1 + random.below(2 * 4096)
  const way = waysOfReplay[seed % waysOfReplay.length]!
  const { backend, queue } = yield* openReplay(ringDepth, change, {}, way)
  const wrong: Array<string> = []
  const sources = yield* Effect.forEach(Array.from({ length: ringDepth }), () => hostSlot(byteLength))
  if (random.below(4) > 0) yield* backend.registerHostSlots(sources)
  const destinations = yield* backend.allocateDeviceSlots({ count: ringDepth, shape: [byteLength], dtype: "uint8" })
  /** What each slot must hold once it is ready. */
  const expected = new Map<number, Buffer>()
  for (let tick = 0; tick < ticks; tick++) {
    const slot = random.below(ringDepth)
    const [source, destination] = [sources[slot]!, destinations[slot]!]
    const bytes = expected.get(slot)
    if (bytes === undefined) {
      fillSlot(source, tick + seed)
      expected.set(slot, Buffer.from(bytesOf(source)))
      poison(destination)
      yield* backend.clearReady(slot)
      yield* backend.submitH2d({ slot, source, destination })
      continue
    }
    const isFull = expected.size === ringDepth
    const choice = random.below(isFull ? 3 : 4)
    const say = (what: string) => wrong.push(`seed ${seed}, tick ${tick}, slot ${slot}: ${what}`)
    if (choice === 0) {
      yield* backend.waitCurrentStreamForReady(slot)
      const address = destination.storage.address + BigInt(destination.byteOffset)
      if (differs(simulator.readOnStream(queue.stream.handle, address, byteLength), bytes))
        say("a stream read too early")
    }
    if (choice < 3) {
      yield* backend.waitReady(slot)
      if (differs(peek(destination), bytes)) say("not there after the wait")
      // Copies that shared an event do not all know what they began behind.
      const seconds = yield* backend.copySeconds(slot)
      const isTold = seconds !== undefined && seconds >= 0
      if (isTold ? !way.isTimed : way.isTimed && way.copiesPerEvent === 1) say(`its copy took ${seconds} s`)
      expected.delete(slot)
    } else if ((yield* backend.isReady(slot)) && differs(peek(destination), bytes)) say("called ready too early")
  }
  return wrong
}, Effect.scoped)

export const run = <A, E>(effect: Effect.Effect<A, E, HostMemory | Scope.Scope>): Promise<A> =>
  Effect.runPromise(withHostMemory(Effect.scoped(effect)))

export const assertRegistered = (count: number): void =>
  assert.strictEqual(simulator.report().live.hostRegistrations, count)
