// SPDX-License-Identifier: Apache-2.0
/**
 * `PeerFlags` between ranks of one process, as memory that they all see would be: a statement is there at once, and whoever
 * sleeps is woken in a later turn of the event loop.
 *
 * Invariant: nobody is woken who does not sleep when something is stated, so a rank that forgets to sleep, or to look again
 * after it began to, waits for ever.
 */
import type { Rank } from "@tensorferry/core/base/Ids"
import type { PeerFlag, PeerFlags } from "@tensorferry/core/service/CopyDriver"

/** Whether a peer sees what a rank states from now on; else it must be told. Asked for each statement. */
export type IsSeen = (from: Rank, to: Rank) => boolean

/** The flags of each rank; those of one cluster share them. */
export const makeSharedFlags = (isSeen: IsSeen = () => true): ((rank: Rank) => PeerFlags) => {
  const stated = new Map<string, number>()
  const asleep = new Set<Rank>()
  const watchers = new Map<Rank, Set<() => void>>()
  const watchersOf = (rank: Rank): Set<() => void> => {
    const known = watchers.get(rank) ?? new Set()
    watchers.set(rank, known)
    return known
  }
  const key = (from: Rank, to: Rank, flag: PeerFlag) => `${from}>${to} ${flag}`

  const wake = (rank: Rank): void => {
    if (!asleep.has(rank)) return
    setImmediate(() => {
      for (const watcher of [...watchersOf(rank)]) watcher()
    })
  }

  return (rank) => ({
    tell: (to, flag, value) => {
      if (!isSeen(rank, to)) return false
      const at = key(rank, to, flag)
      stated.set(at, Math.max(stated.get(at) ?? 0, value))
      wake(to)
      return true
    },
    read: (from, flag) => stated.get(key(from, rank, flag)) ?? 0,
    sleep: (isAsleep) => {
      if (isAsleep) asleep.add(rank)
      else asleep.delete(rank)
    },
    watch: (woken) => {
      watchersOf(rank).add(woken)
      return () => void watchersOf(rank).delete(woken)
    }
  })
}
