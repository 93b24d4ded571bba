// SPDX-License-Identifier: Apache-2.0
/**
 * The posts that reached one rank, by the circle they were sent in, and the ranks that are gone.
 *
 * Invariant: a listener gets the posts of a sender in order, those from before it listened too, as far as they were kept. A
 * transport passes a post on before anything that its sender does afterwards.
 */
import type { Rank } from "../../base/Ids.ts"
import type { PostListener } from "../../service/ProcessGroup.ts"
import { type Circle, circleKey } from "./hub.ts"

/** Posts that are kept for a circle nobody listens in yet; older ones are dropped. */
const mostKept = 1024

interface Box {
  readonly circle: Circle
  readonly listeners: Set<PostListener>
  kept: Array<{ readonly from: Rank; readonly payload: Uint8Array }>
}

export interface Inbox {
  readonly put: (circle: Circle, from: Rank, payload: Uint8Array) => void
  readonly lose: (rank: Rank) => void
  /** Gives what ends the listening. */
  readonly listen: (circle: Circle, listener: PostListener) => () => void
}

export const makeInbox = (): Inbox => {
  const boxes = new Map<string, Box>()
  const gone = new Set<Rank>()

  const boxOf = (circle: Circle): Box => {
    const key = circleKey(circle)
    const box = boxes.get(key) ?? { circle, listeners: new Set(), kept: [] }
    boxes.set(key, box)
    return box
  }

  return {
    put: (circle, from, payload) => {
      const { listeners, kept } = boxOf(circle)
      for (const { post } of listeners) post(from, payload)
      if (listeners.size > 0) return
      kept.push({ from, payload })
      if (kept.length > mostKept) kept.shift()
    },
    lose: (rank) => {
      if (gone.has(rank)) return
      gone.add(rank)
      for (const { circle, listeners } of boxes.values()) {
        if (circle.members.includes(rank)) for (const listener of listeners) listener.gone(rank)
      }
    },
    listen: (circle, listener) => {
      const box = boxOf(circle)
      box.listeners.add(listener)
      const { kept } = box
      box.kept = []
      for (const { from, payload } of kept) listener.post(from, payload)
      for (const rank of circle.members) if (gone.has(rank)) listener.gone(rank)
      return () => {
        box.listeners.delete(listener)
        if (box.listeners.size === 0) boxes.delete(circleKey(circle))
      }
    }
  }
}
