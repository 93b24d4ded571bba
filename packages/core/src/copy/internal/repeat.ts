// SPDX-License-Identifier: Apache-2.0
/**
 * A run that repeats what all ranks agreed on before: pairwise, without a collective. A rank meets only those it exchanges
 * with, however many there are.
 *
 * Per peer: this rank says that it is ready, moves when all its peers are, says that it is done, and has the run behind it
 * when all its peers are done. What any rank may conclude: a peer that is ready is in this very run, so its memory may be
 * read and written; a peer that is done touches this rank's memory no more in this run.
 *
 * Invariants
 * - A rank gives up a repetition at any point before its end as soon as another one has convened all ranks for this run or an
 *   earlier one. What it moved until then is moved again under the new agreement, except with peers that have the run behind
 *   them: with these, all bytes have arrived both ways.
 * - A wait in which nobody is heard from ends in convening all ranks, whose meeting has the deadline, and names who is missing.
 */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import type { Rank } from "../../base/Ids.ts"
import type { CopyDriverShape } from "../../service/CopyDriver.ts"
import type { CopyError, RunOptions } from "../../service/CopyService.ts"
import { withinRunningTime } from "../../service/RunningTime.ts"
import { batchDigest, type CopyBatch, memoryKey } from "./batch.ts"
import { execute } from "./execute.ts"
import type { OnceOptions } from "./finishOnce.ts"
import type { CopyMachine } from "./machine.ts"
import { remembered } from "./messages.ts"
import type { CopyParts } from "./parts.ts"
import type { CompiledProgram, CopyRunState } from "./runState.ts"
import type { RunTimes } from "./telemetry.ts"

/** What a rank can repeat. */
export interface Repetition {
  readonly driver: CopyDriverShape
  readonly program: CompiledProgram
  readonly batch: CopyBatch
}

/** Whether the ranks know this batch already, as far as this one can say. */
export const repetitionOf = (
  { driver, program, known, place }: CopyRunState,
  batch: CopyBatch,
  plan: RunOptions["plan"]
): Repetition | undefined => {
  if (driver === undefined || program === undefined || known === undefined || place.lineage === "") return undefined
  if (known.plan !== plan?.digest || known.batch !== batchDigest(batch)) return undefined
  return program.memory === memoryKey(batch) ? { driver: driver.driver, program, batch } : undefined
}

const peersOf = remembered(
  ({ sends, recvs }: CopyBatch): ReadonlyArray<Rank> => [...new Set([...sends.keys(), ...recvs.keys()])]
)

/** Repeats the batch as the run of this number; false where all ranks must agree on the run. */
export const repeat = Effect.fnUntraced(function* (
  parts: CopyParts,
  machine: CopyMachine,
  { driver, program, batch }: Repetition,
  runOptions: OnceOptions,
  times: RunTimes
): Effect.fn.Return<boolean, CopyError> {
  const { group, signals, telemetry } = parts
  const { run } = machine.state().place
  const peers = peersOf(batch)

  const isGivenUp = (): boolean =>
    signals.convened().some((call) => call.run <= run) || peers.some((peer) => signals.isGone(peer))

  /** True when the peers are there; false where the run is given up, or nobody missing was heard from for too long. */
  const all = (isThere: (peer: Rank, run: number) => boolean): Effect.Effect<boolean> =>
    Effect.suspend(() => {
      const heard = () => peers.reduce((sum, peer) => (isThere(peer, run) ? sum : sum + signals.heard(peer)), 0)
      let [last, since] = [heard(), signals.quarters()]
      return signals.until(() => {
        if (isThere === signals.isReady && isGivenUp()) return false
        if (peers.every((peer) => isThere(peer, run))) return true
        if (isGivenUp()) return false
        if (heard() !== last) [last, since] = [heard(), signals.quarters()]
        // The first quarter may have begun long before.
        return signals.quarters() > since + 1 ? false : undefined
      })
    })

  const alive = Effect.forever(
    Effect.delay(signals.tellPeers("Alive", peers, run), Duration.millis(Duration.toMillis(group.deadline) / 12))
  )

  /** This rank is done, so its peers may end the run well: they must have read its memory before it is anybody else's. */
  const released = Effect.andThen(
    signals.convene(run),
    withinRunningTime(
      signals.until(() => peers.every((peer) => signals.isOut(peer, run)) || undefined),
      group.deadline
    )
  )

  const settle = Effect.uninterruptibleMask((restore) =>
    Effect.andThen(
      signals.tellPeers("Done", peers, run),
      Effect.onInterrupt(restore(telemetry.phase(times, "outcome", all(signals.isDone))), () => released)
    )
  )
  const move = Effect.suspend(() => {
    const moving = execute(parts, machine, driver, program, batch, runOptions, times)
    const moved = signals.unless(() => isGivenUp() && !runOptions.isFinishing(), moving, alive)
    return Effect.flatMap(moved, (ended) => (Option.isNone(ended) ? Effect.succeed(false) : settle))
  })
  // A generator made in every run would cost more than what it does.
  const begun = Effect.andThen(
    signals.tellPeers("Ready", peers, run),
    telemetry.phase(times, "handshake", all(signals.isReady))
  )
  const body = Effect.flatMap(begun, (areReady) => (areReady ? move : Effect.succeed(false)))
  return yield* Effect.onExit(body, (exit) =>
    Exit.isSuccess(exit) && exit.value ? Effect.void : signals.tellPeers("Out", peers, run)
  )
})

/** What is left of a batch when the run is agreed on again, where these ranks have it behind them. */
export const leftOf = (batch: CopyBatch, isBehind: (peer: Rank) => boolean): CopyBatch => {
  const rest = <A>(ops: ReadonlyMap<Rank, A>) => new Map([...ops].filter(([peer]) => !isBehind(peer)))
  return { ...batch, sends: rest(batch.sends), recvs: rest(batch.recvs) }
}
