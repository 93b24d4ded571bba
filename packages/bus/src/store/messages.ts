// SPDX-License-Identifier: Apache-2.0
/**
 * What a store and its clients say to each other, and the guard of their connections: JSON texts in frames of one type.
 */

import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type { FramedSocket } from "../socket/FramedSocket.ts"
import type { Guard } from "../socket/GuardedSocket.ts"
import type { Entries } from "./KeyValueStore.ts"

export const FromClient = Schema.Union([
  Schema.Struct({
    type: Schema.Literal("put"),
    id: Schema.Int,
    key: Schema.String,
    value: Schema.String,
    isEphemeral: Schema.Boolean
  }),
  /** Answers with what stands under the key then. */
  Schema.Struct({ type: Schema.Literal("create"), id: Schema.Int, key: Schema.String, value: Schema.String }),
  Schema.Struct({ type: Schema.Literal("get"), id: Schema.Int, key: Schema.String }),
  Schema.Struct({ type: Schema.Literal("remove"), id: Schema.Int, key: Schema.String }),
  Schema.Struct({ type: Schema.Literal("list"), id: Schema.Int, prefix: Schema.String }),
  /** Answers with the entries, at once and after changes, until `unwatch`. */
  Schema.Struct({ type: Schema.Literal("watch"), id: Schema.Int, prefix: Schema.String }),
  Schema.Struct({ type: Schema.Literal("unwatch"), id: Schema.Int })
])
export type FromClient = typeof FromClient.Type

const Pairs = Schema.Array(Schema.Tuple([Schema.String, Schema.String]))

export const FromServer = Schema.Union([
  Schema.Struct({ type: Schema.Literal("done"), id: Schema.Int, value: Schema.NullOr(Schema.String) }),
  /** One page of entries, each page within the longest message. */
  Schema.Struct({ type: Schema.Literal("entries"), id: Schema.Int, entries: Pairs, isLast: Schema.Boolean }),
  Schema.Struct({ type: Schema.Literal("refused"), id: Schema.Int, detail: Schema.String })
])
export type FromServer = typeof FromServer.Type

/** Longest message where options name none. */
export const defaultFrameBytes = 16 * 2 ** 20

const messageType = 16

/** Clients say nothing of themselves. */
const Claim = Schema.Struct({})

/** Whoever leaves four of the longest messages unread must not fill the other's memory further. */
export const guardOf = (options: {
  readonly token?: string
  readonly maxFrameBytes?: number
}): Guard<typeof Claim.Type> => {
  const frameBytes = options.maxFrameBytes ?? defaultFrameBytes
  return {
    protocol: "tensorferry-bus-store",
    version: 4,
    token: options.token,
    claim: Claim,
    limits: { frameBytes, queuedBytes: 4 * frameBytes }
  }
}

/** What a message of entries has besides them. */
const pageOverhead = 128

/** Bytes of an entry within a message, without writing it: no character becomes more than six. */
const mostBytesOf = (key: string, value: string): number => 6 * (key.length + value.length) + 8

/** Whether the entry fits into a message of its own. */
export const fitsPage = (key: string, value: string, frameBytes: number): boolean =>
  pageOverhead + mostBytesOf(key, value) <= frameBytes ||
  pageOverhead + Buffer.byteLength(JSON.stringify([key, value])) <= frameBytes

/** Entries as messages that do not exceed the limit, where each entry fits into one. Always at least one message. */
export function* pagesOf(id: number, entries: Entries, frameBytes: number): Generator<FromServer, void> {
  let page: Array<readonly [string, string]> = []
  let bytes = pageOverhead
  for (const entry of entries) {
    const more = mostBytesOf(...entry)
    if (page.length > 0 && bytes + more > frameBytes) {
      yield { type: "entries", id, entries: page, isLast: false }
      page = []
      bytes = pageOverhead
    }
    page.push(entry)
    bytes += more
  }
  yield { type: "entries", id, entries: page, isLast: true }
}

/** Puts pages together again. Answers what is whole; `isWanted` is asked whether anybody waits for a number. */
export const makeGatherer = (isWanted: (id: number) => boolean) => {
  const begun = new Map<number, Array<readonly [string, string]>>()
  return (answer: FromServer): FromServer | undefined => {
    if (answer.type !== "entries") return answer
    const { id, entries, isLast } = answer
    const before = begun.get(id)
    if (isLast || !isWanted(id)) begun.delete(id)
    else if (before === undefined) begun.set(id, [...entries])
    else for (const entry of entries) before.push(entry)
    if (!isLast) return undefined
    return before === undefined ? answer : { ...answer, entries: [...before, ...entries] }
  }
}

/** Sending and receiving of one end. */
export interface Talk<In, Out> {
  /** Never throws: a message that no text can hold, or that is too long, ends the connection. */
  readonly send: (message: Out) => void
  /** A message that does not decode ends the connection. */
  readonly listen: (receive: (message: In) => void, closed: (detail: string) => void) => void
}

const encoder = new TextEncoder()
const decoder = new TextDecoder()

const talkOver = <In, Out>(incoming: Schema.Codec<In, unknown>, outgoing: Schema.Codec<Out, unknown>) => {
  const decode = Schema.decodeUnknownResult(Schema.fromJsonString(incoming))
  const encode = Schema.encodeSync(Schema.fromJsonString(outgoing))
  const encoded = (message: Out) => Result.try(() => encoder.encode(encode(message)))
  return (socket: FramedSocket): Talk<In, Out> => ({
    send: (message) => {
      const body = encoded(message)
      if (Result.isSuccess(body)) socket.send(messageType, body.success)
      else socket.destroy("what it is due cannot be written")
    },
    listen: (receive, closed) =>
      socket.listen({
        closed,
        receive: ({ type, body }) => {
          const message = decode(type === messageType ? decoder.decode(body) : "")
          if (Result.isSuccess(message)) receive(message.success)
          else socket.destroy("it broke the protocol with an unknown message")
        }
      })
  })
}

export const serverTalk = talkOver(FromClient, FromServer)
export const clientTalk = talkOver(FromServer, FromClient)
