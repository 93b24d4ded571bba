/**
 * What the replay cases of the conformance kit judge here: the backend on one device, simulated or real, with consumers'
 * streams that are the own streams of other replay queues. Loads no simulated driver by itself.
 */
import type { NativeFailure } from "@tensorferry/core/backend/NativeAddon"
import { HostMemory, type HostMemoryShape } from "@tensorferry/core/service/HostMemory"
import {
  type ReplayStream,
  ReplayTransferBackend,
  type ReplayTransferBackendShape
} from "@tensorferry/core/service/ReplayTransferBackend"
import { replayTransferLayer } from "@tensorferry/core/service/ReplayTransferLayer"
import { type TensorError, tensorError } from "@tensorferry/core/service/TensorEngine"
import { type Tensor, tensorByteLength } from "@tensorferry/core/tensor/Tensor"
import {
  type ReplayStreams,
  ReplaySubject,
  type ReplaySubjectShape
} from "@tensorferry/core/testing/conformance/ReplaySubject"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type * as EffectScope from "effect/Scope"
import { type Addon, loadAddon, packageName } from "../src/Addon.ts"
import { makeDeviceMemory } from "../src/DeviceMemory.ts"
import { tensorFailure } from "../src/failures.ts"
import { type Gpu, openGpu } from "../src/Gpu.ts"
import type { CudaOptions } from "../src/options.ts"
import { makeReplayDevice } from "../src/ReplayDevice.ts"
import { openReplayQueue, type ReplayQueue } from "../src/ReplayQueue.ts"

/** What a simulated or a real device offers beyond the backend itself. */
export interface SubjectHooks
  extends Pick<ReplaySubjectShape, "registered" | "failRegistration" | "failCopy" | "ticks"> {
  readonly change?: (addon: Addon) => Addon
  /** Gets the queues that are open. */
  readonly hold?: (queues: ReadonlySet<ReplayQueue>) => Effect.Effect<void, never, EffectScope.Scope>
}

const failed = <A>(work: Effect.Effect<A, NativeFailure>): Effect.Effect<void, TensorError> =>
  Effect.asVoid(Effect.mapError(work, (failure) => tensorFailure("consume", failure)))

const addressOf = ({ storage, byteOffset }: Tensor): bigint => storage.address + BigInt(byteOffset)

const noQueue = tensorError("InvalidRequest", {
  backend: packageName,
  op: "consume",
  detail: "There is no such stream.",
  remedy: "Build a backend, or open a stream, first."
})

export const makeReplaySubject = (
  options: CudaOptions,
  hooks: SubjectHooks,
  memory: HostMemoryShape
): ReplaySubjectShape => {
  const queues = new Set<ReplayQueue>()
  const streams = new Map<bigint, ReplayQueue>()
  const behind = new WeakMap<ReplayTransferBackendShape, ReplayQueue>()

  const openQueue = Effect.fnUntraced(function* (gpu: Gpu, slots: number) {
    const queue = yield* openReplayQueue(gpu, slots)
    return yield* Effect.acquireRelease(
      Effect.sync(() => {
        queues.add(queue)
        streams.set(queue.stream.handle, queue)
        return queue
      }),
      () =>
        Effect.sync(() => {
          queues.delete(queue)
          streams.delete(queue.stream.handle)
        })
    )
  })
  const opened = Effect.gen(function* () {
    const addon = yield* loadAddon
    return yield* openGpu(hooks.change?.(addon) ?? addon, packageName, { device: 0, ...options })
  })
  const streamsOf = (backend: ReplayTransferBackendShape): ReplayStreams => {
    const queueOf = (stream: ReplayStream | undefined): Effect.Effect<ReplayQueue, TensorError> => {
      const queue = stream === undefined ? behind.get(backend) : streams.get(stream.handle)
      return queue === undefined ? Effect.fail(noQueue) : Effect.succeed(queue)
    }
    return {
      open: Effect.map(Effect.flatMap(opened, (gpu) => openQueue(gpu, 1)).pipe(Effect.orDie), ({ stream }) => stream),
      copy: (stream, { dst, src }) =>
        Effect.flatMap(queueOf(stream), (queue) =>
          failed(queue.consume(addressOf(dst), addressOf(src), tensorByteLength(src)))
        ),
      finish: (stream) => Effect.flatMap(queueOf(stream), (queue) => failed(queue.consumed))
    }
  }
  return {
    build: ({ ringDepth, deadline }) =>
      Effect.gen(function* () {
        const gpu = yield* opened
        const queue = yield* Effect.orDie(openQueue(gpu, Math.max(1, ringDepth)))
        const device = makeReplayDevice(queue, makeDeviceMemory(gpu, { arenaBytes: options.arenaBytes }))
        const built = yield* Layer.build(
          replayTransferLayer(Effect.succeed(device), {
            ringDepth,
            backend: packageName,
            ...(deadline === undefined ? {} : { deadline })
          })
        )
        const backend = Context.get(built, ReplayTransferBackend)
        behind.set(backend, queue)
        return backend
      }),
    allocateHost: memory.allocate,
    streams: streamsOf,
    ...(hooks.hold === undefined ? {} : { hold: Effect.suspend(() => hooks.hold!(queues)) }),
    ...(hooks.registered === undefined ? {} : { registered: hooks.registered }),
    ...(hooks.failRegistration === undefined ? {} : { failRegistration: hooks.failRegistration }),
    ...(hooks.failCopy === undefined ? {} : { failCopy: hooks.failCopy }),
    ...(hooks.ticks === undefined ? {} : { ticks: hooks.ticks })
  }
}

export const replaySubjectLayer = (options: CudaOptions, hooks: SubjectHooks) =>
  Layer.effect(
    ReplaySubject,
    Effect.map(HostMemory, (memory) => makeReplaySubject(options, hooks, memory))
  )
