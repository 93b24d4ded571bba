// SPDX-License-Identifier: Apache-2.0
/**
 * Which process writes a ring, in one word that is changed atomically: the process number above, the low half of its start
 * time below, so that a reused number is not taken for the process that died. Linux shows both in /proc; processes that
 * share a ring see each other there, since they could not have opened its memory otherwise.
 */
import { processStart } from "../group/processStart.ts"

/** The word of a live process; `undefined` for one that has ended or never was. */
export const processWord = (pid: number | "self"): bigint | undefined => {
  const start = processStart(pid)
  if (start === undefined || !/^\d+$/.test(start)) return undefined
  return (BigInt(pid === "self" ? process.pid : pid) << 32n) | (BigInt(start) & 0xffff_ffffn)
}

export const pidOf = (word: bigint): number => Number(word >> 32n)

/** True while the process that the word names runs. */
export const isRunning = (word: bigint): boolean => word > 0n && processWord(pidOf(word)) === word
