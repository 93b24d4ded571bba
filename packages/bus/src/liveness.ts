// SPDX-License-Identifier: Apache-2.0
/** Whether another process still lives. Reads /proc; a process that cannot be seen from here counts as unknown. */
import { readFileSync, readlinkSync } from "node:fs"
import { processStart } from "@tensorferry/core/group/processStart"
import * as Result from "effect/Result"

/** A process, distinguished from a later one with the same number where that is known. */
export interface Owner {
  readonly pid: number
  readonly processStart: string | undefined
}

/** An owner whose end can be noticed: one that is seen now. */
export const seenOwner = ({ pid, processStart: stated }: Owner): Owner | undefined => {
  const start = pid > 0 ? processStart(pid) : undefined
  return start === undefined || (stated !== undefined && stated !== start) ? undefined : { pid, processStart: start }
}

export const isAlive = ({ pid, processStart: stated }: Owner): boolean => processStart(pid) === stated

/**
 * Names the processes that can be seen from here: two that name theirs alike see each other in /proc, as long as they live.
 * Undefined where the system does not say.
 */
export const processSpace = (): string | undefined =>
  Result.getOrUndefined(
    Result.try(() => {
      const boot = readFileSync("/proc/sys/kernel/random/boot_id", "latin1").trim()
      return `${boot} ${readlinkSync("/proc/self/ns/pid")}`
    })
  )
