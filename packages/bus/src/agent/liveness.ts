// SPDX-License-Identifier: Apache-2.0
/** Whether a client's process still lives. Reads /proc; a process that cannot be seen from here counts as unknown. */
import { readFileSync } from "node:fs"
import * as Result from "effect/Result"

/** A process, told from a later one with the same number where that is known. */
export interface Owner {
  readonly pid: number
  readonly processStart: string | undefined
}

/** Start time of a process in clock ticks since boot, or undefined where there is none. */
export const processStartOf = (pid: number): string | undefined => {
  const text = Result.try(() => readFileSync(`/proc/${pid}/stat`, "utf8"))
  if (Result.isFailure(text)) return undefined
  // The name may hold spaces and brackets; what follows its last bracket has fixed places.
  const fields = text.success.slice(text.success.lastIndexOf(")") + 2).split(" ")
  return fields[0] === "Z" || fields[0] === "X" ? undefined : fields[19]
}

/** An owner whose end can be noticed: one that is seen now. */
export const seenOwner = ({ pid, processStart }: Owner): Owner | undefined => {
  const start = pid > 0 ? processStartOf(pid) : undefined
  return start === undefined || (processStart !== undefined && processStart !== start)
    ? undefined
    : { pid, processStart: start }
}

export const isAlive = ({ pid, processStart }: Owner): boolean => processStartOf(pid) === processStart
