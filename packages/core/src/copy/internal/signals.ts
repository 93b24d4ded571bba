// SPDX-License-Identifier: Apache-2.0
/**
 * What the ranks of a copy service tell each other outside of collectives: in flags of the driver, where the peer looks at
 * them, else in posts of a few bytes.
 *
 * | signal | to | says |
 * | --- | --- | --- |
 * | Alarm | all | the sender gives up the run in progress, which all have agreed on |
 * | Convene | all | the sender agrees on this run again, with all ranks |
 * | Ready | those it exchanges with | the sender has begun this run: what it sends may be read, what it receives be written |
 * | Done | the same | the sender has all its bytes of this run, and touches none of the receiver's any more |
 * | Out | the same | the sender has given up this repetition, and touches none of the receiver's bytes any more |
 * | Alive | the same | the sender is at work on this run |
 * | Closing | all | the sender closes after this run, and asks who has it behind them |
 * | Behind | who asked | the sender has this run behind it |
 *
 * Invariants: runs are known by numbers that only grow, so a signal of an earlier run is never taken for one of a later run.
 * Of the same signal by both ways, the later run counts. What is in flags is looked at whenever it matters, so it is never later
 * than a post that was sent after it. An alarm counts until the ranks have met after it. Signals that cannot be read are passed over: what they would have said
 * is found out by agreement.
 */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import type { Scope } from "effect/Scope"
import type { Rank } from "../../base/Ids.ts"
import { busyPoll } from "../../service/BusyPolling.ts"
import { type PeerFlag, type PeerFlags, peerFlags } from "../../service/CopyDriver.ts"
import type { ProcessGroupShape } from "../../service/ProcessGroup.ts"

const kinds = { Alarm: 0, Convene: 1, Ready: 2, Done: 3, Alive: 4, Out: 5, Closing: 6, Behind: 7 } as const

/** A call to all ranks to agree again. */
export interface Convened {
  readonly by: Rank
  readonly run: number
}

export interface Signals {
  /** Uses the flags of this driver from now on. What was stated in those before still counts. */
  readonly use: (flags: PeerFlags | undefined) => void
  readonly tellPeers: (kind: PeerFlag, peers: ReadonlyArray<Rank>, run: number) => Effect.Effect<void>
  readonly convene: (run: number) => Effect.Effect<void>
  readonly close: (run: number) => Effect.Effect<void>
  /** Ranks that wait to close until this one has their run behind it; each is answered once, by whoever takes it here. */
  readonly takeClosing: (run: number) => ReadonlyMap<Rank, number>
  /** Whether there are such ranks. */
  readonly isAsked: () => boolean
  /** Nobody needs this rank for this run or an earlier one: all others have it behind them, close too, or are gone. */
  readonly isUnneeded: (run: number) => boolean
  /** The calls of ranks that are not answered yet, the latest of each. */
  readonly convened: () => ReadonlyArray<Convened>
  /** Answers calls to agree on this run or an earlier one. */
  readonly answer: (run: number) => void
  readonly isReady: (peer: Rank, run: number) => boolean
  readonly isDone: (peer: Rank, run: number) => boolean
  /** The peer touches no memory of this rank in this run any more, or is gone. */
  readonly isOut: (peer: Rank, run: number) => boolean
  readonly isGone: (peer: Rank) => boolean
  /** Counts what a rank has told. */
  readonly heard: (peer: Rank) => number
  /** Counts a quarter of the group's deadline again and again, so that waits need no clocks of their own. */
  readonly quarters: () => number
  /** Called after every signal and every quarter, until it is taken back. */
  readonly watch: (watcher: () => void) => () => void
  /** The effect's value, unless it has been interrupted because this came true; `meanwhile` goes on beside it if it takes long. */
  readonly unless: <A, E>(
    isStopped: () => boolean,
    effect: Effect.Effect<A, E>,
    meanwhile?: Effect.Effect<never>
  ) => Effect.Effect<Option.Option<A>, E>
  /** Waits until there is an answer. */
  readonly until: (answer: () => boolean | undefined) => Effect.Effect<boolean>
  /** Keeps the thread awake for so long at most, so that no peer need wake it; the answer ends it. */
  readonly poll: (limitMillis: number) => () => void
  readonly alarm: Alarm
}

