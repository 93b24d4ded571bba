// SPDX-License-Identifier: Apache-2.0
/**
 * The replay backend for the conformance kit: copies are held back by a kernel that keeps their stream busy, consumers'
 * streams are those of other replay queues, and registrations and copies fail because the addon says so.
 *
 * A hold lasts for a fixed time, which is longer than a case looks at what is held.
 */
import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import { replayTransferLayer } from "@tensorferry/core/replay/ReplayTransferLayer"
import {
  type ReplayHooks,
  type ReplayStreams,
  ReplayTesting,
  type ReplayTestingShape
} from "@tensorferry/core/service/ReplayTesting"
import {
  type ReplayStream,
  ReplayTransferBackend,
  type ReplayTransferBackendShape
} from "@tensorferry/core/service/ReplayTransferBackend"
import { type TensorError, tensorError } from "@tensorferry/core/service/TensorEngine"
import type { Device } from "@tensorferry/core/tensor/Device"
import { type Tensor, tensorByteLength } from "@tensorferry/core/tensor/Tensor"
import { type Addon, loadAddon, packageName } from "@tensorferry/gpu/Addon"
import { makeDeviceMemory } from "@tensorferry/gpu/DeviceMemory"
import { tensorFailure, unavailableBecause } from "@tensorferry/gpu/failures"
import { type Gpu, openGpu } from "@tensorferry/gpu/Gpu"
import type { NativeFailure } from "@tensorferry/native/NativeAddon"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type * as EffectScope from "effect/Scope"
import type { CudaOptions } from "./options.ts"
import { makeReplayDevice } from "./ReplayDevice.ts"
import { openReplayQueue, type ReplayQueue } from "./ReplayQueue.ts"
import { optionsFor } from "./ReplayTransfer.ts"

/** Longer than a case looks at a copy that is held back. */
const heldNanoseconds = 1e9
/** Too long for a device to be done with it by chance. */
const triedNanoseconds = 1e8
const tries = 4

/** How work on the queues is held back: as long as the scope is open, or for a fixed time. */
export type HoldQueues = (queues: ReadonlySet<ReplayQueue>) => Effect.Effect<void, never, EffectScope.Scope>

const spin: HoldQueues = (queues) =>
  Effect.orDie(Effect.forEach(queues, (queue) => queue.delayCopies(heldNanoseconds), { discard: true }))

/** A simulated device is done at once with a kernel that only takes time. */
const canSpin = (queue: ReplayQueue): Effect.Effect<boolean, NativeFailure> =>
  Effect.gen(function* () {
    // A device that spends no time may still answer late on a busy host, but not every time.
    for (let time = 0; time < tries; time++) {
      const begun = performance.now()
      yield* queue.delayCopies(triedNanoseconds)
      yield* queue.idle
      // The clocks of host and device differ a little.
      if ((performance.now() - begun) * 1e6 < 0.9 * triedNanoseconds) return false
    }
    return true
  })

const planted = (op: string): NativeFailure => ({
  code: "SystemFailure",
  op,
  detail: "The test has it fail.",
  nativeCode: 719,
  item: -1
})

/** An addon with faults, and what it knows. */
const makeFaults = (addon: Addon) => {
  let registered = 0
  let nextFailing = Number.POSITIVE_INFINITY
  let isCopyFailing = false
  const failed = new WeakSet<object>()
  const begin = (copy: object): void => {
    failed.delete(copy)
    if (isCopyFailing) failed.add(copy)
    isCopyFailing = false
  }
  const changed: Addon = {
    ...addon,
    startRegisterHostSlot: (device, address, byteLength, done) => {
      nextFailing -= 1
      if (nextFailing < 0) {
        nextFailing = Number.POSITIVE_INFINITY
        return planted("register host memory")
      }
      return addon.startRegisterHostSlot(device, address, byteLength, (answer) => {
        if (answer.code === "Ok") registered += 1
        done(answer)
      })
    },
    startUnpinHost: (pin, done) => {
      registered -= 1
      return addon.startUnpinHost(pin, done)
    },
    revokePin: (replay, pin) => {
      registered -= 1
      return addon.revokePin(replay, pin)
    },
    prepareReplayCopy: (...request) => {
      const made = addon.prepareReplayCopy(...request)
      if (made.code !== "Ok") return made
      const { copy, start, query, seconds } = made.value
      const value = {
        copy,
        seconds,
        start: () => {
          begin(copy)
          return start()
        },
        query: () => {
          const answer = query()
          return answer === 0 && failed.has(copy) ? planted("").nativeCode : answer
        }
      }
      return { ...made, value }
    },
    startReplayCopy: (copy, done) => {
      begin(copy)
      return addon.startReplayCopy(copy, (answer) => done(failed.has(copy) ? planted("copy") : answer))
    },
    startReplayWait: (copy, done) =>
      addon.startReplayWait(copy, (answer) => done(failed.has(copy) ? planted("wait") : answer))
  }
  const hooks = {
    registered: () => registered,
    failRegistration: (nth: number) =>
      Effect.sync(() => {
        nextFailing = nth
      }),
    failCopy: Effect.sync(() => {
      isCopyFailing = true
    })
  } satisfies ReplayHooks
  return { changed, hooks }
}

