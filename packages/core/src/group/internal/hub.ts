// SPDX-License-Identifier: Apache-2.0
/**
 * Where members of collectives meet: collects the payloads of all members and hands each of them all of them. Shared by
 * the in-process and the TCP group. A synchronous state machine without clock, timers or sockets: the caller states the
 * time (milliseconds of any monotonic clock) and passes on the deliveries that each call returns.
 *
 * Invariants
 * - A collective is known by its circle and its number within that circle; the hub counts each rank's arrivals, so
 *   ranks cannot get out of step. Every member gets exactly one delivery per collective that it enters.
 * - A collective that failed is remembered until its last member has entered and learned the same failure.
 * - A rank that enters too many collectives that do not end is gone: what a rank can make the hub keep has a bound, and every
 *   call of the hub takes time that is linear in what is kept.
 * - A gone rank stays gone: it fails what is pending and everything later that includes it.
 */
import * as Result from "effect/Result"
import type { Rank } from "../../base/Ids.ts"
import type { ProcessGroupError } from "../../service/ProcessGroup.ts"
import {
  collectiveMismatch,
  type Departure,
  deadlineExceeded,
  type Failure,
  formatRanks,
  payloadRefused,
  peerGone
} from "./errors.ts"

/** Ranks that meet in one order of their own: the same members may have several lanes. */
export interface Circle {
  /** Distinct. */
  readonly members: ReadonlyArray<Rank>
  /** "" for the lane that every group has. */
  readonly lane: string
}

/** Tells circles apart. */
export const circleKey = ({ members, lane }: Circle): string => `${lane}/${members.join(",")}`

/** In place of a payload that cannot travel; fails the collective for all. */
export interface Refusal {
  readonly refusal: string
}

/** A rank enters its next collective in this circle. `call` comes back in the delivery. */
export interface Arrival {
  readonly rank: Rank
  readonly call: number
  /** Of ranks in range, the arriving one among them; the caller checks it. */
  readonly circle: Circle
  readonly label: string
  readonly payload: Uint8Array | Refusal
}

/** The end of one call of one rank: all payloads by member number, shared between receivers, or why not. */
export interface Delivery {
  readonly rank: Rank
  readonly call: number
  readonly result: Result.Result<ReadonlyArray<Uint8Array>, ProcessGroupError>
}

export interface CollectiveHub {
  readonly arrive: (arrival: Arrival, now: number) => ReadonlyArray<Delivery>
  /** The rank is getting on, and so is everybody who waits for it. */
  readonly progress: (rank: Rank, now: number) => void
  readonly leave: (rank: Rank, departure: Departure) => ReadonlyArray<Delivery>
  /** Fails what has waited too long. */
  readonly expire: (now: number) => ReadonlyArray<Delivery>
  /** What people should hear of waits that take long: each after three seconds, then at growing intervals. */
  readonly remind: (now: number) => ReadonlyArray<string>
  /** When `expire` has something to do at the earliest; infinity while nothing waits. */
  readonly nextExpiry: () => number
  /** Ranks with a call that has not ended. */
  readonly waiting: () => ReadonlySet<Rank>
}

export interface HubOptions {
  readonly deadlineMillis: number
  /** Most bytes of all payloads of one collective together; no limit by default. */
  readonly maxTotalBytes?: number
}

/** Most collectives that one rank may have entered and the hub still keeps. */
const mostOpen = 4096

interface Count {
  readonly key: string
  readonly members: ReadonlyArray<Rank>
  /** Collectives entered so far, by rank. */
  readonly entered: Map<Rank, number>
}

interface Collective {
  readonly members: ReadonlyArray<Rank>
  readonly arrivals: Map<Rank, Arrival>
  /** Of the first arrival, and of all others while nothing failed. */
  readonly label: string
  readonly firstArrival: number
  lastArrival: number
  /** When its wait is worth words again. */
  nextReminder: number
  failure: Failure | undefined
}

const firstReminderMillis = 3000

const isRefusal = (payload: Uint8Array | Refusal): payload is Refusal => "refusal" in payload

