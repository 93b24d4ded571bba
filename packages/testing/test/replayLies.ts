// SPDX-License-Identifier: Apache-2.0
/**
 * Replay devices and backends that break their contract, each in one way, each with the case that must catch it.
 */

import type { ReplayCopy, ReplayDevice } from "@tensorferry/core/service/ReplayDevice"
import type { ReplayTransferBackendShape } from "@tensorferry/core/service/ReplayTransferBackend"
import { type Tensor, tensorByteLength } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"
import type { ReplaySubjectShape } from "../src/conformance/ReplaySubject.ts"
import type { DelayedMode } from "../src/DelayedReplayDevice.ts"

export interface ReplayLie {
  readonly name: string
  readonly caughtBy: string
  readonly mode?: DelayedMode
  /** Makes the lie; made anew for each subject. */
  readonly tell: () => {
    readonly device?: (honest: ReplayDevice) => ReplayDevice
    readonly subject?: (honest: ReplaySubjectShape) => ReplaySubjectShape
  }
}

/** Changes every prepared copy. */
const withCopies =
  (change: (copy: ReplayCopy, destination: Tensor, source: Tensor, slot: number) => ReplayCopy): ReplayLie["tell"] =>
  () => ({
    device: (honest) => ({
      ...honest,
      prepare: (slot, destination, source) =>
        Effect.map(honest.prepare(slot, destination, source), (copy) => change(copy, destination, source, slot))
    })
  })

const withBackend =
  (change: (honest: ReplayTransferBackendShape) => ReplayTransferBackendShape): ReplayLie["tell"] =>
  () => ({
    subject: (honest) => ({ ...honest, build: (options) => Effect.map(honest.build(options), change) })
  })

/** Keeps what was prepared under a key that does not say enough. */
const withCache = (keyOf: (slot: number, destination: Tensor, source: Tensor) => string): ReplayLie["tell"] => {
  return () => ({
    device: (honest) => {
      const known = new Map<string, ReplayCopy>()
      return {
        ...honest,
        prepare: (slot, destination, source) => {
          const key = keyOf(slot, destination, source)
          const copy = known.get(key)
          if (copy !== undefined) return Effect.succeed(copy)
          return Effect.tap(honest.prepare(slot, destination, source), (made) =>
            Effect.sync(() => {
              known.set(key, made)
            })
          )
        }
      }
    }
  })
}

const placeOf = ({ storage, byteOffset, shape }: Tensor): string => `${storage.address}+${byteOffset}[${shape}]`

