// SPDX-License-Identifier: Apache-2.0
/**
 * A device whose copies end when the test says. It reads the source and writes the destination only then, so that memory
 * which is given to others too early shows in the bytes; at the start it poisons the destination.
 */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { ReplayDevice } from "../../src/service/ReplayDevice.ts"
import { type ReplayTransferError, replayTransferError } from "../../src/service/ReplayTransferBackend.ts"
import { cpu } from "../../src/tensor/Device.ts"
import { type Tensor, tensorByteLength, tensorBytes, tensorView } from "../../src/tensor/Tensor.ts"
import { storageOf } from "./replaySupport.ts"

interface Running {
  readonly destination: Tensor
  readonly source: Tensor
  readonly done: Deferred.Deferred<void, ReplayTransferError>
  failure: ReplayTransferError | undefined
  isDone: boolean
}

export const makeHeldDevice = () => {
  const running = new Map<number, Running>()
  const registered = new Set<Tensor>()
  let allocated = 0
  const end = (slot: number, failure?: ReplayTransferError): void => {
    const copy = running.get(slot)!
    running.delete(slot)
    if (failure === undefined) tensorBytes(copy.destination)!.set(tensorBytes(copy.source)!)
    copy.failure = failure
    copy.isDone = true
    Deferred.doneUnsafe(copy.done, failure === undefined ? Effect.void : Effect.fail(failure))
  }
  const device: ReplayDevice = {
    attributes: () => ({
      device: cpu,
      deviceFamily: "cpu",
      h2dSubmitter: "native_copy_stream",
      hostMemoryKind: "registered_pinned_shared",
      hostPinned: registered.size > 0,
      directPinnedShared: registered.size > 0,
      supportsAsyncSubmit: true,
      supportsTimingEvents: true
    }),
    register: (slot) =>
      Effect.acquireRelease(
        Effect.sync(() => void registered.add(slot)),
        () => Effect.sync(() => void registered.delete(slot))
      ),
    allocate: (shape, dtype) =>
      Effect.acquireRelease(
        Effect.sync(() => {
          allocated += 1
          const bytes = tensorByteLength({ dtype, shape } as Tensor)
          return Result.getOrThrow(tensorView(storageOf(bytes), dtype, shape))
        }),
        ({ storage }) =>
          Effect.sync(() => {
            allocated -= 1
            storage.free()
          })
      ),
    prepare: (slot, destination, source) =>
      Effect.sync(() => {
        let last: Running | undefined
        return {
          start: () => {
            tensorBytes(destination)!.fill(0xee)
            last = { destination, source, done: Deferred.makeUnsafe(), failure: undefined, isDone: false }
            running.set(slot, last)
            return undefined
          },
          isDone: () => last === undefined || (last.isDone && (last.failure ?? true)),
          wait: Effect.suspend(() => (last === undefined ? Effect.void : Deferred.await(last.done))),
          streamWait: () => Effect.void,
          seconds: () => 0.25
        }
      })
  }
  return {
    device,
    /** Slots whose copies are under way, oldest first. */
    running: () => [...running.keys()],
    finish: (slot: number) => end(slot),
    fail: (slot: number) =>
      end(slot, replayTransferError("DeviceFailure", { slot, detail: "The test says so.", remedy: "None." })),
    counts: () => ({ registered: registered.size, allocated })
  }
}
