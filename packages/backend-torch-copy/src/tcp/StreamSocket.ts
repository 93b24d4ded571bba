// SPDX-License-Identifier: Apache-2.0
/**
 * A socket as Effects: exact reads, writes that end when the bytes have left, everything paced by the slower side.
 *
 * Invariant: a read takes no byte more than it was asked for, so nothing is buffered beyond what the system does. A fault
 * of the socket fails what waits for it, in words; the socket is destroyed with its scope.
 */
import { connect, type Socket } from "node:net"
import * as Effect from "effect/Effect"
import type * as EffectScope from "effect/Scope"

export interface StreamSocket {
  /** Fills all of `into`. */
  readonly read: (into: Uint8Array) => Effect.Effect<void, string>
  /** The bytes must not change before the Effect has ended; after an interruption, never again. */
  readonly write: (bytes: Uint8Array) => Effect.Effect<void, string>
  readonly destroy: Effect.Effect<void>
}

const streamOf = (socket: Socket): StreamSocket => {
  let fault: string | undefined
  const ended = new Set<(detail: string) => void>()
  const end = (detail: string) => {
    fault ??= detail
    for (const tell of [...ended]) tell(fault)
  }
  socket.setNoDelay(true)
  socket.on("error", (error: NodeJS.ErrnoException) => end(`the connection broke (${error.code ?? error.message})`))
  socket.on("end", () => end("the peer closed the connection"))
  socket.on("close", () => end("the connection was closed"))

  const read = (into: Uint8Array) =>
    Effect.callback<void, string>((resume) => {
      let at = 0
      const stop = () => {
        socket.off("readable", pump)
        ended.delete(fail)
      }
      const fail = (detail: string) => {
        stop()
        resume(Effect.fail(detail))
      }
      const pump = () => {
        while (at < into.length && socket.readableLength > 0) {
          const chunk = socket.read(Math.min(into.length - at, socket.readableLength)) as Uint8Array | null
          if (chunk === null) break
          into.set(chunk, at)
          at += chunk.length
        }
        if (at < into.length) {
          if (fault !== undefined) fail(fault)
          return
        }
        stop()
        resume(Effect.void)
      }
      socket.on("readable", pump)
      ended.add(fail)
      pump()
      return Effect.sync(stop)
    })

  const write = (bytes: Uint8Array) =>
    Effect.callback<void, string>((resume) => {
      if (fault !== undefined) return resume(Effect.fail(fault))
      const fail = (detail: string) => {
        ended.delete(fail)
        resume(Effect.fail(detail))
      }
      ended.add(fail)
      socket.write(bytes, (error) => {
        ended.delete(fail)
        resume(error === null || error === undefined ? Effect.void : Effect.fail(fault ?? error.message))
      })
    })

  return { read, write, destroy: Effect.sync(() => void socket.destroy()) }
}

/** Takes over an accepted socket. */
export const adopt = (socket: Socket): Effect.Effect<StreamSocket, never, EffectScope.Scope> =>
  Effect.acquireRelease(
    Effect.sync(() => streamOf(socket)),
    (stream) => stream.destroy
  )

/** Connects on this host. */
export const dial = (port: number): Effect.Effect<StreamSocket, string, EffectScope.Scope> =>
  Effect.acquireRelease(
    Effect.callback<Socket, string>((resume) => {
      const socket = connect({ host: "127.0.0.1", port })
      const fail = (error: Error) => resume(Effect.fail(`cannot connect: ${error.message}`))
      socket.once("error", fail)
      socket.once("connect", () => {
        socket.off("error", fail)
        resume(Effect.succeed(socket))
      })
      return Effect.sync(() => void socket.destroy())
    }).pipe(Effect.map(streamOf)),
    (stream) => stream.destroy,
    { interruptible: true }
  )
