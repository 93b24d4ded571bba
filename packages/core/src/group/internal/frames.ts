// SPDX-License-Identifier: Apache-2.0
/**
 * What the frames between the members of a TCP group hold, by type.
 *
 * Invariant: nothing read from a peer is trusted. Every decoder answers a `Result`; lists are checked against the bytes
 * that are there.
 */

import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type { Rank } from "../../base/Ids.ts"
import { Natural32 } from "../../base/Numbers.ts"
import { ProcessGroupError } from "../../service/ProcessGroup.ts"
import { Hex32, jsonBody, onePiece } from "../Frames.ts"
import type { Circle, Refusal } from "./hub.ts"

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
  goodbye: 21,
  /** A member does not go on; an arrival without a payload, in which the hub puts the sender's rank for the call. */
  alert: 22,
  /** For single members, outside of collectives: as an alert, with those it is for before the payload. */
  post: 23,
  /** To all members: a rank is gone. */
  gone: 24
} as const

/** Most bytes of a text that is for people: a label, or why a payload cannot travel. */
const mostTextBytes = 8192
/** Longest name of a lane. */
export const mostLaneBytes = 256
/** Circles that a reader knows again: a member has few in turn. */
const mostKnown = 4
/** Longest payload of a post. */
export const mostPostBytes = 4096

const viewOf = (bytes: Uint8Array): DataView => new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)

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
  readonly circle: Circle
  readonly label: string
  readonly payload: Uint8Array | Refusal
}

/** Body parts in order; the payload itself is not copied. */
export const encodeArrive = ({ call, circle, label, payload }: ArriveBody): ReadonlyArray<Uint8Array> => {
  const { members } = circle
  const lane = encoder.encode(circle.lane)
  const text = encoder.encode(label)
  const isRefused = "refusal" in payload
  const rest = isRefused ? encoder.encode(payload.refusal) : payload
  const head = u32s(call, isRefused ? 1 : 0, members.length, lane.byteLength, text.byteLength, ...members)
  return [head, lane, text, rest]
}

/**
 * Reads one member's arrivals. Checks the circle too: distinct ranks below `size`, the sender among them. A circle that was
 * read lately is the very same object, known without being checked again.
 */
export const makeArriveReader = (sender: Rank, size: number) => {
  /** The latest first. */
  const known: Array<{ readonly bytes: Uint8Array; readonly circle: Circle }> = []

  /** `bytes` are the members and the lane's name. */
  const circleOf = (bytes: Uint8Array, count: number): Circle | undefined => {
    for (const each of known) if (Buffer.compare(each.bytes, bytes) === 0) return each.circle
    const members = readU32s(bytes, 0, count)!
    const isProper = members.every((rank) => rank < size) && members.includes(sender)
    if (!isProper || new Set(members).size !== members.length) return undefined
    const circle = { members, lane: decoder.decode(bytes.subarray(4 * count)) }
    known.unshift({ bytes: bytes.slice(), circle })
    if (known.length > mostKnown) known.pop()
    return circle
  }

  return (body: Uint8Array): Result.Result<ArriveBody, string> => {
    const malformed = Result.fail("malformed arrival")
    const head = readU32s(body, 0, 5)
    if (head === undefined) return malformed
    const [call, flag, count, laneBytes, labelBytes] = head as [number, number, number, number, number]
    const labelAt = 20 + count * 4 + laneBytes
    const payloadAt = labelAt + labelBytes
    if (count > size || flag > 1 || payloadAt > body.byteLength || labelBytes > mostTextBytes) return malformed
    if (laneBytes > mostLaneBytes || (flag === 1 && body.byteLength - payloadAt > mostTextBytes)) return malformed
    const circle = circleOf(body.subarray(20, labelAt), count)
    if (circle === undefined) return Result.fail("arrival with a wrong member list")
    const label = decoder.decode(body.subarray(labelAt, payloadAt))
    const rest = body.subarray(payloadAt)
    return Result.succeed({ call, circle, label, payload: flag === 1 ? { refusal: decoder.decode(rest) } : rest })
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

/** What a post's frame holds behind its circle: the ranks that it is for, and what it says. */
export const encodePost = (to: ReadonlyArray<Rank>, payload: Uint8Array): Uint8Array =>
  Buffer.concat([u32s(to.length, ...to), payload])

/** Ranks that are no members get nothing; the caller passes them over. */
export const decodePost = (
  body: Uint8Array
): { readonly to: ReadonlyArray<Rank>; readonly payload: Uint8Array } | undefined => {
  const count = readU32s(body, 0, 1)?.[0]
  const to = count === undefined ? undefined : readU32s(body, 4, count)
  if (count === undefined || to === undefined) return undefined
  const payload = body.subarray(4 + 4 * count)
  return payload.byteLength > mostPostBytes ? undefined : { to, payload }
}

const Gone = Schema.Struct({ rank: Natural32, kind: Schema.Literals(["left", "lost"]), detail: Schema.String })
export const goneBody = jsonBody(Gone)