export const replayLies: ReadonlyArray<ReplayLie> = [
  {
    name: "an earlier completion counts for the next copy",
    caughtBy: "an earlier copy does not make a slot ready that was submitted into again",
    tell: withBackend((honest) => {
      const done = new Set<number>()
      const isReady = (slot: number) =>
        Effect.map(honest.isReady(slot), (ready) => {
          if (ready) done.add(slot)
          return ready || done.has(slot)
        })
      return {
        ...honest,
        isReady,
        slotState: (slot) =>
          Effect.flatMap(isReady(slot), (ready) => (ready ? Effect.succeed("ready" as const) : honest.slotState(slot))),
        waitReady: (slot) =>
          Effect.andThen(
            done.has(slot) ? Effect.void : honest.waitReady(slot),
            Effect.sync(() => void done.add(slot))
          ),
        clearReady: (slot) => Effect.tap(honest.clearReady(slot), () => Effect.sync(() => void done.delete(slot)))
      }
    })
  },
  {
    name: "is ready before the copy has ended",
    caughtBy: "a copy that is held back is not ready, and its bytes are not there",
    tell: withCopies((copy) => ({ ...copy, isDone: () => true, wait: Effect.void }))
  },
  {
    name: "waits end before the copy",
    caughtBy: "three rounds with changed data, registered and not",
    tell: withCopies((copy) => ({ ...copy, wait: Effect.void }))
  },
  {
    name: "clearReady does nothing",
    caughtBy: "a cleared slot is not ready until the next copy",
    tell: withBackend((honest) => ({ ...honest, clearReady: () => Effect.void }))
  },
  {
    name: "clearReady is forgotten while a copy runs",
    caughtBy: "a copy that was cleared while it ran does not count",
    tell: withBackend((honest) => ({
      ...honest,
      clearReady: (slot) =>
        Effect.flatMap(honest.slotState(slot), (state) =>
          state === "submitted" ? Effect.void : honest.clearReady(slot)
        )
    }))
  },
  {
    name: "a failed registration keeps the slots before it",
    caughtBy: "a registration that fails in the middle leaves nothing",
    tell: () => ({
      device: (honest) => ({
        ...honest,
        register: (slot, index) =>
          Effect.gen(function* () {
            const own = yield* Scope.make()
            yield* Scope.provide(honest.register(slot, index), own)
            yield* Effect.addFinalizer((exit) => (Exit.isSuccess(exit) ? Scope.close(own, exit) : Effect.void))
          })
      })
    })
  },
  {
    name: "a busy slot takes the submission and drops it",
    caughtBy: "a busy slot is refused and its copy goes on",
    tell: withBackend((honest) => ({
      ...honest,
      submitH2d: (submission) =>
        Effect.catchIf(
          honest.submitH2d(submission),
          (error) => error.reason._tag === "SlotBusy",
          () => Effect.succeed(0)
        )
    }))
  },
  {
    name: "prepared copies are found by address",
    caughtBy: "memory that comes back at the same address is new memory",
    tell: withCache((slot, destination, source) => `${slot} ${placeOf(destination)} ${placeOf(source)}`)
  },
  {
    name: "prepared copies are found by slot",
    caughtBy: "a slot takes other tensors each time",
    tell: withCache((slot) => String(slot))
  },
  {
    name: "a source that is freed is reused at once",
    caughtBy: "a source that is freed during its copy does no harm",
    tell: () => ({
      subject: (honest) => ({
        ...honest,
        allocateHost: (byteLength) =>
          Effect.tap(honest.allocateHost(byteLength), (storage) =>
            Effect.sync(() => void storage.onRevoke(() => void storage.bytes!.fill(0)))
          )
      })
    })
  },
  {
    name: "a device slot is freed in the middle of its copy",
    caughtBy: "device slots are freed only behind their copies",
    tell: () => {
      let opened: ReplayDevice | undefined
      return {
        device: (honest) => {
          opened = honest
          return honest
        },
        subject: (honest) => ({
          ...honest,
          build: (options) =>
            Effect.map(honest.build(options), (backend) => ({
              ...backend,
              allocateDeviceSlots: ({ count, shape, dtype }) =>
                Effect.forEach(Array.from({ length: count }), () => opened!.allocate(shape, dtype))
            }))
        })
      }
    }
  },
  {
    name: "errors of copies are swallowed",
    caughtBy: "a copy that fails is told and does not make the slot ready",
    tell: withCopies((copy) => ({
      ...copy,
      isDone: () => copy.isDone() !== false,
      wait: Effect.ignore(copy.wait)
    }))
  },
  {
    name: "errors of copies made by their caller are swallowed",
    caughtBy: "a copy that fails is told and does not make the slot ready",
    mode: "synchronous",
    tell: withCopies((copy) => ({
      ...copy,
      start: () => Effect.ignore(copy.start() ?? Effect.void),
      isDone: () => copy.isDone() !== false
    }))
  },
  {
    name: "writes a byte too many",
    caughtBy: "moves tensors and touches nothing around them",
    tell: withCopies((copy, destination) => ({
      ...copy,
      start: () => {
        const at = destination.byteOffset + tensorByteLength(destination)
        if (at < destination.storage.byteLength) destination.storage.bytes![at] = 0
        return copy.start()
      }
    }))
  },
  {
    name: "streams do not wait",
    caughtBy: "work of a stream that waits for a slot sees its bytes",
    tell: withCopies((copy) => ({ ...copy, streamWait: () => Effect.void }))
  },
  {
    name: "brings the bytes of the first time again",
    caughtBy: "three rounds with changed data, registered and not",
    tell: withCopies((copy, destination, source) => {
      let first: Uint8Array | undefined
      const { bytes } = source.storage
      return {
        ...copy,
        wait: Effect.tap(copy.wait, () =>
          Effect.sync(() => {
            first ??= bytes!.slice(source.byteOffset, source.byteOffset + tensorByteLength(source))
            destination.storage.bytes!.set(first, destination.byteOffset)
          })
        )
      }
    })
  },
  {
    name: "copies a deferred submission at once",
    caughtBy: "a deferred submission is copied by the consumer's wait",
    mode: "deferred",
    tell: withBackend((honest) => ({
      ...honest,
      submitH2d: (submission) => Effect.tap(honest.submitH2d(submission), () => honest.waitReady(submission.slot))
    }))
  },
  {
    name: "goes on copying when the submission is interrupted",
    caughtBy: "an interrupted submission stops its copy and leaves the slot idle",
    mode: "synchronous",
    tell: withCopies((copy) => ({
      ...copy,
      start: () => Effect.flatMap(Effect.forkDetach(copy.start() ?? Effect.void), Fiber.join),
      isDone: () => true
    }))
  },
  {
    name: "a wait that is interrupted stops the copy",
    caughtBy: "an interrupted wait leaves slot and copy as they are",
    tell: withCopies((copy) => {
      let isStopped = false
      return {
        ...copy,
        isDone: () => isStopped || copy.isDone(),
        wait: Effect.onInterrupt(copy.wait, () =>
          Effect.sync(() => {
            isStopped = true
          })
        )
      }
    })
  },
  {
    name: "says that host slots are pinned",
    caughtBy: "attributes are those of its kind, before and after registration",
    tell: () => ({
      device: (honest) => ({ ...honest, attributes: () => ({ ...honest.attributes(), hostPinned: true }) })
    })
  },
  {
    name: "waits of idle slots end at once",
    caughtBy: "waits end at their deadline and name the slot",
    tell: withBackend((honest) => ({
      ...honest,
      waitReady: (slot) =>
        Effect.flatMap(honest.slotState(slot), (state) => (state === "idle" ? Effect.void : honest.waitReady(slot)))
    }))
  },
  {
    name: "keeps something of every copy",
    caughtBy: "many ticks leave nothing behind",
    tell: () => {
      const kept: Array<Uint8Array> = []
      return withCopies((copy) => ({
        ...copy,
        start: () => {
          kept.push(new Uint8Array(65_536).fill(1))
          return copy.start()
        }
      }))()
    }
  },
  {
    name: "accepts freed memory",
    caughtBy: "freed storage is refused",
    tell: withBackend((honest) => ({
      ...honest,
      submitH2d: (submission) =>
        Effect.catchIf(
          honest.submitH2d(submission),
          (error) => error.reason._tag === "FreedStorage",
          () => Effect.succeed(0)
        )
    }))
  },
  {
    name: "slots out of range are other slots",
    caughtBy: "slots out of range are refused by every operation",
    tell: withBackend((honest) => ({ ...honest, clearReady: (slot) => honest.clearReady(Math.abs(slot) % 3) }))
  }
]