/** Who waits in a collective, how long already, for whom, and how long that may last. Milliseconds. */
const reminderOf = (
  { arrivals, label }: Collective,
  missing: ReadonlyArray<Rank>,
  waited: number,
  left: number
): string =>
  `${formatRanks([...arrivals.keys()])} waited ${Math.round(waited / 1000)} s in ${label} for ${formatRanks(missing)}; without a sign of progress this fails in ${Math.max(0, Math.ceil(left / 1000))} s.`

export const makeHub = (options: HubOptions): CollectiveHub => {
  const maxTotalBytes = options.maxTotalBytes ?? Number.POSITIVE_INFINITY
  const counts = new Map<string, Count>()
  /** By circle: callers pass the same objects again and again. */
  const countOfCircle = new WeakMap<Circle, Count>()
  const collectives = new Map<string, Collective>()
  const gone = new Map<Rank, Departure>()
  const lastProgress = new Map<Rank, number>()
  /** Collectives that are kept, by rank that has entered them. */
  const open = new Map<Rank, number>()

  const forget = (key: string, { arrivals }: Collective): void => {
    collectives.delete(key)
    for (const rank of arrivals.keys()) open.set(rank, open.get(rank)! - 1)
  }

  const isPending = (collective: Collective): boolean => collective.failure === undefined

  const missingOf = (collective: Collective): ReadonlyArray<Rank> =>
    collective.members.filter((rank) => !collective.arrivals.has(rank))

  /** Ranks that wait for one that gets on get on as well: the failure, if any, shall name the one that does not. */
  const progress = (rank: Rank, now: number): void => {
    if ((lastProgress.get(rank) ?? Number.NEGATIVE_INFINITY) >= now) return
    lastProgress.set(rank, now)
    for (const collective of collectives.values()) {
      if (!isPending(collective) || !collective.members.includes(rank) || collective.arrivals.has(rank)) continue
      for (const waiter of collective.arrivals.keys()) progress(waiter, now)
    }
  }

  const expiryOf = (collective: Collective): number => {
    let base = collective.lastArrival
    for (const rank of missingOf(collective)) base = Math.max(base, lastProgress.get(rank) ?? base)
    return base + options.deadlineMillis
  }

  const failed = (failure: Failure, { rank, call }: Arrival): Delivery => ({
    rank,
    call,
    result: Result.fail(failure(rank))
  })

  const fail = (key: string, collective: Collective, failure: Failure): ReadonlyArray<Delivery> => {
    const deliveries = [...collective.arrivals.values()].map((arrival) => failed(failure, arrival))
    collective.failure = failure
    for (const [rank, arrival] of collective.arrivals) {
      collective.arrivals.set(rank, { ...arrival, payload: new Uint8Array(0) })
    }
    if (collective.arrivals.size === collective.members.length) forget(key, collective)
    return deliveries
  }

  const complete = (key: string, collective: Collective): ReadonlyArray<Delivery> => {
    const payloads: Array<Uint8Array> = []
    let total = 0
    for (const rank of collective.members) {
      const { label, payload } = collective.arrivals.get(rank)!
      if (isRefusal(payload)) return fail(key, collective, payloadRefused(rank, label, payload.refusal))
      payloads.push(payload)
      total += payload.byteLength
      if (total > maxTotalBytes) {
        const detail = `The payloads of all members together exceed ${maxTotalBytes} bytes.`
        return fail(key, collective, payloadRefused(rank, label, detail))
      }
    }
    forget(key, collective)
    const result = Result.succeed(payloads)
    return [...collective.arrivals.values()].map(({ rank, call }) => ({ rank, call, result }))
  }

  const mismatchOf = (collective: Collective): Failure => {
    const labels = new Map<string, Array<Rank>>()
    for (const { rank, label } of collective.arrivals.values()) {
      labels.set(label, [...(labels.get(label) ?? []), rank])
    }
    return collectiveMismatch(labels)
  }

  const countOf = (circle: Circle): Count => {
    const known = countOfCircle.get(circle)
    if (known !== undefined && counts.get(known.key) === known) return known
    const key = circleKey(circle)
    const count = counts.get(key) ?? { key, members: circle.members, entered: new Map<Rank, number>() }
    counts.set(key, count)
    countOfCircle.set(circle, count)
    return count
  }

  const departedOf = (members: ReadonlyArray<Rank>): ReadonlyArray<readonly [Rank, Departure]> =>
    gone.size === 0
      ? []
      : members.flatMap((member) => {
          const departure = gone.get(member)
          return departure === undefined ? [] : [[member, departure] as const]
        })

  const leave = (rank: Rank, departure: Departure): ReadonlyArray<Delivery> => {
    if (gone.has(rank)) return []
    gone.set(rank, departure)
    const deliveries: Array<Delivery> = []
    for (const [key, collective] of collectives) {
      if (!collective.members.includes(rank)) continue
      forget(key, collective)
      if (!isPending(collective)) continue
      for (const arrival of collective.arrivals.values()) {
        deliveries.push(failed(peerGone([[rank, departure]], arrival.label), arrival))
      }
    }
    for (const [key, count] of counts) if (count.members.includes(rank)) counts.delete(key)
    return deliveries
  }

  const arrive = (arrival: Arrival, now: number): ReadonlyArray<Delivery> => {
    const { rank, circle } = arrival
    const { members } = circle
    progress(rank, now)
    const departed = departedOf(members)
    if (departed.length > 0) return [failed(peerGone(departed, arrival.label), arrival)]

    const entered = open.get(rank) ?? 0
    if (entered >= mostOpen) {
      const departure: Departure = { kind: "lost", detail: `it entered ${mostOpen} collectives that have not ended` }
      return [...leave(rank, departure), failed(peerGone([[rank, departure]], arrival.label), arrival)]
    }
    open.set(rank, entered + 1)

    const count = countOf(circle)
    const sequence = count.entered.get(rank) ?? 0
    count.entered.set(rank, sequence + 1)

    const key = `${count.key}#${sequence}`
    const collective = collectives.get(key) ?? {
      members: count.members,
      arrivals: new Map(),
      label: arrival.label,
      firstArrival: now,
      lastArrival: now,
      nextReminder: now + firstReminderMillis,
      failure: undefined
    }
    collectives.set(key, collective)
    collective.arrivals.set(rank, arrival)
    collective.lastArrival = now
    const isFull = collective.arrivals.size === members.length
    if (collective.failure !== undefined) {
      if (isFull) forget(key, collective)
      return [failed(collective.failure, arrival)]
    }
    if (arrival.label !== collective.label) return fail(key, collective, mismatchOf(collective))
    return isFull ? complete(key, collective) : []
  }

  const expire = (now: number): ReadonlyArray<Delivery> => {
    // Everything is judged before anything is changed, so that failures may name where a missing rank waits.
    const waitsIn = new Map<Rank, string>()
    for (const collective of collectives.values()) {
      if (!isPending(collective)) continue
      for (const [rank, { label }] of collective.arrivals) if (!waitsIn.has(rank)) waitsIn.set(rank, label)
    }
    const expired = [...collectives]
      .filter(([, collective]) => isPending(collective) && expiryOf(collective) <= now)
      .map(([key, collective]) => {
        const missing = missingOf(collective).map((rank) => ({ rank, waitsIn: waitsIn.get(rank) }))
        const { label } = collective.arrivals.values().next().value!
        const failure = deadlineExceeded(missing, collective.members, label, options.deadlineMillis)
        return { key, collective, failure }
      })
    return expired.flatMap(({ key, collective, failure }) => fail(key, collective, failure))
  }

  const remind = (now: number): ReadonlyArray<string> => {
    const texts: Array<string> = []
    for (const collective of collectives.values()) {
      if (!isPending(collective) || now < collective.nextReminder) continue
      const waited = now - collective.firstArrival
      collective.nextReminder = now + 2 * waited
      texts.push(reminderOf(collective, missingOf(collective), waited, expiryOf(collective) - now))
    }
    return texts
  }

  const nextExpiry = (): number => {
    let earliest = Number.POSITIVE_INFINITY
    for (const collective of collectives.values()) {
      if (isPending(collective)) earliest = Math.min(earliest, expiryOf(collective))
    }
    return earliest
  }

  const waiting = (): ReadonlySet<Rank> => {
    const ranks = new Set<Rank>()
    for (const collective of collectives.values()) {
      if (isPending(collective)) for (const rank of collective.arrivals.keys()) ranks.add(rank)
    }
    return ranks
  }

  return { arrive, progress, leave, expire, remind, nextExpiry, waiting }
}
