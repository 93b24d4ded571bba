/**
 * One socket as a stream of frames. Owns the socket: its errors, limits and end.
 *
 * Invariant: nothing here throws or rejects. Whatever goes wrong with the socket or the bytes on it ends the frame queue
 * with a `ConnectionClosed` that says why, once, and destroys the socket. Frames received before are still delivered.
 */
import type { Socket } from "node:net"
import * as Cause from "effect/Cause"
import * as Data from "effect/Data"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Queue from "effect/Queue"
import * as Result from "effect/Result"
import { type Frame, frameHeader, handshakeLimit, makeFrameReader } from "./collectiveWire.ts"

export class ConnectionClosed extends Data.TaggedError("ConnectionClosed")<{ readonly detail: string }> {}

export interface Connection {
  readonly frames: Queue.Dequeue<Frame, ConnectionClosed>
  /** Queues a frame; without effect after the end. Parts are sent as they are and must not change any more. */
  readonly send: (type: number, ...parts: ReadonlyArray<Uint8Array>) => void
  /** Bodies from here on may be this long. */
  readonly setLimit: (bytes: number) => void
  readonly bytesRead: () => number
  /** Bytes that the peer has not taken yet. */
  readonly bytesQueued: () => number
  /** Sends what is queued, says that no more follows, and waits for the peer to do the same, up to the grace. */
  readonly close: (grace: Duration.Duration) => Effect.Effect<void>
  readonly destroy: (detail: string) => void
}

/** Takes over a connected socket. */
export const attach = (socket: Socket): Connection => {
  const frames = Effect.runSync(Queue.unbounded<Frame, ConnectionClosed>())
  const reader = makeFrameReader(handshakeLimit)
  let why: string | undefined

  const destroy = (detail: string): void => {
    why ??= detail
    socket.destroy()
  }

  socket.setNoDelay(true)
  socket.setKeepAlive(true, 10_000)
  socket.on("data", (chunk: Buffer) => {
    if (why !== undefined) return
    const read = reader.push(chunk)
    if (Result.isFailure(read)) destroy(read.failure)
    else Queue.offerAllUnsafe(frames, read.success)
  })
  socket.on("error", (error: NodeJS.ErrnoException) => {
    why ??= `its connection broke (${error.code ?? error.message})`
  })
  socket.on("close", () => {
    Queue.failCauseUnsafe(frames, Cause.fail(new ConnectionClosed({ detail: why ?? "its connection was closed" })))
  })

  const send = (type: number, ...parts: ReadonlyArray<Uint8Array>): void => {
    if (!socket.writable) return
    const length = parts.reduce((sum, part) => sum + part.byteLength, 0)
    socket.cork()
    socket.write(frameHeader(type, length))
    for (const part of parts) if (part.byteLength > 0) socket.write(part)
    socket.uncork()
  }

  const close = (grace: Duration.Duration) =>
    Effect.callback<void>((resume) => {
      if (socket.closed) return resume(Effect.void)
      socket.once("close", () => resume(Effect.void))
      socket.end()
    }).pipe(Effect.timeoutOption(grace), Effect.andThen(Effect.sync(() => destroy("its connection was closed"))))

  return {
    frames,
    send,
    setLimit: reader.setLimit,
    bytesRead: () => socket.bytesRead,
    bytesQueued: () => socket.writableLength,
    close,
    destroy
  }
}
