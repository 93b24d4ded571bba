// SPDX-License-Identifier: Apache-2.0
/** Waits of those who are about to release memory: until the copies that use it have ended, be they ready or not. */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import { orAfterRunningTime } from "../../service/RunningTime.ts"
import { formatDevice } from "../../tensor/Device.ts"
import type { Storage } from "../../tensor/Storage.ts"
import type { BackendRing } from "./ring.ts"
import { changed, endRun, isUnderWay, type ReplaySlot, settle } from "./slot.ts"

export const makeDraining = (ring: BackendRing) => {
  /** Ends when the slot's copy has, be it ready or not: for those who are about to release its memory. */
  const drained = (slot: ReplaySlot): Effect.Effect<void> =>
    Effect.suspend(() => {
      settle(slot)
      const { run, version } = slot
      if (slot.phase === "making") return Effect.andThen(changed(slot, version), drained(slot))
      if (slot.phase !== "running") return Effect.void
      return Effect.andThen(
        Effect.matchEffect(slot.current!.copy.wait, {
          onSuccess: () => Effect.sync(() => endRun(slot, run, undefined)),
          onFailure: (error) => Effect.sync(() => endRun(slot, run, error))
        }),
        drained(slot)
      )
    })

  const drain = (chosen: (slot: ReplaySlot) => boolean): Effect.Effect<void> =>
    Effect.suspend(() => Effect.forEach(ring.slots.filter(isUnderWay).filter(chosen), drained, { discard: true })).pipe(
      Effect.interruptible,
      (drained) =>
        orAfterRunningTime(drained, {
          duration: ring.deadline,
          orElse: () =>
            Effect.logWarning(
              `A replay copy to ${formatDevice(ring.target)} did not end for ${Duration.format(ring.deadline)}; its memory is released.`
            )
        })
    )

  const drainStorages = (storages: ReadonlySet<Storage>): Effect.Effect<void> =>
    drain(({ current }) => storages.has(current!.destination.storage) || storages.has(current!.source.storage))

  return { drain, drainStorages }
}
