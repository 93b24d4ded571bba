// SPDX-License-Identifier: Apache-2.0
/**
 * Frames and their bodies: any cut of the stream, and bytes that nobody meant.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { type Frame, type FrameReader, frameHeader, makeFrameReader } from "../../src/group/Frames.ts"
import {
  decodeFailure,
  decodeResult,
  encodeArrive,
  encodeFailure,
  encodeResult,
  hello,
  makeArriveReader
} from "../../src/group/internal/frames.ts"
import { processGroupError } from "../../src/service/ProcessGroup.ts"

const upTo = (maximum: number) => Schema.Int.check(Schema.isBetween({ minimum: 0, maximum }))
const listOf = (maximum: number, maxLength: number) => Arbitrary.array(Arbitrary.schema(upTo(maximum)), { maxLength })
const join = (parts: ReadonlyArray<Uint8Array>) => new Uint8Array(Buffer.concat(parts))

const taken = (reader: FrameReader): Frame | undefined => Result.getOrThrow(reader.take())

describe("collective wire", () => {
  it.prop(
    "gives the same frames however the stream is cut",
    { lengths: listOf(40, 6), cuts: listOf(9, 30) },
    ({ lengths, cuts }) => {
      const sent = lengths.map((length, at) => ({ type: at + 1, body: new Uint8Array(length).fill(at + 1) }))
      const stream = join(sent.flatMap(({ type, body }) => [frameHeader(type, body.byteLength), body]))
      const reader = makeFrameReader(40)
      const received: Array<Frame> = []
      for (let at = 0, cut = 0; at < stream.byteLength; cut++) {
        const length = (cuts[cut % Math.max(1, cuts.length)] ?? 0) + 1
        reader.push(stream.slice(at, at + length))
        for (let frame = taken(reader); frame !== undefined; frame = taken(reader)) received.push(frame)
        at += length
      }
      assert.deepStrictEqual(received, sent)
    }
  )

  it("refuses a frame beyond the limit from its header alone, until the limit is raised", () => {
    const reader = makeFrameReader(10)
    reader.push(frameHeader(1, 10))
    assert.isUndefined(taken(reader))
    reader.push(new Uint8Array(10))
    assert.strictEqual(taken(reader)?.body.byteLength, 10)
    const refusing = makeFrameReader(10)
    refusing.push(frameHeader(1, 11))
    assert.isTrue(Result.isFailure(refusing.take()))
    reader.setLimit(11)
    reader.push(frameHeader(1, 11))
    assert.isUndefined(taken(reader))
  })

  it("carries bodies both ways", () => {
    const payload = Uint8Array.of(1, 2, 3)
    const arrival = {
      call: 2 ** 32 - 1,
      circle: { members: [4, 0, 2], lane: "/größe 1" },
      label: 'allGather "größe"',
      payload
    }
    assert.deepStrictEqual(Result.getOrThrow(makeArriveReader(2, 5)(join(encodeArrive(arrival)))), arrival)
    const refused = { ...arrival, payload: { refusal: "too long" } }
    assert.deepStrictEqual(Result.getOrThrow(makeArriveReader(2, 5)(join(encodeArrive(refused)))), refused)
    const payloads = [new Uint8Array(0), payload, new Uint8Array(1)]
    assert.deepStrictEqual(Result.getOrThrow(decodeResult(join(encodeResult(7, payloads)))), { call: 7, payloads })
    const error = processGroupError("PeerGone", [3], { detail: "d", remedy: "r", peer: 3 })
    const failure = Result.getOrThrow(decodeFailure(join(encodeFailure(9, error))))
    assert.deepStrictEqual([failure.call, failure.error], [9, error])
  })

  it("knows a member list again, and no other one for it", () => {
    const read = makeArriveReader(1, 4)
    const listOf = (...members: ReadonlyArray<number>) =>
      Result.map(
        read(join(encodeArrive({ call: 1, circle: { members, lane: "" }, label: "x", payload: new Uint8Array(1) }))),
        (body) => body.circle.members
      )
    const first = Result.getOrThrow(listOf(0, 1))
    assert.strictEqual(Result.getOrThrow(listOf(0, 1)), first)
    assert.deepStrictEqual(Result.getOrThrow(listOf(1, 0)), [1, 0])
    assert.deepStrictEqual(Result.getOrThrow(listOf(0, 1, 2)), [0, 1, 2])
    for (const wrong of [[0, 2], [1, 1], [1, 4], []]) assert.isTrue(Result.isFailure(listOf(...wrong)))
    assert.deepStrictEqual(Result.getOrThrow(listOf(0, 1, 2)), [0, 1, 2])
  })

  it("refuses a label and a refusal that are too long for people, before it makes text of them", () => {
    const read = makeArriveReader(0, 2)
    const arrival = {
      call: 1,
      circle: { members: [0, 1], lane: "" },
      label: "x".repeat(8192),
      payload: new Uint8Array(9000)
    }
    assert.isTrue(Result.isSuccess(read(join(encodeArrive(arrival)))))
    assert.isTrue(Result.isFailure(read(join(encodeArrive({ ...arrival, label: "x".repeat(8193) })))))
    const refusal = "x".repeat(8193)
    assert.isTrue(Result.isFailure(read(join(encodeArrive({ ...arrival, payload: { refusal } })))))
  })

  it.prop(
    "answers noise, cut bodies and changed bytes without throwing",
    { noise: listOf(255, 80), cut: upTo(200), flip: upTo(60) },
    ({ noise, cut, flip }) => {
      const arrival = join(
        encodeArrive({ call: 1, circle: { members: [0, 1, 2], lane: "x" }, label: "x", payload: new Uint8Array(5) })
      )
      const changed = arrival.map((byte, at) => (at === flip ? byte ^ 0xff : byte))
      const result = join(encodeResult(1, [new Uint8Array(3), new Uint8Array(9)]))
      for (const bytes of [Uint8Array.from(noise), arrival.slice(0, cut), changed, result.slice(0, cut)]) {
        const decoded = makeArriveReader(1, 3)(bytes)
        if (Result.isSuccess(decoded)) assert.include([...decoded.success.circle.members], 1)
        decodeResult(bytes)
        decodeFailure(bytes)
        hello.decode(bytes)
      }
      if (cut < result.byteLength) assert.isTrue(Result.isFailure(decodeResult(result.slice(0, cut))))
    }
  )
})