/** Whether another rank has given up the run in progress. */
export interface Alarm {
  /** The first rank that gave up. */
  readonly by: () => Rank | undefined
  /** Alarms the others, unless one of them did so first. */
  readonly raise: Effect.Effect<void>
  /** Alarms the others in any case. */
  readonly sound: Effect.Effect<void>
  /** All ranks have met: what was reported before belongs to no later run. */
  readonly settle: () => void
}

const encode = (kind: number, run: number): Uint8Array => {
  const bytes = new Uint8Array(9)
  bytes[0] = kind
  new DataView(bytes.buffer).setFloat64(1, run, true)
  return bytes
}

export const makeSignals = (group: ProcessGroupShape): Effect.Effect<Signals, never, Scope> =>
  Effect.gen(function* () {
    const others = Array.from({ length: group.size }, (_, rank) => rank).filter((rank) => rank !== group.rank)
    const last = new Map(peerFlags.map((kind) => [kind, new Map<Rank, number>()]))
    const heard = new Map<Rank, number>()
    const gone = new Set<Rank>()
    const closing = new Map<Rank, number>()
    const unanswered = new Map<Rank, number>()
    const calls = new Map<Rank, Convened>()
    const watchers = new Set<() => void>()
    let alarms: Array<Rank> = []
    let answered = Number.NEGATIVE_INFINITY

    const wake = () => {
      for (const watcher of [...watchers]) watcher()
    }
    const hear = (from: Rank) => heard.set(from, (heard.get(from) ?? 0) + 1)
    const note = (kind: PeerFlag, from: Rank, run: number) => {
      const runs = last.get(kind)!
      runs.set(from, Math.max(run, runs.get(from) ?? run))
    }

    let flags: PeerFlags | undefined
    let unwatch = () => {}
    /** The last run for which the peer has signalled this, in flags or by post. */
    const lastOf = (kind: PeerFlag, peer: Rank): number => {
      const known = last.get(kind)!.get(peer) ?? Number.NEGATIVE_INFINITY
      const stated = flags?.read(peer, kind) ?? 0
      if (stated <= known || !Number.isSafeInteger(stated) || stated <= 0) return known
      note(kind, peer, stated)
      hear(peer)
      return stated
    }
    const lookAt = (peer: Rank) => {
      for (const kind of peerFlags) lastOf(kind, peer)
    }

    const take = (from: Rank, payload: Uint8Array): void => {
      if (payload.byteLength !== 9) return
      const run = new DataView(payload.buffer, payload.byteOffset).getFloat64(1, true)
      if (!Number.isSafeInteger(run)) return
      hear(from)
      const flag = peerFlags.find((kind) => kinds[kind] === payload[0])
      if (flag !== undefined) {
        if (flag !== "Alive") note(flag, from, run)
      } else if (payload[0] === kinds.Alarm) alarms.push(from)
      else if (payload[0] === kinds.Closing) {
        closing.set(from, run)
        unanswered.set(from, run)
      } else if (payload[0] === kinds.Convene && run > answered) {
        calls.set(from, { by: from, run })
      }
      wake()
    }

    let waits = 0
    let isPolling = false
    const rest = () => flags?.sleep(waits > 0 && !isPolling)

    const until: Signals["until"] = (answer) =>
      Effect.callback((resume) => {
        const known = answer()
        if (known !== undefined) return resume(Effect.succeed(known))
        const stop = () => {
          if (!watchers.delete(watcher)) return
          waits -= 1
          if (waits === 0) rest()
        }
        const watcher = () => {
          const found = answer()
          if (found === undefined) return
          stop()
          resume(Effect.succeed(found))
        }
        watchers.add(watcher)
        waits += 1
        if (waits === 1) rest()
        // What a peer stated before it saw that this rank sleeps.
        watcher()
        return Effect.sync(stop)
      })

    const poll: Signals["poll"] = (limitMillis) => {
      if (!(limitMillis > 0)) return () => {}
      const look = () => {
        if (flags !== undefined && waits > 0) wake()
      }
      const end = () => {
        isPolling = false
        rest()
        look()
      }
      isPolling = true
      rest()
      const stop = busyPoll(limitMillis, look, end)
      return () => {
        stop()
        if (isPolling) end()
      }
    }

    const unless: Signals["unless"] = (isStopped, effect, meanwhile = Effect.never) =>
      Effect.uninterruptibleMask((restore) =>
        Effect.flatMap(Effect.forkChild(restore(effect), { startImmediately: true }), (fiber) => {
          const ended = fiber.pollUnsafe()
          if (ended !== undefined) return Effect.asSome(ended)
          const stop = Effect.as(
            until(() => isStopped() || undefined),
            Option.none()
          )
          const wait = Effect.raceFirst(Effect.asSome(Fiber.join(fiber)), Effect.raceFirst(stop, meanwhile))
          return Effect.onExit(restore(wait), () => Fiber.interrupt(fiber))
        })
      )

    yield* group.listen({
      post: take,
      gone: (rank) => {
        gone.add(rank)
        wake()
      }
    })
    let quarters = 0
    const quarter = Duration.millis(Duration.toMillis(group.deadline) / 4)
    const count = Effect.sync(() => {
      quarters += 1
      wake()
    })
    yield* Effect.forkScoped(Effect.forever(Effect.delay(count, quarter)))
    const post = (to: ReadonlyArray<Rank>, kind: number, run: number) =>
      to.length === 0 ? Effect.void : group.post(to, encode(kind, run))
    let told = 0
    yield* Effect.addFinalizer(() => Effect.sync(() => unwatch()))
    const sound = Effect.suspend(() => post(others, kinds.Alarm, 0))

    return {
      use: (next) => {
        for (const peer of others) lookAt(peer)
        unwatch()
        flags = next
        unwatch = next?.watch(wake) ?? unwatch
        rest()
        wake()
      },
      tellPeers: (kind, peers, run) =>
        Effect.suspend(() => {
          // Whoever is at work on one run for long is heard of again and again.
          if (kind === "Alive") told += 1
          const value = kind === "Alive" ? told : run
          return post(
            flags === undefined ? peers : peers.filter((peer) => !flags!.tell(peer, kind, value)),
            kinds[kind],
            run
          )
        }),
      convene: (run) => post(others, kinds.Convene, run),
      close: (run) => post(others, kinds.Closing, run),
      takeClosing: (run) => {
        const due = new Map([...unanswered].filter(([, of]) => of <= run))
        for (const rank of due.keys()) unanswered.delete(rank)
        return due
      },
      isAsked: () => unanswered.size > 0,
      isUnneeded: (run) => others.every((rank) => gone.has(rank) || closing.has(rank) || lastOf("Behind", rank) >= run),
      convened: () => [...calls.values()],
      answer: (run) => {
        answered = Math.max(answered, run)
        for (const [rank, call] of calls) if (call.run <= run) calls.delete(rank)
      },
      isReady: (peer, run) => lastOf("Ready", peer) >= run,
      isDone: (peer, run) => lastOf("Done", peer) >= run,
      isOut: (peer, run) => gone.has(peer) || lastOf("Done", peer) >= run || lastOf("Out", peer) >= run,
      isGone: (peer) => gone.has(peer),
      heard: (peer) => {
        lookAt(peer)
        return heard.get(peer) ?? 0
      },
      quarters: () => quarters,
      watch: (watcher) => {
        watchers.add(watcher)
        return () => void watchers.delete(watcher)
      },
      unless,
      until,
      poll,
      alarm: {
        by: () => alarms[0],
        raise: Effect.suspend(() => (alarms.length === 0 ? sound : Effect.void)),
        sound,
        settle: () => {
          alarms = []
        }
      }
    }
  })
