// SPDX-License-Identifier: Apache-2.0
/**
 * One connection to a served store: proven on both sides, with requests that wait for their answers.
 *
 * Invariant: when the connection ends, everything that waits on it fails, and nothing waits for ever: every request has a
 * deadline.
 */

import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type { SocketClosed } from "../socket/FramedSocket.ts"
import { open, type SocketRefused } from "../socket/GuardedSocket.ts"
import { type KeyValueError, keyValueError } from "./KeyValueStore.ts"
import { clientTalk, type FromClient, type FromServer, guardOf, makeGatherer } from "./messages.ts"

export interface ConnectOptions {
  readonly host: string
  readonly port: number
  readonly token?: string
  /** How long an answer may take; 30 seconds by default. */
  readonly deadline?: Duration.Input
  /** Longest message; 16 MiB by default. */
  readonly maxFrameBytes?: number
}

export interface StoreConnection {
  readonly isOpen: () => boolean
  /** Sends and waits for the first answer with the message's number. */
  readonly request: (message: FromClient) => Effect.Effect<FromServer, KeyValueError>
  /** Calls back for every answer with this number, and once with an error when the connection ends. */
  readonly listen: (id: number, receive: (answer: FromServer | KeyValueError) => void) => () => void
  readonly send: (message: FromClient) => void
  readonly close: () => void
}

/** The errors of one connection, which name its store. */
const errorsOf = (where: string) => ({
  unreachable: (detail: string) =>
    keyValueError("Unreachable", {
      op: "connect",
      detail,
      remedy: `See whether the store at ${where} runs.`,
      isRetryable: true
    }),
  late: (op: string) =>
    keyValueError("DeadlineExceeded", {
      op,
      detail: `The store at ${where} did not answer in time.`,
      remedy: "See whether its process is stopped.",
      isRetryable: true
    }),
  refused: (detail: string) =>
    keyValueError("Refused", {
      op: "connect",
      detail: `The store at ${where} refused the connection. ${detail}`,
      remedy: "Give all agents the same token and version."
    })
})

/** Connects once and proves both ends to each other. The connection is the caller's to close. */
export const openConnection = (options: ConnectOptions): Effect.Effect<StoreConnection, KeyValueError> => {
  const { host, port } = options
  const deadline = options.deadline ?? "30 seconds"
  const where = `${host}:${port}`
  const { unreachable, late, refused } = errorsOf(where)
  const guard = { ...guardOf(options), handshakeTime: deadline }

  const failed = (error: SocketClosed | SocketRefused): KeyValueError => {
    if (error._tag === "SocketClosed") return unreachable(`The store at ${where} cannot be reached: ${error.detail}.`)
    return error.why === "Late" ? late("connect") : refused(error.detail)
  }

  return open({ host, port }, guard, {}).pipe(
    Effect.mapError(failed),
    Effect.timeoutOrElse({ duration: deadline, orElse: () => Effect.fail(late("connect")) }),
    Effect.map((socket): StoreConnection => {
      const listeners = new Map<number, (answer: FromServer | KeyValueError) => void>()
      const talk = clientTalk(socket)
      let ended: KeyValueError | undefined
      const end = (error: KeyValueError) => {
        if (ended !== undefined) return
        ended = error
        socket.destroy("its connection was closed")
        for (const listener of [...listeners.values()]) listener(error)
        listeners.clear()
      }
      const gather = makeGatherer((id) => listeners.has(id))
      talk.listen(
        (message) => {
          const whole = gather(message)
          if (whole !== undefined) listeners.get(whole.id)?.(whole)
        },
        (detail) => end(unreachable(`The connection to the store at ${where} ended: ${detail}.`))
      )
      const listen: StoreConnection["listen"] = (id, listener) => {
        if (ended !== undefined) listener(ended)
        else listeners.set(id, listener)
        return () => {
          if (listeners.get(id) === listener) listeners.delete(id)
        }
      }
      return {
        isOpen: () => ended === undefined && socket.isOpen(),
        send: talk.send,
        listen,
        close: () => end(unreachable("The connection was closed.")),
        request: (message) =>
          Effect.callback<FromServer, KeyValueError>((done) => {
            const stop = listen(message.id, (answer) => {
              stop()
              done("type" in answer ? Effect.succeed(answer) : Effect.fail(answer))
            })
            talk.send(message)
            return Effect.sync(stop)
          }).pipe(Effect.timeoutOrElse({ duration: deadline, orElse: () => Effect.fail(late(message.type)) }))
      }
    })
  )
}