const addressOf = ({ storage, byteOffset }: Tensor): bigint => storage.address + BigInt(byteOffset)

const noQueue = tensorError("InvalidRequest", {
  backend: packageName,
  op: "consume",
  detail: "There is no such stream.",
  remedy: "Build a backend, or open a stream, first."
})

const consumed = <A>(work: Effect.Effect<A, NativeFailure>): Effect.Effect<void, TensorError> =>
  Effect.asVoid(Effect.mapError(work, (failure) => tensorFailure("consume", failure)))

/** `hold` is for simulated devices, which their own tests can hold back. */
export const layer = (
  device: Device,
  options: CudaOptions = {},
  backend: string = packageName,
  hold?: HoldQueues
): Layer.Layer<ReplayTesting, BackendError> =>
  Layer.effect(
    ReplayTesting,
    Effect.gen(function* () {
      const chosen = yield* optionsFor(device, options, backend)
      const { changed, hooks } = makeFaults(yield* loadAddon)
      const queues = new Set<ReplayQueue>()
      const streams = new Map<bigint, ReplayQueue>()
      const behind = new WeakMap<ReplayTransferBackendShape, ReplayQueue>()

      const openQueue = (gpu: Gpu, slots: number) =>
        Effect.tap(
          Effect.mapError(openReplayQueue(gpu, slots), (failure) => unavailableBecause(backend, failure)),
          (queue) =>
            Effect.acquireRelease(
              Effect.sync(() => {
                queues.add(queue)
                streams.set(queue.stream.handle, queue)
              }),
              () =>
                Effect.sync(() => {
                  queues.delete(queue)
                  streams.delete(queue.stream.handle)
                })
            )
        )
      const opened = openGpu(changed, backend, chosen)

      const streamsOf = (built: ReplayTransferBackendShape): ReplayStreams => {
        const queueOf = (stream: ReplayStream | undefined): Effect.Effect<ReplayQueue, TensorError> => {
          const queue = stream === undefined ? behind.get(built) : streams.get(stream.handle)
          return queue === undefined ? Effect.fail(noQueue) : Effect.succeed(queue)
        }
        return {
          open: Effect.map(Effect.orDie(Effect.flatMap(opened, (gpu) => openQueue(gpu, 1))), ({ stream }) => stream),
          copy: (stream, { dst, src }) =>
            Effect.flatMap(queueOf(stream), (queue) =>
              consumed(queue.consume(addressOf(dst), addressOf(src), tensorByteLength(src)))
            ),
          finish: (stream) => Effect.flatMap(queueOf(stream), (queue) => consumed(queue.consumed))
        }
      }

      const isHeldBySpin =
        hold === undefined &&
        (yield* Effect.scoped(
          Effect.flatMap(opened, (gpu) =>
            Effect.mapError(Effect.flatMap(openReplayQueue(gpu, 1), canSpin), (failure) =>
              unavailableBecause(backend, failure)
            )
          )
        ))
      const holdQueues = hold ?? (isHeldBySpin ? spin : undefined)
      return {
        ...hooks,
        build: ({ ringDepth, deadline }) =>
          Effect.gen(function* () {
            const gpu = yield* opened
            const queue = yield* openQueue(gpu, Math.max(1, ringDepth))
            const slots = makeReplayDevice(queue, makeDeviceMemory(gpu, { arenaBytes: options.arenaBytes }))
            const settings = { ringDepth, backend, ...(deadline === undefined ? {} : { deadline }) }
            const built = yield* Layer.build(replayTransferLayer(Effect.succeed(slots), settings))
            const shape = Context.get(built, ReplayTransferBackend)
            behind.set(shape, queue)
            return shape
          }),
        streams: streamsOf,
        ...(holdQueues === undefined ? {} : { hold: Effect.suspend(() => holdQueues(queues)) }),
        lacks: {
          hold: "the device is simulated and spends no time in kernels that only take time, so copies cannot be held back",
          deferred: "copies are submitted to the device, so submissions are not deferred"
        }
      } satisfies ReplayTestingShape
    })
  )
