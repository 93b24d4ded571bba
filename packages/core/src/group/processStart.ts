// SPDX-License-Identifier: Apache-2.0
/** When processes started, as Linux says it in /proc: with its number, that names a process for ever. */
import { readFileSync } from "node:fs"
import * as Result from "effect/Result"

/** Clock ticks from boot to the start of a process, or undefined where there is none that still runs. */
export const processStart = (pid: number | "self"): string | undefined => {
  const stat = Result.getOrUndefined(Result.try(() => readFileSync(`/proc/${pid}/stat`, "latin1")))
  // The name before may hold anything, closing brackets too. Fields 3 (the state) to 22 of the file follow it.
  const fields = stat?.slice(stat.lastIndexOf(")") + 2).split(" ")
  const hasEnded = fields?.[0] === "Z" || fields?.[0] === "X"
  return hasEnded ? undefined : fields?.[19]
}
