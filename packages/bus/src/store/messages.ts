// SPDX-License-Identifier: Apache-2.0
/**
 * What a store and its clients say to each other, and the guard of their connections: JSON texts in frames of one type.
 */

import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type { FramedSocket } from "../socket/FramedSocket.ts"
import type { Guard } from "../socket/GuardedSocket.ts"

export const FromClient = Schema.Union([
  Schema.Struct({
    type: Schema.Literal("put"),
    id: Schema.Int,
    key: Schema.String,
    value: Schema.String,
    isEphemeral: Schema.Boolean
  }),
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
  Schema.Struct({ type: Schema.Literal("entries"), id: Schema.Int, entries: Pairs }),
  Schema.Struct({ type: Schema.Literal("refused"), id: Schema.Int, detail: Schema.String })
])
export type FromServer = typeof FromServer.Type

const messageType = 16
const defaultFrameBytes = 16 * 2 ** 20

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
    version: 2,
    token: options.token,
    claim: Claim,
    limits: { frameBytes, queuedBytes: 4 * frameBytes }
  }
}

/** Sending and receiving of one end. */
export interface Talk<In, Out> {
  readonly send: (message: Out) => void
  /** A message that does not decode ends the connection. */
  readonly listen: (receive: (message: In) => void, closed: (detail: string) => void) => void
}

const encoder = new TextEncoder()
const decoder = new TextDecoder()

const talkOver = <In, Out>(incoming: Schema.Codec<In, unknown>, outgoing: Schema.Codec<Out, unknown>) => {
  const decode = Schema.decodeUnknownResult(Schema.fromJsonString(incoming))
  const encode = Schema.encodeSync(Schema.fromJsonString(outgoing))
  return (socket: FramedSocket): Talk<In, Out> => ({
    send: (message) => socket.send(messageType, encoder.encode(encode(message))),
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
