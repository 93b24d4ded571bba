// SPDX-License-Identifier: Apache-2.0
/**
 * The admitted ranks of a TCP group, as rank 0 reaches them: deliveries of the hub, posts, beats, and the goodbye.
 *
 * Invariant: the members get their deliveries before rank 0 does.
 */
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { Rank } from "../../base/Ids.ts"
import type { ProcessGroupError } from "../../service/ProcessGroup.ts"
import type { makeCalls } from "./calls.ts"
import type { Connection } from "./connection.ts"
import type { Departure } from "./errors.ts"
import { encodeArrive, encodeFailure, failureText, frameType, goneBody, resultEncoder } from "./frames.ts"
import type { Circle, Delivery } from "./hub.ts"
import type { Inbox } from "./inbox.ts"

export interface Members {
  readonly connections: ReadonlyMap<Rank, Connection>
  readonly join: (rank: Rank, connection: Connection) => void
  readonly remove: (rank: Rank) => void
  readonly dispatch: (deliveries: ReadonlyArray<Delivery>) => void
  /** Passes a post on to members of its circle. One that reads nothing gets no more of them. */
  readonly post: (from: Rank, circle: Circle, to: ReadonlyArray<Rank>, payload: Uint8Array) => void
  /** Reports to the members that are left that one is gone. */
  readonly lose: (rank: Rank, departure: Departure) => void
  /** Reports to waiting members that the hub lives. Those that do not read get no more. */
  readonly beat: (waiting: Iterable<Rank>) => void
  /** The group is complete. */
  readonly announce: () => void
  /** Says goodbye, with the first failure where there was one, and closes every connection. */
  readonly part: (grace: Duration.Duration) => Effect.Effect<void>
}

/** Bytes queued for a member from which on posts to it are dropped. */
const mostQueued = 2 ** 20

export const makeMembers = (calls: ReturnType<typeof makeCalls>, inbox: Inbox): Members => {
  const connections = new Map<Rank, Connection>()
  /** Why rank 0 leaves, most likely: members that did not wait at the time learn it from the goodbye. */
  let firstFailure: ProcessGroupError | undefined

  const dispatch = (deliveries: ReadonlyArray<Delivery>): void => {
    let shared: ReadonlyArray<Uint8Array> | undefined
    let encode = resultEncoder([])
    for (const { rank, call, result } of deliveries) {
      if (Result.isSuccess(result)) {
        const member = connections.get(rank)
        if (member === undefined) continue
        if (shared !== result.success) encode = resultEncoder(result.success)
        shared = result.success
        member.send(frameType.result, ...encode(call))
      } else {
        firstFailure ??= result.failure
        connections.get(rank)?.send(frameType.failure, ...encodeFailure(call, result.failure))
      }
    }
    // Rank 0 comes last: its fiber goes on at once, and may end the group before the others know.
    for (const { rank, call, result } of deliveries) {
      if (rank !== 0) continue
      // Copies: what rank 0 does with its result must not change bytes that are still on their way to others.
      calls.settle(
        call,
        Result.map(result, (payloads) => payloads.map((payload) => new Uint8Array(payload)))
      )
    }
  }

  return {
    connections,
    join: (rank, connection) => {
      connections.set(rank, connection)
    },
    remove: (rank) => {
      connections.delete(rank)
    },
    dispatch,
    post: (from, circle, to, payload) => {
      const parts = encodeArrive({ call: from, circle, label: "", payload })
      for (const rank of to) {
        if (rank === from || !circle.members.includes(rank)) continue
        if (rank === 0) inbox.put(circle, from, payload)
        const connection = connections.get(rank)
        if (connection !== undefined && connection.bytesQueued() < mostQueued) connection.send(frameType.post, ...parts)
      }
    },
    lose: (rank, { kind, detail }) => {
      for (const other of connections.values()) other.send(frameType.gone, goneBody.encode({ rank, kind, detail }))
      inbox.lose(rank)
    },
    beat: (waiting) => {
      for (const rank of waiting) {
        const connection = connections.get(rank)
        if (connection !== undefined && connection.bytesQueued() === 0) connection.send(frameType.beat)
      }
    },
    announce: () => {
      for (const connection of connections.values()) connection.send(frameType.ready)
    },
    part: (grace) =>
      Effect.suspend(() => {
        const farewell = firstFailure === undefined ? [] : [failureText.encode(firstFailure)]
        for (const connection of connections.values()) connection.send(frameType.goodbye, ...farewell)
        return Effect.forEach([...connections.values()], (connection) => connection.close(grace), {
          concurrency: "unbounded",
          discard: true
        })
      })
  }
}
