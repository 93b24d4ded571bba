// SPDX-License-Identifier: Apache-2.0
/** Whether a client's process still lives. Reads /proc; a process that cannot be seen from here counts as unknown. */
import { processStart } from "@tensorferry/core/group/processStart"

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
