// SPDX-License-Identifier: Apache-2.0
/**
 * One socket as a stream of frames. Owns the socket: its errors, limits and end.
 *
 * Invariant: nothing here throws or rejects. Whatever goes wrong with the socket or the bytes on it ends the frames with a
 * detail that says why, once, and destroys the socket. Frames received before an end by the peer are still delivered.
 */
import type { Socket } from "node:net"
import * as Data from "effect/Data"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { encodeFrame, type Frame, frameHeader, makeFrameReader, onePiece } from "../Frames.ts"
import { handshakeLimit } from "./frames.ts"

export class ConnectionClosed extends Data.TaggedError("ConnectionClosed")<{ readonly detail: string }> {}

/** Whom frames are handed to as they come, within the socket's own event: a message costs no turn of the event loop. */
export interface FrameSink {
  readonly receive: (frame: Frame) => void
  /** The last call, after the last frame. */
  readonly closed: (detail: string) => void
}

export interface Connection {
  /** The peer's address. */
  readonly peer: string
  /** The next frame; one at a time, for handshakes. */
  readonly next: Effect.Effect<Frame, ConnectionClosed>
  /** Hands all frames from here on to the sink, those that wait at once. */
  readonly listen: (sink: FrameSink) => void
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
  // IPv4 as people write it, where the listener serves both families.
  const peer = socket.remoteAddress?.replace(/^::ffff:/, "") ?? "an unknown address"
  const reader = makeFrameReader(handshakeLimit)
  const waiting: Array<Frame> = []
  let sink: FrameSink | undefined
  let wake: (() => void) | undefined
  let why: string | undefined
  let isClosed = false

  const destroy = (detail: string): void => {
    why ??= detail
    socket.destroy()
  }

  const deliver = (frame: Frame): void => {
    if (sink === undefined) {
      waiting.push(frame)
      wake?.()
    } else sink.receive(frame)
  }

  socket.setNoDelay(true)
  socket.setKeepAlive(true, 10_000)
  socket.on("data", (chunk: Buffer) => {
    if (why !== undefined) return
    reader.push(chunk)
    for (let read = reader.take(); why === undefined; read = reader.take()) {
      if (Result.isFailure(read)) return destroy(read.failure)
      if (read.success === undefined) return
      deliver(read.success)
    }
  })
  socket.on("error", (error: NodeJS.ErrnoException) => {
    why ??= `its connection broke (${error.code ?? error.message})`
  })
  socket.on("close", () => {
    why ??= "its connection was closed"
    isClosed = true
    sink?.closed(why)
    wake?.()
  })

  const next = Effect.callback<Frame, ConnectionClosed>((resume) => {
    const take = (): boolean => {
      const frame = waiting.shift()
      if (frame !== undefined) resume(Effect.succeed(frame))
      else if (isClosed) resume(Effect.fail(new ConnectionClosed({ detail: why! })))
      else return false
      return true
    }
    if (take()) return
    const woken = () => {
      wake = undefined
      take()
    }
    wake = woken
    return Effect.sync(() => {
      if (wake === woken) wake = undefined
    })
  })

  const listen = (to: FrameSink): void => {
    sink = to
    for (const frame of waiting.splice(0)) to.receive(frame)
    if (isClosed) to.closed(why!)
  }

  const send = (type: number, ...parts: ReadonlyArray<Uint8Array>): void => {
    if (!socket.writable) return
    const length = parts.reduce((sum, part) => sum + part.byteLength, 0)
    if (length <= onePiece) {
      socket.write(encodeFrame(type, length, parts))
      return
    }
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
    peer,
    next,
    listen,
    send,
    setLimit: reader.setLimit,
    bytesRead: () => socket.bytesRead,
    bytesQueued: () => socket.writableLength,
    close,
    destroy
  }
}
