// SPDX-License-Identifier: Apache-2.0
/**
 * A progress bar on standard error for long work; nothing where standard error is not a terminal.
 */

import type { Phase } from "@tensorferry/model/Phase"
import * as Effect from "effect/Effect"
import type { RankProgress } from "../job/Coordinator.ts"

const order: ReadonlyArray<Phase> = ["start", "load", "copy", "verify", "write", "finish"]
const labels: Readonly<Record<Phase, string>> = {
  start: "starting ranks",
  load: "loading shards",
  copy: "copying",
  verify: "verifying",
  write: "writing shards",
  finish: "finishing"
}
const width = 30

export interface ProgressBar {
  readonly update: (progress: RankProgress) => Effect.Effect<void>
  readonly clear: Effect.Effect<void>
}

/** Shows the phase of the slowest rank and how far all ranks are in it. */
export const makeProgressBar = (size: number, isShown: boolean): ProgressBar => {
  const ranks = new Map<number, RankProgress>()
  const draw = (): void => {
    const states = Array.from({ length: size }, (_, rank) => ranks.get(rank))
    const slowest = Math.min(...states.map((state) => (state === undefined ? 0 : order.indexOf(state.phase))))
    const parts = states.map((state) => {
      if (state === undefined || order.indexOf(state.phase) < slowest) return 0
      return order.indexOf(state.phase) > slowest ? 1 : state.total === 0 ? 1 : state.done / state.total
    })
    const fraction = parts.reduce((sum, part) => sum + part, 0) / size
    const filled = Math.round(fraction * width)
    const bar = `${"█".repeat(filled)}${"░".repeat(width - filled)}`
    process.stderr.write(
      `\r\u001b[2K${bar} ${String(Math.floor(fraction * 100)).padStart(3)}%  ${labels[order[slowest]!]}`
    )
  }
  return {
    update: (progress) =>
      Effect.sync(() => {
        ranks.set(progress.rank, progress)
        if (isShown) draw()
      }),
    clear: Effect.sync(() => {
      if (isShown) process.stderr.write("\r\u001b[2K")
    })
  }
}
