// SPDX-License-Identifier: Apache-2.0
/**
 * One socket as a stream of frames. Owns the socket: its errors, limits and end.
 *
 * Invariants
 * - Nothing here throws or rejects, not even where the sink does. Whatever goes wrong with the socket or the bytes on it ends
 *   the frames with a detail that says why, once, and destroys the socket. Frames before an end by the peer are delivered.
 * - The limits hold for both directions. Frames that nobody asked for stay in the system: while no sink listens and no `next`
 *   waits, the socket is not read on, so a peer makes this process keep one chunk and one body within the limit.
 */
import type { Socket } from "node:net"
import * as Data from "effect/Data"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { encodeFrame, type Frame, frameHeader, makeFrameReader, onePiece } from "../Frames.ts"
import { handshakeBytes } from "../Unproven.ts"

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
  const reader = makeFrameReader(handshakeBytes)
  let limit = handshakeBytes
  let sink: FrameSink | undefined
  let wake: (() => void) | undefined
  let why: string | undefined
  /** Ended by this side: what arrives from here on is ignored. */
  let isDropped = false
  let isClosed = false

  const destroy = (detail: string): void => {
    why ??= detail
    isDropped = true
    socket.destroy()
  }

  const take = (): Frame | undefined => {
    const taken = isDropped ? Result.succeed(undefined) : reader.take()
    if (Result.isFailure(taken)) destroy(taken.failure)
    return Result.getOrUndefined(taken)
  }

  const attempt = (work: () => void): void => {
    const done = Result.try(work)
    if (Result.isFailure(done)) destroy(`a frame of it could not be handled (${String(done.failure)})`)
  }

  const drain = ({ receive }: FrameSink): void => {
    for (let frame = take(); frame !== undefined; frame = take()) {
      const taken = frame
      attempt(() => receive(taken))
    }
  }

  socket.setNoDelay(true)
  socket.setKeepAlive(true, 10_000)
  socket.on("data", (chunk: Buffer) => {
    if (isDropped) return
    reader.push(chunk)
    if (sink !== undefined) drain(sink)
    else wake?.()
    if (sink === undefined && wake === undefined) socket.pause()
  })
  socket.on("error", (error: NodeJS.ErrnoException) => {
    why ??= `its connection broke (${error.code ?? error.message})`
  })
  socket.on("close", () => {
    why ??= "its connection was closed"
    isClosed = true
    attempt(() => sink?.closed(why!))
    wake?.()
  })

  const next = Effect.callback<Frame, ConnectionClosed>((resume) => {
    const woken = (): void => {
      wake = undefined
      const frame = take()
      if (frame !== undefined) resume(Effect.succeed(frame))
      else if (isClosed || isDropped) resume(Effect.fail(new ConnectionClosed({ detail: why! })))
      else wake = woken
    }
    woken()
    if (wake === woken) socket.resume()
    return Effect.sync(() => {
      if (wake === woken) wake = undefined
    })
  })

  const listen = (to: FrameSink): void => {
    sink = to
    drain(to)
    if (isClosed) attempt(() => to.closed(why!))
    else socket.resume()
  }

  const send = (type: number, ...parts: ReadonlyArray<Uint8Array>): void => {
    if (!socket.writable) return
    const length = parts.reduce((sum, part) => sum + part.byteLength, 0)
    if (length > limit) destroy(`it was due ${length} bytes at once, the limit is ${limit}`)
    else if (length <= onePiece) socket.write(encodeFrame(type, length, parts))
    else {
      socket.cork()
      socket.write(frameHeader(type, length))
      for (const part of parts) if (part.byteLength > 0) socket.write(part)
      socket.uncork()
    }
  }

  const close = (grace: Duration.Duration) =>
    Effect.callback<void>((resume) => {
      if (socket.closed) return resume(Effect.void)
      // Nobody asks for frames any more, and the peer's end stands behind them.
      isDropped ||= sink === undefined
      why ??= "its connection was closed"
      socket.once("close", () => resume(Effect.void))
      socket.end()
      socket.resume()
    }).pipe(Effect.timeoutOption(grace), Effect.andThen(Effect.sync(() => destroy("its connection was closed"))))

  return {
    peer,
    next,
    listen,
    send,
    setLimit: (bytes) => {
      limit = bytes
      reader.setLimit(bytes)
    },
    bytesRead: () => socket.bytesRead,
    bytesQueued: () => socket.writableLength,
    close,
    destroy
  }
}
