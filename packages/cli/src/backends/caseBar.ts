// SPDX-License-Identifier: Apache-2.0
/** A progress bar on standard error over counted cases; nothing where standard error is not a terminal. */
import * as Effect from "effect/Effect"
import { progressMode } from "../output/ProgressBar.ts"
import { plainLine } from "../text/terminal.ts"

const width = 30

export const makeCaseBar = (flags: Parameters<typeof progressMode>[0]) => {
  const isShown = process.stderr.isTTY === true && progressMode(flags) === "auto"
  return {
    update: (done: number, total: number, name: string): Effect.Effect<void> =>
      Effect.sync(() => {
        if (!isShown) return
        const fraction = total === 0 ? 1 : done / total
        const filled = Math.round(fraction * width)
        const bar = `${"█".repeat(filled)}${"░".repeat(width - filled)}`
        process.stderr.write(`\r\u001b[2K${bar} ${done}/${total}  ${plainLine(name.slice(0, 60))}`)
      }),
    clear: Effect.sync(() => {
      if (isShown) process.stderr.write("\r\u001b[2K")
    })
  }
}
