// SPDX-License-Identifier: Apache-2.0
/**
 * How a pair or a batch that others may wait on comes to its end: who ended it and why.
 *
 * Invariant: a fate ends once, and everyone who waits on it learns of that at once, with the same words.
 */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import { type BusError, busError } from "../BusError.ts"

/** What was lost, by whom. */
export interface Loss {
  readonly tag: "PairBroken" | "BatchGone"
  /** Rank of the agent that ended it. */
  readonly peer?: number
  readonly detail: string
}

/** The end of one thing, as far as it is known. */
export interface Fate {
  readonly loss: () => Loss | undefined
  /** The first call counts. */
  readonly end: (loss: Loss) => void
  readonly ended: Effect.Effect<Loss>
}

export const makeFate = (): Fate => {
  const ended = Deferred.makeUnsafe<Loss>()
  let known: Loss | undefined
  return {
    loss: () => known,
    end: (loss) => {
      if (known !== undefined) return
      known = loss
      Deferred.doneUnsafe(ended, Effect.succeed(loss))
    },
    ended: Deferred.await(ended)
  }
}

const remedies: Record<Loss["tag"], string> = {
  PairBroken: "Send InitPair again on all ranks, once their agents run.",
  BatchGone: "Send RegisterTensors for it again on all ranks; the new registration replaces the old one."
}

export const lossError = (op: string, { tag, peer, detail }: Loss): BusError =>
  busError(tag, { op, ...(peer === undefined ? {} : { peer }), detail, remedy: remedies[tag] })

/** The first loss among these fates. */
export const lossAmong = (fates: ReadonlyArray<Fate>): Loss | undefined => {
  for (const fate of fates) {
    const loss = fate.loss()
    if (loss !== undefined) return loss
  }
  return undefined
}

/** The work, as long as none of these fates ends; then it is interrupted and the loss is its error. */
export const whileHeld = <A, E, R>(
  op: string,
  fates: ReadonlyArray<Fate>,
  work: Effect.Effect<A, E, R>
): Effect.Effect<A, E | BusError, R> =>
  Effect.suspend((): Effect.Effect<A, E | BusError, R> => {
    const loss = lossAmong(fates)
    if (loss !== undefined) return Effect.fail(lossError(op, loss))
    const lost = Effect.flatMap(Effect.raceAllFirst(fates.map(({ ended }) => ended)), (ended) =>
      Effect.fail(lossError(op, ended))
    )
    return Effect.raceFirst(work, lost)
  })
