/**
 * One connection to a served store: proven on both sides, with requests that wait for their answers.
 *
 * Invariant: when the connection ends, everything that waits on it fails, and nothing waits for ever: every request has a
 * deadline.
 */
import { randomBytes } from "node:crypto"
import { connect, type Socket } from "node:net"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import {
  clientCodec,
  type FromClient,
  type FromServer,
  frameOf,
  isProof,
  proofOf,
  readFrames,
  serverCodec
} from "./frames.ts"
import { type KeyValueError, keyValueError } from "./KeyValueStore.ts"

export interface ConnectOptions {
  readonly host: string
  readonly port: number
  readonly token?: string
  /** How long an answer may take; 30 seconds by default. */
  readonly deadline?: Duration.Input
  /** Longest message; 16 MiB by default. */
  readonly maxFrameBytes?: number
}

type Answer = Extract<FromServer, { readonly id: number }>

export interface StoreConnection {
  readonly isOpen: () => boolean
  /** Sends and waits for the first answer with the message's number. */
  readonly request: (message: Exclude<FromClient, { readonly type: "prove" }>) => Effect.Effect<Answer, KeyValueError>
  /** Calls back for every answer with this number, and once with an error when the connection ends. */
  readonly listen: (id: number, receive: (answer: Answer | KeyValueError) => void) => () => void
  readonly send: (message: FromClient) => void
  readonly close: () => void
}

const encode = Schema.encodeSync(clientCodec)

export const openConnection = (options: ConnectOptions): Effect.Effect<StoreConnection, KeyValueError> => {
  const { host, port } = options
  const token = options.token ?? ""
  const deadline = options.deadline ?? "30 seconds"
  const where = `${host}:${port}`
  const unreachable = (detail: string) =>
    keyValueError("Unreachable", {
      op: "connect",
      detail,
      remedy: `See whether the store at ${where} runs.`,
      isRetryable: true
    })
  const refused = (detail: string) =>
    keyValueError("Refused", { op: "connect", detail, remedy: "Give all agents the same token and version." })
  const late = (op: string) =>
    keyValueError("DeadlineExceeded", {
      op,
      detail: `The store at ${where} did not answer in time.`,
      remedy: "See whether its process is stopped.",
      isRetryable: true
    })

  const opening = Effect.callback<StoreConnection, KeyValueError>((resume) => {
    const listeners = new Map<number, (answer: Answer | KeyValueError) => void>()
    const nonce = randomBytes(16).toString("hex")
    let serverNonce: string | undefined
    let isProven = false
    let ended: KeyValueError | undefined
    const socket: Socket = connect({ host, port })
    const end = (error: KeyValueError) => {
      if (ended !== undefined) return
      ended = error
      socket.destroy()
      resume(Effect.fail(error))
      for (const listener of [...listeners.values()]) listener(error)
      listeners.clear()
    }
    const send = (message: FromClient) => {
      if (!socket.destroyed) socket.write(frameOf(encode(message)))
    }
    const receive = (message: FromServer) => {
      if (message.type === "hello") {
        if (serverNonce !== undefined) return end(refused("The store greets twice."))
        serverNonce = message.nonce
        return send({ type: "prove", nonce, proof: proofOf(token, "client", [message.nonce, nonce]) })
      }
      if (message.type === "proven") {
        if (serverNonce === undefined || !isProof(message.proof, proofOf(token, "server", [serverNonce, nonce]))) {
          return end(refused(`The store at ${where} does not know the token.`))
        }
        isProven = true
        lift()
        return resume(Effect.succeed(connection))
      }
      if (!isProven) return end(refused("The store answers before it has proven itself."))
      listeners.get(message.id)?.(message)
    }
    const lift = readFrames(socket, serverCodec, options.maxFrameBytes ?? 16 * 2 ** 20, receive, (detail) =>
      end(refused(detail))
    )
    const listen = (id: number, listener: (answer: Answer | KeyValueError) => void) => {
      if (ended !== undefined) listener(ended)
      else listeners.set(id, listener)
      return () => {
        if (listeners.get(id) === listener) listeners.delete(id)
      }
    }
    const connection: StoreConnection = {
      isOpen: () => ended === undefined,
      send,
      listen,
      close: () => end(unreachable("The connection was closed.")),
      request: (message) =>
        Effect.callback<Answer, KeyValueError>((done) => {
          const stop = listen(message.id, (answer) => {
            stop()
            done("type" in answer ? Effect.succeed(answer) : Effect.fail(answer))
          })
          send(message)
          return Effect.sync(stop)
        }).pipe(Effect.timeoutOrElse({ duration: deadline, orElse: () => Effect.fail(late(message.type)) }))
    }
    socket.setNoDelay(true)
    socket.setKeepAlive(true, 5_000)
    socket.on("error", (error) => end(unreachable(`The store at ${where} cannot be reached: ${error.message}.`)))
    socket.on("close", () =>
      end(
        serverNonce !== undefined && !isProven
          ? refused(`The store at ${where} closed the connection: the token may be another.`)
          : unreachable(`The store at ${where} closed the connection.`)
      )
    )
    return Effect.sync(() => end(unreachable("Connecting was given up.")))
  })
  return Effect.timeoutOrElse(opening, { duration: deadline, orElse: () => Effect.fail(late("connect")) })
}
