// SPDX-License-Identifier: Apache-2.0
/**
 * A replay device whose copies are made by a thread of its own.
 *
 * Memory of both sides is made of shared buffers, which the thread gets with each copy and keeps until it has made it: what
 * is freed meanwhile stays alive, and is nobody else's. Copies are done in the order of their submission.
 */
import { Worker } from "node:worker_threads"
import { byteLengthOf, type DType } from "@tensorferry/core/base/DType"
import { elementCount, type Shape } from "@tensorferry/core/base/Region"
import type { ReplayCopy, ReplayDevice } from "@tensorferry/core/service/ReplayDevice"
import { type ReplayTransferError, replayTransferError } from "@tensorferry/core/service/ReplayTransferBackend"
import { cpu, type Device } from "@tensorferry/core/tensor/Device"
import { makeStorage, type Storage } from "@tensorferry/core/tensor/Storage"
import { type Tensor, tensorByteLength, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"

export interface CopyOrder {
  readonly id: number
  readonly from: SharedArrayBuffer
  readonly fromOffset: number
  readonly to: SharedArrayBuffer
  readonly toOffset: number
  readonly byteLength: number
}

export interface CopyOutcome {
  readonly id: number
}

export interface ThreadDevice extends ReplayDevice {
  /** While the scope is open, no copy ends. */
  readonly hold: Effect.Effect<void, never, Scope.Scope>
}

/** Addresses only tell storages apart here: nothing dereferences them. */
let nextAddress = 1n << 44n

/** Memory that the thread can reach. Host slots for this device are made by it too. */
export const allocateShared = (byteLength: number, device: Device = cpu): Effect.Effect<Storage, never, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.sync(() => {
      const address = nextAddress
      nextAddress += BigInt(byteLength) + 4096n
      const bytes = new Uint8Array(new SharedArrayBuffer(byteLength))
      return makeStorage({ device, address, byteLength, bytes, release: () => undefined })
    }),
    (storage) => Effect.sync(storage.free)
  )

const startThread = Effect.acquireRelease(
  Effect.sync(() => {
    const holds = new Int32Array(new SharedArrayBuffer(4))
    const file = new URL(`./copyThread${import.meta.url.endsWith(".ts") ? ".ts" : ".js"}`, import.meta.url)
    const worker = new Worker(file, { workerData: { holds } })
    // The process may end while the thread waits for work.
    worker.unref()
    return { worker, holds }
  }),
  ({ worker }) => Effect.promise(() => worker.terminate())
)

/** One thread, until the scope closes. */
export const makeThreadDevice = (device: Device): Effect.Effect<ThreadDevice, never, Scope.Scope> =>
  Effect.gen(function* () {
    const { worker, holds } = yield* startThread
    const unfinished = new Map<number, () => void>()
    let lastId = 0
    worker.on("message", ({ id }: CopyOutcome) => {
      const finished = unfinished.get(id)
      unfinished.delete(id)
      if (unfinished.size === 0) worker.unref()
      finished?.()
    })

    const bufferOf = (slot: number, { storage }: Tensor): Effect.Effect<SharedArrayBuffer, ReplayTransferError> =>
      storage.bytes?.buffer instanceof SharedArrayBuffer
        ? Effect.succeed(storage.bytes.buffer)
        : Effect.fail(
            replayTransferError("DeviceMismatch", {
              slot,
              op: "submitH2d",
              detail: "The thread cannot reach this memory.",
              remedy: "Allocate host slots with allocateShared."
            })
          )

    const copyOf = (order: Omit<CopyOrder, "id">): ReplayCopy => {
      let done = Deferred.makeUnsafe<void>()
      Deferred.doneUnsafe(done, Effect.void)
      const wait = Effect.suspend(() => Deferred.await(done))
      return {
        start: () => {
          const id = ++lastId
          const ended = Deferred.makeUnsafe<void>()
          done = ended
          unfinished.set(id, () => Deferred.doneUnsafe(ended, Effect.void))
          worker.ref()
          worker.postMessage({ ...order, id } satisfies CopyOrder)
          return undefined
        },
        isDone: () => Deferred.isDoneUnsafe(done),
        wait,
        // The device has no streams: its consumer waits on the host.
        streamWait: () => wait,
        seconds: () => undefined
      }
    }

    return {
      attributes: () => ({
        device,
        deviceFamily: device.family,
        // The kinds are fixed; this is the one for asynchronous copies from memory that is not pinned.
        h2dSubmitter: "xpu_copy_stream",
        hostMemoryKind: "pageable_shared",
        hostPinned: false,
        directPinnedShared: false,
        supportsAsyncSubmit: true,
        supportsTimingEvents: false
      }),
      register: () => Effect.void,
      allocate: (shape: Shape, dtype: DType) =>
        Effect.flatMap(allocateShared(byteLengthOf(dtype, elementCount(shape)), device), (storage) =>
          // A view of all of fresh memory always fits.
          Effect.orDie(Effect.fromResult(tensorView(storage, dtype, shape)))
        ),
      prepare: (slot, destination, source) =>
        Effect.gen(function* () {
          const from = yield* bufferOf(slot, source)
          const to = yield* bufferOf(slot, destination)
          const byteLength = tensorByteLength(source)
          return copyOf({ from, fromOffset: source.byteOffset, to, toOffset: destination.byteOffset, byteLength })
        }),
      hold: Effect.acquireRelease(
        Effect.sync(() => {
          Atomics.add(holds, 0, 1)
        }),
        () =>
          Effect.sync(() => {
            Atomics.sub(holds, 0, 1)
            Atomics.notify(holds, 0)
          })
      )
    }
  })
