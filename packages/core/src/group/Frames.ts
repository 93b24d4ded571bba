// SPDX-License-Identifier: Apache-2.0
/**
 * A byte stream as frames: u32 little-endian body length, u8 type, body. Groups of processes and the bus speak in them.
 *
 * Invariant: nothing read from a peer is trusted. A frame is refused before its body is allocated when it exceeds the
 * limit. A reader keeps no more than the chunks it was given and one body within the limit; it cuts one frame at a time,
 * so a limit that changes between two frames holds for the second.
 */
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"

/** What one end wrote at once. */
export interface Frame {
  readonly type: number
  readonly body: Uint8Array
}

/** Length and type. */
export const frameHeaderBytes = 5

/** Bodies up to this length are copied into one piece: one write of one buffer is what sockets are fastest at. */
export const onePiece = 16 * 1024

const viewOf = (bytes: Uint8Array): DataView => new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)

/** The header of a frame whose body has this length. */
export const frameHeader = (type: number, bodyBytes: number): Uint8Array => {
  const header = new Uint8Array(frameHeaderBytes)
  const view = viewOf(header)
  view.setUint32(0, bodyBytes, true)
  view.setUint8(4, type)
  return header
}

/** A whole frame in one buffer. */
export const encodeFrame = (type: number, bodyBytes: number, parts: ReadonlyArray<Uint8Array>): Uint8Array => {
  const frame = Buffer.allocUnsafe(frameHeaderBytes + bodyBytes)
  frame.writeUInt32LE(bodyBytes, 0)
  frame[4] = type
  let at = frameHeaderBytes
  for (const part of parts) {
    frame.set(part, at)
    at += part.byteLength
  }
  return frame
}

/** Frames of a stream as they end. */
export interface FrameReader {
  /** Keeps bytes that have come. */
  readonly push: (chunk: Uint8Array) => void
  /** The next whole frame, nothing where bytes are missing, or what is wrong; after a failure the stream is lost. */
  readonly take: () => Result.Result<Frame | undefined, string>
  /** Longest frame from now on; a longer one ends the connection. */
  readonly setLimit: (bytes: number) => void
}

/** Cuts a byte stream into frames. Bodies are memory of their own. */
export const makeFrameReader = (limit: number): FrameReader => {
  let maxBodyBytes = limit
  const chunks: Array<Uint8Array> = []
  /** Where the first chunk goes on. */
  let at = 0
  const header = new Uint8Array(frameHeaderBytes)
  let headerFilled = 0
  let body: Uint8Array<ArrayBuffer> | undefined
  let bodyFilled = 0

  /** Moves bytes behind `filled`; answers how many `into` has then. */
  const fill = (into: Uint8Array, filled: number): number => {
    let have = filled
    while (have < into.byteLength && chunks.length > 0) {
      const chunk = chunks[0]!
      const taken = Math.min(into.byteLength - have, chunk.byteLength - at)
      into.set(chunk.subarray(at, at + taken), have)
      have += taken
      at += taken
      if (at < chunk.byteLength) break
      chunks.shift()
      at = 0
    }
    return have
  }

  const allocate = (type: number, bytes: number): Result.Result<Uint8Array<ArrayBuffer>, string> =>
    bytes > maxBodyBytes
      ? Result.fail(`a frame of type ${type} announces ${bytes} bytes, the limit is ${maxBodyBytes}`)
      : Result.try({ try: () => new Uint8Array(bytes), catch: () => `no memory for a frame of ${bytes} bytes` })

  const take = (): Result.Result<Frame | undefined, string> => {
    if (body === undefined) {
      headerFilled = fill(header, headerFilled)
      if (headerFilled < frameHeaderBytes) return Result.succeed(undefined)
      const allocated = allocate(header[4]!, viewOf(header).getUint32(0, true))
      if (Result.isFailure(allocated)) return Result.fail(allocated.failure)
      body = allocated.success
      bodyFilled = 0
    }
    bodyFilled = fill(body, bodyFilled)
    if (bodyFilled < body.byteLength) return Result.succeed(undefined)
    const frame = { type: header[4]!, body }
    headerFilled = 0
    body = undefined
    return Result.succeed(frame)
  }

  return {
    push: (chunk) => {
      if (chunk.byteLength > 0) chunks.push(chunk)
    },
    take,
    setLimit: (bytes) => {
      maxBodyBytes = bytes
    }
  }
}

const encoder = new TextEncoder()
const decoder = new TextDecoder()

/** JSON bodies, checked against a schema. */
export const jsonBody = <T, E>(schema: Schema.Codec<T, E>) => {
  const codec = Schema.fromJsonString(schema)
  const encode = Schema.encodeUnknownResult(codec)
  const decode = Schema.decodeUnknownResult(codec)
  return {
    // Encoding fails only for a value that the type excludes; its receiver then reports a malformed message.
    encode: (value: T): Uint8Array => encoder.encode(Result.getOrElse(encode(value), () => "")),
    // The engine throws for a text that is too long.
    decode: (body: Uint8Array): Result.Result<T, string> =>
      Result.mapError(
        Result.flatMap(
          Result.try(() => decoder.decode(body)),
          decode
        ),
        () => "a malformed message"
      )
  }
}

/** 32 random bytes or a SHA-256 code, in hexadecimal. */
export const Hex32 = Schema.String.check(Schema.isPattern(/^[0-9a-f]{64}$/))
