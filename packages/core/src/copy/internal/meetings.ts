// SPDX-License-Identifier: Apache-2.0
/**
 * When and how a rank meets all others to agree on a run: its own, or one that it has behind it, for others.
 *
 * Invariant: whoever agrees on a run has convened all ranks for it, so that those that repeat what they know, or rest, come.
 */
import { randomUUID } from "node:crypto"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { Rank } from "../../base/Ids.ts"
import type { CopyError, RunOptions } from "../../service/CopyService.ts"
import { type CopyBatch, memoryKey } from "./batch.ts"
import { emptyBatch } from "./check.ts"
import { type Agreement, agree, type LocalState, type RunCollectives } from "./handshake.ts"
import type { CopyMachine } from "./machine.ts"
import type { CopyParts } from "./parts.ts"
import { leftOf } from "./repeat.ts"

/** What a rank states of its run. */
export interface Statement {
  readonly own: Result.Result<CopyBatch, CopyError>
  readonly plan?: RunOptions["plan"]
}

const unplaced = { run: 0, lineage: "" }

export const makeMeetings = (
  { signals, backend, rank, stagingBytes, rounds, isPairwise }: CopyParts,
  machine: CopyMachine,
  collectives: RunCollectives,
  takePart: (agreement: Agreement) => Effect.Effect<void, CopyError>
) => {
  const service = isPairwise ? randomUUID() : ""

  /** What this rank still has to exchange in a run that these ranks have behind them. */
  const left = (batch: CopyBatch, ahead: ReadonlySet<Rank>, run: number): CopyBatch => {
    if (ahead.has(rank)) return emptyBatch
    return ahead.size === 0 ? batch : leftOf(batch, (peer) => ahead.has(peer) && signals.isDone(peer, run))
  }

  const localState = ({ own, plan }: Statement, isIdle: boolean): LocalState => {
    const batch = Result.getOrElse(own, () => emptyBatch)
    const { program, driver, place } = machine.state()
    return {
      place: isPairwise ? { ...place, run: isIdle ? place.run + 1 : place.run } : unplaced,
      service,
      isIdle,
      left: (ahead, run) => left(batch, ahead, run),
      backend,
      stagingBytes,
      rounds: rounds.roundsOf(batch),
      batch,
      plan,
      agreed: program?.agreed ?? "",
      isStale: program === undefined || program.memory !== memoryKey(batch),
      isBroken: driver === undefined,
      fault: Result.isFailure(own) ? own.failure : undefined
    }
  }

  /** Meets all ranks once; undefined where this one has the run behind it. */
  const meet = (statement: Statement, isIdle: boolean): Effect.Effect<Agreement | undefined, CopyError> =>
    Effect.gen(function* () {
      const met = yield* Effect.tapError(agree(collectives, localState(statement, isIdle)), () =>
        machine.on({ _tag: "Lost" })
      )
      const { place, isShared, isAhead, verdict } = met
      signals.answer(place.run)
      if (isAhead) {
        if (Result.isSuccess(verdict)) yield* takePart(verdict.success)
        return undefined
      }
      if (Result.isSuccess(verdict) && isPairwise) yield* machine.on({ _tag: "Aligned", place })
      else if (!isShared) yield* machine.on({ _tag: "Lost" })
      return yield* Effect.fromResult(verdict)
    })

  return {
    left,
    /** Meets all ranks until they agree on this rank's run; each rank in it gets the same agreement or the same failure. */
    state: (statement: Statement): Effect.Effect<Agreement, CopyError> =>
      Effect.gen(function* () {
        const { run, lineage } = machine.state().place
        if (lineage !== "" && !signals.convened().some((call) => call.run === run)) yield* signals.convene(run)
        while (true) {
          const agreement = yield* meet(statement, false)
          if (agreement !== undefined) return agreement
        }
      }),
    /** Whether others wait for this rank in a run that it has behind it. */
    isAwaited: (): boolean => {
      const { run, lineage } = machine.state().place
      return lineage !== "" && signals.convened().some((call) => call.run <= run)
    },
    answerOthers: Effect.suspend(() => Effect.as(meet({ own: Result.succeed(emptyBatch) }, true), undefined))
  }
}
