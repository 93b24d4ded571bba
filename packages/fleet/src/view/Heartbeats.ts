// SPDX-License-Identifier: Apache-2.0
/**
 * For how long members have been silent, counted by whoever looks: clocks of different machines need not agree. Only of a
 * member that has not beaten since the first look is its own clock believed, since nothing else is known of the time before.
 */
import type { MemberReport } from "../version/MemberState.ts"

interface Beat {
  readonly beat: number
  /** When it was seen first, in seconds of the clock of whoever looks. */
  readonly since: number
  /** Its age by wall clocks at the first look; 0 once another beat has been seen. */
  readonly before: number
}

/** Ages of heartbeats, look by look. */
export class Heartbeats {
  #beats = new Map<string, Beat>()

  /** Notes a look. `now` is seconds of a clock that never goes back, `wallMillis` the time since 1970. */
  look(reports: ReadonlyArray<MemberReport>, now: number, wallMillis: number): void {
    const isFirst = this.#beats.size === 0
    const next = new Map<string, Beat>()
    for (const { member, beat, at } of reports) {
      const known = this.#beats.get(member.id)
      if (known?.beat === beat) next.set(member.id, known)
      else {
        const before = isFirst && at !== undefined ? Math.max(0, (wallMillis - at) / 1000) : 0
        next.set(member.id, { beat, since: now, before })
      }
    }
    this.#beats = next
  }

  /** By id, seconds since the last beat of each. */
  silent(now: number): ReadonlyMap<string, number> {
    const found = new Map<string, number>()
    for (const [id, { since, before }] of this.#beats) {
      const seen = Math.max(0, now - since)
      // Whoever beats soon after the first look has a clock that is wrong, and is not silent.
      found.set(id, seen > 1 ? seen + before : seen)
    }
    return found
  }
}
