// SPDX-License-Identifier: Apache-2.0
/**
 * Frames between the members of a TCP group: u32 little-endian body length, u8 type, body.
 *
 * Invariant: nothing read from a peer is trusted. A frame is refused before its body is allocated when it exceeds the
 * limit, and every decoder answers a `Result`; lists are checked against the bytes that are there.
 */

import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type { Rank } from "../../base/Ids.ts"
import { Natural32 } from "../../base/Numbers.ts"
import { ProcessGroupError } from "../../service/ProcessGroup.ts"
import type { Refusal } from "./hub.ts"

/** Handshake frames carry JSON, the others binary bodies. */
export const frameType = {
  hello: 1,
  challenge: 2,
  proof: 3,
  welcome: 4,
  ready: 5,
  reject: 6,
  arrive: 16,
  result: 17,
  failure: 18,
  /** A member gets on with its work. */
  progress: 19,
  /** The hub is alive; for members that wait. */
  beat: 20,
  /** The sender leaves in order. The hub's carries the first failure of a collective, if there was one: why it leaves. */
  goodbye: 21
} as const

/** Longest body before a peer has proved that it knows the token. */
export const handshakeLimit = 4096

export interface Frame {
  readonly type: number
  readonly body: Uint8Array
}

const headerBytes = 5

/** Bodies up to this length are copied into one piece: one write of one buffer is what sockets are fastest at. */
export const onePiece = 16 * 1024

const viewOf = (bytes: Uint8Array): DataView => new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)

/** The header of a frame whose body has this length. */
export const frameHeader = (type: number, bodyBytes: number): Uint8Array => {
  const header = new Uint8Array(headerBytes)
  const view = viewOf(header)
  view.setUint32(0, bodyBytes, true)
  view.setUint8(4, type)
  return header
}

/** A whole frame in one buffer. */
export const encodeFrame = (type: number, bodyBytes: number, parts: ReadonlyArray<Uint8Array>): Uint8Array => {
  const frame = Buffer.allocUnsafe(headerBytes + bodyBytes)
  frame.writeUInt32LE(bodyBytes, 0)
  frame[4] = type
  let at = headerBytes
  for (const part of parts) {
    frame.set(part, at)
    at += part.byteLength
  }
  return frame
}

export interface FrameReader {
  /** Frames that end in this chunk, or what is wrong; after a failure the stream is lost. */
  readonly push: (chunk: Uint8Array) => Result.Result<ReadonlyArray<Frame>, string>
  readonly setLimit: (bytes: number) => void
}

/** Cuts a byte stream into frames. Bodies are memory of their own. */
export const makeFrameReader = (limit: number): FrameReader => {
  let maxBodyBytes = limit
  const header = new Uint8Array(headerBytes)
  let headerFilled = 0
  let body = new Uint8Array(0)
  let bodyFilled = 0

  const allocate = (type: number, bytes: number): Result.Result<Uint8Array<ArrayBuffer>, string> =>
    bytes > maxBodyBytes
      ? Result.fail(`a frame of type ${type} announces ${bytes} bytes, the limit is ${maxBodyBytes}`)
      : Result.try({ try: () => new Uint8Array(bytes), catch: () => `no memory for a frame of ${bytes} bytes` })

  const push = (chunk: Uint8Array): Result.Result<ReadonlyArray<Frame>, string> => {
    const frames: Array<Frame> = []
    let at = 0
    while (at < chunk.byteLength) {
      if (headerFilled < headerBytes) {
        const taken = Math.min(headerBytes - headerFilled, chunk.byteLength - at)
        header.set(chunk.subarray(at, at + taken), headerFilled)
        headerFilled += taken
        at += taken
        if (headerFilled < headerBytes) break
        const allocated = allocate(header[4]!, viewOf(header).getUint32(0, true))
        if (Result.isFailure(allocated)) return Result.fail(allocated.failure)
        body = allocated.success
        bodyFilled = 0
      }
      const taken = Math.min(body.byteLength - bodyFilled, chunk.byteLength - at)
      body.set(chunk.subarray(at, at + taken), bodyFilled)
      bodyFilled += taken
      at += taken
      if (bodyFilled === body.byteLength) {
        frames.push({ type: header[4]!, body })
        headerFilled = 0
      }
    }
    return Result.succeed(frames)
  }

  return {
    push,
    setLimit: (bytes) => {
      maxBodyBytes = bytes
    }
  }
}

const encoder = new TextEncoder()
const decoder = new TextDecoder()

const u32s = (...values: ReadonlyArray<number>): Uint8Array => {
  const bytes = new Uint8Array(values.length * 4)
  const view = viewOf(bytes)
  values.forEach((value, at) => {
    view.setUint32(at * 4, value, true)
  })
  return bytes
}

/** `count` numbers from byte `at`; undefined where the body is shorter. */
const readU32s = (body: Uint8Array, at: number, count: number): Array<number> | undefined => {
  if (at + count * 4 > body.byteLength) return undefined
  const view = viewOf(body)
  return Array.from({ length: count }, (_, index) => view.getUint32(at + index * 4, true))
}

export interface ArriveBody {
  readonly call: number
  readonly members: ReadonlyArray<Rank>
  readonly label: string
  readonly payload: Uint8Array | Refusal
}

