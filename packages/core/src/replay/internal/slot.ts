// SPDX-License-Identifier: Apache-2.0
/**
 * One slot's state and its transitions. Synchronous: whoever changes a slot does so in one step, and wakes who waits.
 *
 * Invariant: a completion counts only for the run that it belongs to, and not at all once the slot was cleared.
 */
import * as Effect from "effect/Effect"
import type { ReplayCopy } from "../../service/ReplayDevice.ts"
import type { ReplayTransferError, SlotState } from "../../service/ReplayTransferBackend.ts"
import type { Tensor } from "../../tensor/Tensor.ts"

/** Copies that a slot remembers: host slots need not be as many as device slots. */
const knownLimit = 4

export interface KnownCopy {
  readonly copy: ReplayCopy
  readonly destination: Tensor
  readonly source: Tensor
  readonly destinationGeneration: number
  readonly sourceGeneration: number
}

export interface ReplaySlot {
  readonly index: number
  /** `making`: a fiber runs what `start` gave. `running`: the device has the copy. */
  phase: "idle" | "recorded" | "making" | "running" | "ready"
  /** The copy under way will not make the slot ready. */
  isCleared: boolean
  /** Of the last copy, until the slot is cleared or submitted into. */
  failure: ReplayTransferError | undefined
  current: KnownCopy | undefined
  /** Counts copies. */
  run: number
  /** Counts changes. */
  version: number
  known: Array<KnownCopy>
  readonly waiting: Set<() => void>
}

export const makeSlot = (index: number): ReplaySlot => ({
  index,
  phase: "idle",
  isCleared: false,
  failure: undefined,
  current: undefined,
  run: 0,
  version: 0,
  known: [],
  waiting: new Set()
})

export const isBusy = ({ phase }: ReplaySlot): boolean =>
  phase === "running" || phase === "making" || phase === "recorded"

export const isUnderWay = ({ phase }: ReplaySlot): boolean => phase === "running" || phase === "making"

export const stateOf = ({ phase }: ReplaySlot, isDeferred: boolean): SlotState => {
  if (phase === "idle" || phase === "ready") return phase
  return phase === "recorded" || (phase === "making" && isDeferred) ? "deferred" : "submitted"
}

/** The copy prepared for exactly this memory. */
export const knownCopy = (slot: ReplaySlot, destination: Tensor, source: Tensor): KnownCopy | undefined => {
  for (const known of slot.known) {
    if (
      known.destination === destination &&
      known.source === source &&
      known.destinationGeneration === destination.storage.generation &&
      known.sourceGeneration === source.storage.generation
    ) {
      return known
    }
  }
  return undefined
}

export const remember = (slot: ReplaySlot, destination: Tensor, source: Tensor, copy: ReplayCopy): void => {
  const alive = slot.known.filter((known) => !known.destination.storage.isFreed() && !known.source.storage.isFreed())
  const known: KnownCopy = {
    copy,
    destination,
    source,
    destinationGeneration: destination.storage.generation,
    sourceGeneration: source.storage.generation
  }
  slot.known = [known, ...alive].slice(0, knownLimit)
}

export const wake = (slot: ReplaySlot): void => {
  slot.version += 1
  if (slot.waiting.size === 0) return
  const woken = [...slot.waiting]
  slot.waiting.clear()
  for (const resume of woken) resume()
}

/** Ends when the slot has changed since it had this version. */
export const changed = (slot: ReplaySlot, version: number): Effect.Effect<void> =>
  Effect.callback((resume) => {
    if (slot.version !== version) return resume(Effect.void)
    const resumed = () => resume(Effect.void)
    slot.waiting.add(resumed)
    return Effect.sync(() => {
      slot.waiting.delete(resumed)
    })
  })

/** A copy takes the slot. */
export const begin = (slot: ReplaySlot, next: KnownCopy, phase: "recorded" | "making" | "running"): void => {
  slot.phase = phase
  slot.isCleared = false
  slot.failure = undefined
  slot.current = next
  slot.run += 1
  wake(slot)
}

/** The copy under way has ended. */
const finish = (slot: ReplaySlot, failure: ReplayTransferError | undefined): void => {
  slot.phase = failure === undefined && !slot.isCleared ? "ready" : "idle"
  if (!slot.isCleared) slot.failure = failure
  wake(slot)
}

/** Somebody who waited for this run knows that it has ended. */
export const endRun = (slot: ReplaySlot, run: number, failure: ReplayTransferError | undefined): void => {
  if (slot.run === run && slot.phase === "running") finish(slot, failure)
}

/** Asks the device whether its copy has ended. */
export const settle = (slot: ReplaySlot): void => {
  if (slot.phase !== "running") return
  const answer = slot.current!.copy.isDone()
  if (answer !== false) finish(slot, answer === true ? undefined : answer)
}

/** What `start` gave has succeeded: the copy is done, or the device goes on with it. */
export const endMaking = (slot: ReplaySlot): void => {
  slot.phase = "running"
  settle(slot)
  if (slot.phase === "running") wake(slot)
}

/**
 * What `start` gave has failed, or was interrupted. A recorded submission stays recorded when only a wait was interrupted.
 */
export const breakMaking = (slot: ReplaySlot, failure: ReplayTransferError | undefined, isRecorded: boolean): void => {
  if (slot.current!.copy.isDone() === false) {
    slot.phase = "running"
    if (!slot.isCleared) slot.failure = failure
    slot.isCleared = true
  } else if (failure === undefined && isRecorded && !slot.isCleared) {
    slot.phase = "recorded"
  } else {
    slot.phase = "idle"
    if (!slot.isCleared) slot.failure = failure
  }
  wake(slot)
}

/** Not ready until the next copy has completed. */
export const clear = (slot: ReplaySlot): void => {
  slot.failure = undefined
  if (isUnderWay(slot)) slot.isCleared = true
  else slot.phase = "idle"
  wake(slot)
}
