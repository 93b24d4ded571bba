// SPDX-License-Identifier: Apache-2.0
/**
 * Submissions into the slots of a replay backend: prepared once per pair of tensors, made at once, or recorded for the
 * consumer's wait.
 *
 * Invariant: a warm submission (a pair of tensors that its slot knows) is one call into the device.
 */
import * as Effect from "effect/Effect"
import type { ReplayTransferError } from "../../service/ReplayTransferBackend.ts"
import type { Tensor } from "../../tensor/Tensor.ts"
import { type BackendRing, bounded } from "./ring.ts"
import {
  begin,
  breakMaking,
  endMaking,
  isBusy,
  type KnownCopy,
  knownCopy,
  type ReplaySlot,
  remember,
  settle
} from "./slot.ts"

interface Pair {
  readonly destination: Tensor
  readonly source: Tensor
}

type Doing<A> = Effect.Effect<A, ReplayTransferError>

const secondsSince = (started: number): number => (performance.now() - started) / 1000

export const makeSubmission = (ring: BackendRing) => {
  const { device, slots, refusals, checks, isDeferred } = ring

  /** Runs what `start` gave; however that ends, the slot knows. */
  const runStart = (slot: ReplaySlot, next: KnownCopy, starting: Doing<void>): Doing<void> => {
    begin(slot, next, "making")
    return Effect.matchCauseEffect(starting, {
      onSuccess: () => {
        endMaking(slot)
        return slot.phase === "idle" && slot.failure !== undefined ? Effect.fail(slot.failure) : Effect.void
      },
      onFailure: (cause) => {
        const [reason] = cause.reasons
        breakMaking(slot, reason?._tag === "Fail" ? reason.error : undefined, isDeferred)
        return Effect.failCause(cause)
      }
    })
  }

  /** A submission whose copy is made by its caller. Much may have happened since it was found right. */
  const make = (slot: ReplaySlot, next: KnownCopy, starting: Doing<void>): Doing<void> =>
    Effect.uninterruptibleMask((restore) =>
      Effect.suspend(() => {
        settle(slot)
        const { index } = slot
        if (ring.isClosed) return Effect.fail(refusals.closed("submitH2d", index))
        if (isBusy(slot)) return Effect.fail(refusals.busy(index, false))
        const fault = checks.freed(index, next.destination, next.source)
        return fault === undefined ? runStart(slot, next, restore(starting)) : Effect.fail(fault)
      })
    )

  /** The consumer's wait makes the copy that a submission recorded, unless somebody else did, or dropped it. */
  const makeRecorded = (slot: ReplaySlot, recorded: KnownCopy, run: number): Doing<void> =>
    Effect.uninterruptibleMask((restore) =>
      Effect.suspend(() => {
        if (ring.isClosed || slot.phase !== "recorded" || slot.run !== run) return Effect.void
        const fault = checks.freed(slot.index, recorded.destination, recorded.source)
        const starting = fault === undefined ? recorded.copy.start() : Effect.fail(fault)
        if (starting !== undefined) return runStart(slot, recorded, restore(starting))
        begin(slot, recorded, "running")
        return Effect.void
      })
    )

  const start = (slot: ReplaySlot, next: KnownCopy, started: number): Doing<number> => {
    if (isDeferred) {
      begin(slot, next, "recorded")
      return Effect.succeed(secondsSince(started))
    }
    const starting = next.copy.start()
    if (starting !== undefined) {
      const made = bounded(ring, "submitH2d", slot, "The copy did not end into", make(slot, next, starting))
      return Effect.map(made, () => secondsSince(started))
    }
    begin(slot, next, "running")
    return Effect.succeed(secondsSince(started))
  }

  const prepare = Effect.fnUntraced(function* (slot: ReplaySlot, { destination, source }: Pair) {
    const objection = checks.pair(slot.index, destination, source)
    if (objection !== undefined) return yield* objection
    remember(slot, destination, source, yield* device.prepare(slot.index, destination, source))
  })

  const submit = (submission: Pair & { readonly slot: number }, started: number): Doing<number> => {
    const slot = slots[submission.slot]
    if (slot === undefined) return Effect.fail(refusals.outOfRange("submitH2d", submission.slot))
    if (ring.isClosed) return Effect.fail(refusals.closed("submitH2d", slot.index))
    settle(slot)
    if (isBusy(slot)) return Effect.fail(refusals.busy(slot.index, slot.phase === "recorded"))
    const { destination, source } = submission
    if (destination.storage.isFreed() || source.storage.isFreed()) {
      return Effect.fail(checks.freed(slot.index, destination, source)!)
    }
    const known = knownCopy(slot, destination, source)
    if (known !== undefined) return start(slot, known, started)
    return Effect.andThen(
      prepare(slot, submission),
      Effect.suspend(() => submit(submission, started))
    )
  }

  return { submit, makeRecorded }
}