/** Body parts in order; the payload itself is not copied. */
export const encodeArrive = ({ call, members, label, payload }: ArriveBody): ReadonlyArray<Uint8Array> => {
  const text = encoder.encode(label)
  const isRefused = "refusal" in payload
  const rest = isRefused ? encoder.encode(payload.refusal) : payload
  return [u32s(call, isRefused ? 1 : 0, members.length, text.byteLength, ...members), text, rest]
}

/**
 * Reads one member's arrivals. Checks the member list too: distinct ranks below `size`, the sender among them. A list that
 * says what the last one said is the very same array, known without being checked again.
 */
export const makeArriveReader = (sender: Rank, size: number) => {
  let known: { readonly bytes: Uint8Array; readonly members: ReadonlyArray<Rank> } | undefined

  const membersOf = (bytes: Uint8Array): ReadonlyArray<Rank> | undefined => {
    if (known !== undefined && Buffer.compare(known.bytes, bytes) === 0) return known.members
    const members = readU32s(bytes, 0, bytes.byteLength / 4)!
    const isProper = members.every((rank) => rank < size) && members.includes(sender)
    if (!isProper || new Set(members).size !== members.length) return undefined
    known = { bytes: bytes.slice(), members }
    return members
  }

  return (body: Uint8Array): Result.Result<ArriveBody, string> => {
    const malformed = Result.fail("malformed arrival")
    const head = readU32s(body, 0, 4)
    if (head === undefined) return malformed
    const [call, flag, count, labelBytes] = head as [number, number, number, number]
    const labelAt = 16 + count * 4
    const payloadAt = labelAt + labelBytes
    if (count > size || flag > 1 || payloadAt > body.byteLength) return malformed
    const members = membersOf(body.subarray(16, labelAt))
    if (members === undefined) return Result.fail("arrival with a wrong member list")
    const label = decoder.decode(body.subarray(labelAt, payloadAt))
    const rest = body.subarray(payloadAt)
    return Result.succeed({ call, members, label, payload: flag === 1 ? { refusal: decoder.decode(rest) } : rest })
  }
}

/** One result for many receivers: what is the same for all is made once. */
export const resultEncoder = (payloads: ReadonlyArray<Uint8Array>): ((call: number) => ReadonlyArray<Uint8Array>) => {
  const lengths = u32s(payloads.length, ...payloads.map(({ byteLength }) => byteLength))
  const total = payloads.reduce((sum, { byteLength }) => sum + byteLength, 0)
  const rest = total <= onePiece ? [Buffer.concat([lengths, ...payloads])] : [lengths, ...payloads]
  return (call) => [u32s(call), ...rest]
}

export const encodeResult = (call: number, payloads: ReadonlyArray<Uint8Array>): ReadonlyArray<Uint8Array> =>
  resultEncoder(payloads)(call)

/** Bytes that `encodeResult` adds to the payloads. */
export const resultOverhead = (members: number): number => 8 + 4 * members

export interface ResultBody {
  readonly call: number
  readonly payloads: ReadonlyArray<Uint8Array>
}

/** Payloads are copies, so that each starts at an aligned address. */
export const decodeResult = (body: Uint8Array): Result.Result<ResultBody, string> => {
  const malformed = Result.fail("malformed result")
  const head = readU32s(body, 0, 2)
  if (head === undefined) return malformed
  const [call, count] = head as [number, number]
  const lengths = readU32s(body, 8, count)
  if (lengths === undefined) return malformed
  let at = resultOverhead(count)
  if (lengths.reduce((sum, length) => sum + length, at) !== body.byteLength) return malformed
  const payloads = lengths.map((length) => {
    const payload = body.slice(at, at + length)
    at += length
    return payload
  })
  return Result.succeed({ call, payloads })
}

/** JSON bodies, checked against a schema. */
const jsonBody = <T, E>(schema: Schema.Codec<T, E>) => {
  const codec = Schema.fromJsonString(schema)
  const encode = Schema.encodeUnknownResult(codec)
  const decode = Schema.decodeUnknownResult(codec)
  return {
    // Encoding fails only for a value that the type excludes; its receiver then reports a malformed frame.
    encode: (value: T): Uint8Array => encoder.encode(Result.getOrElse(encode(value), () => "")),
    decode: (body: Uint8Array): Result.Result<T, string> =>
      Result.mapError(decode(decoder.decode(body)), () => "malformed message")
  }
}

/** 32 random bytes or a SHA-256 code, in hexadecimal. */
const Hex32 = Schema.String.check(Schema.isPattern(/^[0-9a-f]{64}$/))

export const Hello = Schema.Struct({
  protocol: Schema.String,
  version: Natural32,
  size: Natural32,
  rank: Natural32,
  nonce: Hex32
})
export type Hello = typeof Hello.Type

export const hello = jsonBody(Hello)
export const challenge = jsonBody(Schema.Struct({ nonce: Hex32 }))
export const proof = jsonBody(Schema.Struct({ code: Hex32 }))
export const failureText = jsonBody(ProcessGroupError)

export const encodeFailure = (call: number, error: ProcessGroupError): ReadonlyArray<Uint8Array> => [
  u32s(call),
  failureText.encode(error)
]

export interface FailureBody {
  readonly call: number
  readonly error: ProcessGroupError
}

export const decodeFailure = (body: Uint8Array): Result.Result<FailureBody, string> => {
  const head = readU32s(body, 0, 1)
  if (head === undefined) return Result.fail("malformed failure")
  return Result.map(failureText.decode(body.subarray(4)), (error) => ({ call: head[0]!, error }))
}
