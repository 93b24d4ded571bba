// SPDX-License-Identifier: Apache-2.0
/**
 * How far the ranks of a staged transfer are, as they state it to each other by posts, and waits for that.
 *
 * | post | says | of which start |
 * | --- | --- | --- |
 * | Hello | the sender has begun a start | the sender's |
 * | Ready | buffers of this round are filled, and free to be received into | the receiver's |
 * | Done | the bytes of this round have arrived | the receiver's |
 *
 * Each rank counts its own starts. What is stated goes to a start of the receiver, which its Hello made known, so nothing of
 * an earlier start is taken for a later one. A peer that says Hello again has nothing more to say to the start before.
 */

import type { Rank } from "@tensorferry/core/base/Ids"
import type { ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"

/** What a rank states of a round. */
export type TurnKind = "Ready" | "Done"

const kinds = ["Hello", "Ready", "Done"] as const

/** What a rank does with a round, one after the other: device to buffer, buffer to peer, buffer to device. */
export type Stage = "fill" | "wire" | "empty"

/** The turns of one start. */
export interface Turns {
  readonly tell: (kind: TurnKind, peers: ReadonlyArray<Rank>, round: number) => Effect.Effect<void>
  /** Ends when all these peers have stated this round or a later one; fails with the first that is gone or has given up. */
  readonly await: (kind: TurnKind, peers: ReadonlyArray<Rank>, round: number) => Effect.Effect<void, Rank>
  /** Ends when a stage of this rank has passed that round. */
  readonly reach: (stage: Stage, round: number) => Effect.Effect<void>
  readonly pass: (stage: Stage, round: number) => Effect.Effect<void>
  /** The start is over: nothing of it is stated to a peer that begins only now. */
  readonly end: Effect.Effect<void>
}

/** The latest round of each kind that somebody stated. */
type Rounds = { [kind in TurnKind]: number }

const postBytes = 12

const encode = (kind: (typeof kinds)[number], start: number, round: number): Uint8Array => {
  const view = new DataView(new ArrayBuffer(postBytes))
  view.setUint32(0, kinds.indexOf(kind), true)
  view.setUint32(4, start, true)
  view.setUint32(8, round, true)
  return new Uint8Array(view.buffer)
}

/** Listens for the turns of all starts of this rank, of which one is under way at a time. */
export const makeTurns = Effect.fnUntraced(function* (
  group: ProcessGroupShape
): Effect.fn.Return<(peers: ReadonlyArray<Rank>) => Effect.Effect<Turns>, never, Scope.Scope> {
  let starts = 0
  const startOf = new Map<Rank, number>()
  const gone = new Set<Rank>()
  /** Of the start under way. */
  let told = new Map<Rank, Rounds>()
  let heard = new Map<Rank, Rounds>()
  let over = new Set<Rank>()
  let changed = Deferred.makeUnsafe<void>()
  const change = () => {
    const before = changed
    changed = Deferred.makeUnsafe()
    Deferred.doneUnsafe(before, Effect.void)
  }
  /** What was stated before the peer could hear it. */
  const repeat = (peer: Rank, start: number): Effect.Effect<void> => {
    const rounds = told.get(peer)
    const said = (["Ready", "Done"] as const).filter((kind) => rounds !== undefined && rounds[kind] >= 0)
    return Effect.forEach(said, (kind) => group.post([peer], encode(kind, start, rounds![kind])), { discard: true })
  }
  yield* group.listen({
    post: (from, payload) => {
      if (payload.byteLength !== postBytes) return
      const view = new DataView(payload.buffer, payload.byteOffset, payload.byteLength)
      const [kind, start, round] = [kinds[view.getUint32(0, true)], view.getUint32(4, true), view.getUint32(8, true)]
      if (kind === "Hello") {
        startOf.set(from, start)
        if (heard.has(from)) over.add(from)
        else Effect.runSync(repeat(from, start))
      } else if (kind !== undefined && start === starts) {
        const before = heard.get(from) ?? { Ready: -1, Done: -1 }
        heard.set(from, { ...before, [kind]: Math.max(before[kind], round) })
      }
      change()
    },
    gone: (rank) => {
      gone.add(rank)
      change()
    }
  })
  const until = <E>(look: () => boolean | Effect.Effect<never, E>): Effect.Effect<void, E> =>
    Effect.suspend(() => {
      const seen = look()
      if (seen === true) return Effect.void
      if (seen !== false) return seen
      return Effect.andThen(Deferred.await(changed), until(look))
    })
  return (peers) =>
    Effect.suspend(() => {
      starts += 1
      told = new Map(peers.map((peer) => [peer, { Ready: -1, Done: -1 }]))
      heard = new Map()
      over = new Set()
      const passed = new Map<Stage, number>()
      const turns: Turns = {
        tell: (kind, to, round) =>
          Effect.forEach(
            to,
            (peer) => {
              const rounds = told.get(peer)
              if (rounds !== undefined) rounds[kind] = round
              const start = startOf.get(peer)
              return start === undefined ? Effect.void : group.post([peer], encode(kind, start, round))
            },
            { discard: true }
          ),
        await: (kind, from, round) =>
          until(() => {
            const missing = from.filter((peer) => (heard.get(peer)?.[kind] ?? -1) < round)
            if (missing.length === 0) return true
            const lost = missing.find((peer) => gone.has(peer) || over.has(peer))
            return lost === undefined ? false : Effect.fail(lost)
          }),
        reach: (stage, round) => until(() => (passed.get(stage) ?? -1) >= round),
        pass: (stage, round) =>
          Effect.sync(() => {
            passed.set(stage, round)
            change()
          }),
        end: Effect.sync(() => {
          told = new Map()
        })
      }
      return Effect.as(group.post(peers, encode("Hello", starts, 0)), turns)
    })
})
