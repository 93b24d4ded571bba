// SPDX-License-Identifier: Apache-2.0
/**
 * Carries out what the ranks agreed on: copies within this rank and rounds of messages with the others, at once.
 *
 * Invariant: a rank whose own part failed still walks through every round, so that it stays in step with the others.
 */
import * as Effect from "effect/Effect"
import type { CopyDriverShape } from "../../service/CopyDriver.ts"
import type { CopyError, RunOptions } from "../../service/CopyService.ts"
import { noteInPhase } from "../../service/Spans.ts"
import type { Move } from "../../tensor/Tensor.ts"
import { fromGroupError, fromTensorError } from "../CopyFailures.ts"
import { type CopyBatch, totalsOf } from "./batch.ts"
import type { CopyMachine } from "./machine.ts"
import type { CopyParts } from "./parts.ts"
import { localMoves, type Round } from "./rounds.ts"
import type { CompiledProgram } from "./runState.ts"
import { addPeerTimes, peerNotes, type RunTimes } from "./telemetry.ts"

/** The moves within this rank; those of the run before where they fit. */
const localMovesOf = (machine: CopyMachine, batch: CopyBatch): Effect.Effect<ReadonlyArray<Move>> => {
  const { local } = machine.state()
  if (local?.batch === batch) return Effect.succeed(local.moves)
  const moves = localMoves(batch, local?.moves ?? [])
  return Effect.as(machine.on({ _tag: "Listed", local: { batch, moves } }), moves)
}

export const execute = Effect.fnUntraced(function* (
  { group, engine, rank, capabilities, telemetry, calls }: CopyParts,
  machine: CopyMachine,
  driver: CopyDriverShape,
  program: CompiledProgram,
  batch: CopyBatch,
  runOptions: RunOptions,
  times: RunTimes
): Effect.fn.Return<void, CopyError> {
  const { localBytes, receivedBytes } = totalsOf(batch)
  const total = localBytes + receivedBytes
  let [copied, before] = [0, 0]
  const report = (moved: number) => runOptions.onProgress?.(copied + before + moved, total) ?? Effect.void
  const tensorOp = (op: string, moves: ReadonlyArray<Move>) =>
    moves.length === 0
      ? Effect.void
      : Effect.mapError(group.keepAlive(engine.copy(moves)), (error) => fromTensorError(rank, op, error))
  const local = yield* localMovesOf(machine, batch)
  const { run } = machine.state().place

  // A generator made in every run would cost more than what it does; so here and below.
  const copying =
    local.length === 0
      ? Effect.void
      : telemetry.phase(times, "local", tensorOp("local copy", local), () => ({
          bytes: localBytes,
          ops: batch.local.length
        }))
  const within = Effect.flatMap(copying, () => {
    copied = localBytes
    return report(0)
  })

  /** Moves between tensors and staging, which drivers with `gather` do not need. */
  const stage = (
    phase: "pack" | "unpack",
    moves: ReadonlyArray<Move>,
    at: number,
    following: Round | undefined
  ): Effect.Effect<void, CopyError> => {
    const about = () => ({ round: at, ops: moves.length })
    const staged = moves.length === 0 ? Effect.void : telemetry.phase(times, phase, tensorOp(phase, moves), about)
    return Effect.onInterrupt(staged, () => calls.abandon(driver, following))
  }

  const move = (round: Round, at: number): Effect.Effect<void, CopyError> => {
    const progress = (moved: number) => report(Math.min(moved, round.receivedBytes))
    const moving = Effect.flatMap(calls.transfer(driver, round, progress), (taken) => {
      addPeerTimes(times, taken)
      return noteInPhase("peer", () => peerNotes(round.program, taken))
    })
    return telemetry.phase(times, "transfer", moving, () => ({
      run,
      round: at,
      bytes: round.receivedBytes,
      messages: round.program.messages.length
    }))
  }

  const { rounds } = program
  const meet = Effect.mapError(group.barrier("copy round"), (error) => fromGroupError(rank, "run", error))
  const roundsFrom = (at: number): Effect.Effect<void, CopyError> => {
    const round = rounds[at]
    if (round === undefined) return Effect.void
    const mustMeet = capabilities.requiresProcessGroupBarrier && at + 1 < rounds.length
    const moved = Effect.flatMap(stage("pack", round.pack, at, round), () => move(round, at))
    const met = mustMeet ? Effect.andThen(moved, meet) : moved
    const unpacked = Effect.flatMap(met, () => stage("unpack", round.unpack, at, rounds[at + 1]))
    return Effect.flatMap(unpacked, () => {
      before += round.receivedBytes
      return Effect.flatMap(report(0), () => roundsFrom(at + 1))
    })
  }
  const between = roundsFrom(0)

  // Regions that are read are not written in the same run, so both go at once. A failure of one waits for the other:
  // this rank must stay in step with the others.
  const [own, others] = yield* Effect.all([Effect.result(within), Effect.result(between)], {
    concurrency: local.length === 0 ? 1 : 2
  })
  yield* Effect.fromResult(own)
  yield* Effect.fromResult(others)
  if (runOptions.finish !== undefined) {
    yield* telemetry.phase(times, "writeback", group.keepAlive(runOptions.finish))
  }
})
