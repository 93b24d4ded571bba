// SPDX-License-Identifier: Apache-2.0
/**
 * One socket as a stream of frames. Owns the socket: its errors, limits and end.
 *
 * Invariants
 * - Nothing here throws or rejects, not even where the sink of the frames does. Whatever goes wrong with the socket or the
 *   bytes on it ends the frames with a detail that says why, once, and destroys the socket. Frames that came before the
 *   peer ended are still delivered.
 * - Frames that nobody asked for yet stay in the system: while no sink listens and no `next` waits, the socket is not read
 *   on. A peer can therefore make this process keep one chunk and one body within the limit, no more.
 */
import { connect, type Socket } from "node:net"
import { encodeFrame, type Frame, frameHeader, makeFrameReader, onePiece } from "@tensorferry/core/group/Frames"
import * as Data from "effect/Data"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"

/** The connection is over. The detail goes behind a name: "its connection broke (ECONNRESET)". */
export class SocketClosed extends Data.TaggedError("SocketClosed")<{ readonly detail: string }> {}

/** Whom frames are handed to as they come, within the socket's own event: a message costs no turn of the event loop. */
export interface FrameSink {
  readonly receive: (frame: Frame) => void
  /** The last call, after the last frame. */
  readonly closed: (detail: string) => void
}

/** What a peer may make this process keep. */
export interface SocketLimits {
  /** Longest body, in either direction. */
  readonly frameBytes: number
  /** Most bytes that the peer may leave unread before the socket is destroyed; unlimited by default. */
  readonly queuedBytes?: number
}

/** A connected socket that this module owns. */
export interface FramedSocket {
  /** The peer's address. */
  readonly peer: string
  /** The next frame; one at a time, for handshakes. */
  readonly next: Effect.Effect<Frame, SocketClosed>
  /** Hands all frames from here on to the sink, those that wait at once. */
  readonly listen: (sink: FrameSink) => void
  /** Queues a frame; without effect after the end. Parts are sent as they are and must not change any more. */
  readonly send: (type: number, ...parts: ReadonlyArray<Uint8Array>) => void
  /** Waits until the peer's system has taken what is queued, or the connection is over. */
  readonly drained: Effect.Effect<void>
  /** For frames from the next on. */
  readonly setLimits: (limits: SocketLimits) => void
  readonly isOpen: () => boolean
  readonly bytesRead: () => number
  /** Bytes that the peer has not taken yet. */
  readonly bytesQueued: () => number
  /** Sends what is queued, says that no more follows, and waits for the peer to do the same, up to the grace. */
  readonly close: (grace: Duration.Input) => Effect.Effect<void>
  readonly destroy: (detail: string) => void
}

/** Takes over a connected socket, or one that is connecting: writes wait until it is. */
export const attach = (socket: Socket, limits: SocketLimits): FramedSocket => {
  // IPv4 as people write it, where the listener serves both families.
  const peer = socket.remoteAddress?.replace(/^::ffff:/, "") ?? "an unknown address"
  const reader = makeFrameReader(limits.frameBytes)
  let maxFrameBytes = limits.frameBytes
  let maxQueuedBytes = limits.queuedBytes ?? Number.POSITIVE_INFINITY
  let sink: FrameSink | undefined
  let wake: (() => void) | undefined
  let why: string | undefined
  /** Closed by this end: what arrives now is ignored. */
  let isDropped = false
  let isClosed = false

  const destroy = (detail: string): void => {
    why ??= detail
    isDropped = true
    socket.destroy()
  }

  const take = (): Frame | undefined => {
    if (isDropped) return undefined
    const taken = reader.take()
    if (Result.isSuccess(taken)) return taken.success
    destroy(taken.failure)
    return undefined
  }

  const call = (work: () => void): void => {
    const done = Result.try(work)
    if (Result.isFailure(done)) destroy(`a frame of it could not be handled (${String(done.failure)})`)
  }

  const drain = (to: FrameSink): void => {
    for (let frame = take(); frame !== undefined; frame = take()) {
      const taken = frame
      call(() => to.receive(taken))
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
    const told = why
    if (sink !== undefined) call(() => sink?.closed(told))
    wake?.()
  })

  const next = Effect.callback<Frame, SocketClosed>((resume) => {
    const tryTake = (): boolean => {
      const frame = take()
      if (frame !== undefined) resume(Effect.succeed(frame))
      else if (isClosed || isDropped) resume(Effect.fail(new SocketClosed({ detail: why! })))
      else return false
      return true
    }
    if (tryTake()) return
    const woken = () => {
      wake = undefined
      if (!tryTake()) wake = woken
    }
    wake = woken
    socket.resume()
    return Effect.sync(() => {
      if (wake === woken) wake = undefined
    })
  })

  const listen = (to: FrameSink): void => {
    sink = to
    drain(to)
    if (isClosed) call(() => to.closed(why!))
    else socket.resume()
  }

  const send = (type: number, ...parts: ReadonlyArray<Uint8Array>): void => {
    if (!socket.writable) return
    const length = parts.reduce((sum, part) => sum + part.byteLength, 0)
    if (length > maxFrameBytes) destroy(`it was due ${length} bytes at once, the limit is ${maxFrameBytes}`)
    else if (length <= onePiece) socket.write(encodeFrame(type, length, parts))
    else {
      socket.cork()
      socket.write(frameHeader(type, length))
      for (const part of parts) if (part.byteLength > 0) socket.write(part)
      socket.uncork()
    }
    if (socket.writableLength > maxQueuedBytes) destroy("it does not read what it is sent")
  }

  const close = (grace: Duration.Input) =>
    Effect.callback<void>((resume) => {
      if (socket.closed) return resume(Effect.void)
      // Nobody asks for frames any more, and the peer's end stands behind them.
      if (sink === undefined) isDropped = true
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
    drained: Effect.callback<void>((resume) => {
      if (!socket.writable || socket.writableLength === 0) return resume(Effect.void)
      const done = () => resume(Effect.void)
      socket.once("close", done)
      socket.write("", () => {
        socket.off("close", done)
        done()
      })
      return Effect.sync(() => void socket.off("close", done))
    }),
    setLimits: ({ frameBytes, queuedBytes }) => {
      maxFrameBytes = frameBytes
      reader.setLimit(frameBytes)
      maxQueuedBytes = queuedBytes ?? Number.POSITIVE_INFINITY
    },
    isOpen: () => !isDropped && !isClosed,
    bytesRead: () => socket.bytesRead,
    bytesQueued: () => socket.writableLength,
    close,
    destroy
  }
}

/** Where to connect or listen. */
export interface Address {
  readonly host: string
  readonly port: number
}

/** One attempt to connect. The connection is the caller's to destroy. */
export const dial = (address: Address, limits: SocketLimits): Effect.Effect<FramedSocket, SocketClosed> =>
  Effect.callback((resume) => {
    const socket = connect({ host: address.host, port: address.port })
    const onError = (error: NodeJS.ErrnoException) =>
      resume(Effect.fail(new SocketClosed({ detail: error.code ?? error.message })))
    socket.on("error", onError)
    socket.once("connect", () => {
      socket.off("error", onError)
      resume(Effect.succeed(attach(socket, limits)))
    })
    return Effect.sync(() => socket.destroy())
  })
