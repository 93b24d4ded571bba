// SPDX-License-Identifier: Apache-2.0
/**
 * Measures what a backend moves between processes, beside what the same processes copy within their own memory.
 *
 * A round is as long as on the slowest rank. The result is the median over the rounds, of both in the same run.
 */

import { median } from "@tensorferry/core/base/Numbers"
import { modelError } from "@tensorferry/model/ModelError"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import { BenchNews, BenchWork } from "./benchWork.ts"
import { badEnds, programFile, runRanks } from "./rankProcesses.ts"

export interface BenchCase {
  readonly byteLength: number
  readonly rounds: number
  /** From submission until all bytes have arrived, on the slowest rank. */
  readonly medianSeconds: number
  readonly fastestSeconds: number
  /** Of one rank in one direction. */
  readonly bytesPerSecond: number
  /** The same bytes copied within each rank's memory, all ranks at once. */
  readonly copyMedianSeconds: number
  readonly copyBytesPerSecond: number
  readonly path: string
  readonly reason: string
}

/** The slowest rank of each round. */
const slowest = (ranks: ReadonlyArray<ReadonlyArray<number>>): ReadonlyArray<number> =>
  ranks[0]!.map((_, round) => Math.max(...ranks.map((seconds) => seconds[round]!)))

const summarise = (told: ReadonlyArray<BenchNews>): BenchCase => {
  const [first] = told
  const { byteLength, path, reason } = first!
  const moves = slowest(told.map(({ moveSeconds }) => moveSeconds))
  const copies = slowest(told.map(({ copySeconds }) => copySeconds))
  return {
    byteLength,
    rounds: moves.length,
    medianSeconds: median(moves),
    fastestSeconds: Math.min(...moves),
    bytesPerSecond: byteLength / median(moves),
    copyMedianSeconds: median(copies),
    copyBytesPerSecond: byteLength / median(copies),
    path,
    reason
  }
}

/** Of a case that takes long on a slow machine. */
const quietMillis = 180_000

const encodeWork = Schema.encodeSync(BenchWork)
const decodeNews = Schema.decodeUnknownOption(BenchNews)

export const runBench = Effect.fn("runBench")(function* (request: {
  readonly work: BenchWork
  readonly ranks: number
  readonly deadlineMillis: number
  readonly onProgress: (done: number, total: number, name: string) => Effect.Effect<void>
}) {
  const { work, ranks, onProgress } = request
  const told = new Map<number, Array<BenchNews>>()
  const total = work.lengths.length * ranks
  let done = 0
  yield* onProgress(0, total, "starting ranks")
  const ends = yield* runRanks({
    file: programFile("benchMain"),
    size: ranks,
    work: encodeWork(work),
    deadlineMillis: request.deadlineMillis,
    quietMillis,
    onNews: (rank, news) =>
      Effect.suspend(() => {
        const decoded = decodeNews(news)
        if (Option.isNone(decoded)) return Effect.void
        told.set(rank, [...(told.get(rank) ?? []), decoded.value])
        done += 1
        return onProgress(done, total, `${decoded.value.byteLength} bytes`)
      })
  })
  const [failed] = badEnds(ends)
  if (failed !== undefined) {
    return yield* modelError("RankEnded", {
      backend: work.backend,
      rank: failed.rank,
      detail: failed.kind === "crashed" ? `It crashed: ${failed.cause}` : failed.cause,
      remedy: "See that rank's own error."
    })
  }
  for (const [rank, cases] of told) {
    const wrong = cases.find(({ fault }) => fault !== "")
    if (wrong === undefined) continue
    return yield* modelError("Different", {
      backend: work.backend,
      rank,
      detail: `Of ${wrong.byteLength} bytes, ${wrong.fault}.`,
      remedy: `Do not use it; see tensorferry backends conformance ${work.backend}.`
    })
  }
  return work.lengths.map((_, at) => summarise(Array.from({ length: ranks }, (__, rank) => told.get(rank)![at]!)))
})
