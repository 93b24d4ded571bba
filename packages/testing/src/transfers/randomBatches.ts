// SPDX-License-Identifier: Apache-2.0
/**
 * Batches of transfers run by ranks of one process over a driver: three rounds with new contents, and again in memory that
 * was allocated again, every byte compared.
 */
import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import { CopyDriver } from "@tensorferry/core/service/CopyDriver"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Layer from "effect/Layer"
import { runMembers } from "../VirtualCluster.ts"
import { fillShare, judgeShare, makeShare, type Transfer } from "./randomTransfers.ts"

const rounds = 3

/** One rank; gives what was wrong. */
export const rankOfBatch = (transfers: ReadonlyArray<Transfer>, generations: number) => (rank: number) =>
  Effect.gen(function* () {
    const driver = yield* CopyDriver
    const engine = yield* TensorEngine
    const group = yield* ProcessGroup
    const wrong: Array<string> = []
    const transfer = (generation: number) =>
      Effect.gen(function* () {
        const share = yield* makeShare(engine, transfers, rank)
        const program = yield* driver.prepare(share.messages)
        for (let at = 0; at < rounds; at++) {
          const round = generation * rounds + at
          yield* fillShare(engine, share, round)
          yield* group.barrier("filled")
          const running = yield* driver.start(program)
          yield* running.await
          yield* group.barrier("done")
          wrong.push(...(yield* judgeShare(engine, share, round)))
          yield* group.barrier("judged")
        }
      })
    for (let generation = 0; generation < generations; generation++) yield* Effect.scoped(transfer(generation))
    return wrong
  })

/** What was wrong on any rank; a rank that failed says how. */
export const runBatch = async (
  transfers: ReadonlyArray<Transfer>,
  ranks: number,
  layer: Layer.Layer<CopyDriver | TensorEngine, BackendError, ProcessGroup>,
  generations = 2
): Promise<ReadonlyArray<string>> => {
  const exits = await Effect.runPromise(
    runMembers({ size: ranks, groupDeadline: Duration.seconds(20) }, () => layer, rankOfBatch(transfers, generations))
  )
  return exits.flatMap((exit) => (Exit.isFailure(exit) ? [String(exit.cause)] : exit.value))
}
