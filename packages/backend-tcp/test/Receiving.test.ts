// SPDX-License-Identifier: Apache-2.0
/**
 * The receiving end against senders of plain sockets: admission, chunks that come in pieces, twice, on the wrong lane or too
 * late, and senders that break the protocol.
 */
import { randomBytes } from "node:crypto"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import {
  addFlow,
  addPeer,
  chunkBytes,
  dialWire,
  encodeFrame,
  greet,
  hostEngine,
  kinds,
  makeIdentity,
  openEndpoint,
  openLane,
  startFlows,
  untilMoved,
  type Wire
} from "./support.ts"

const [own, peer] = [makeIdentity(0), makeIdentity(1)]

/** An endpoint that has begun to receive so many bytes of program 7, and the first lane of its peer. */
const receiving = (byteLength: number, settings: { readonly deadline?: number } = {}) =>
  Effect.gen(function* () {
    const made = yield* openEndpoint(own, settings)
    const tensor = yield* made.engine.allocate("uint8", [byteLength])
    const flow = addFlow(made, addPeer(made.addon, made.endpoint, peer, 1), 7, "recv", [tensor])
    const lane = yield* Effect.promise(() => openLane(made.port, peer, own))
    const { job, ended } = startFlows(made, [flow])
    const ready = yield* Effect.promise(lane.frame)
    assert.deepStrictEqual(ready, { kind: kinds.ready, program: 7, run: 1, chunk: 0, length: 0 })
    return { ...made, bytes: tensor.storage.bytes!, flow, lane, job, ended }
  })

const chunkOf = (run: number, chunk: number, bytes: Buffer): Buffer =>
  Buffer.concat([encodeFrame({ kind: kinds.chunk, program: 7, run, chunk, length: bytes.length }), bytes])

const answer = (wire: Wire) =>
  Effect.map(Effect.promise(wire.frame), (frame) =>
    frame === undefined ? "ended" : [frame.kind, frame.run, frame.chunk]
  )

const live = (title: string, test: Effect.Effect<unknown, unknown, never>) =>
  it.live(title, () => Effect.asVoid(test), 30_000)

describe("a listener", () => {
  live(
    "admits a peer that proves the key, and proves it back",
    Effect.gen(function* () {
      const { port } = yield* openEndpoint(own)
      const wire = yield* Effect.promise(() => dialWire(port))
      assert.deepStrictEqual(yield* Effect.promise(() => greet(wire, peer, own)), { verdict: 1, isProven: true })
    }).pipe(Effect.scoped, Effect.provide(hostEngine))
  )

  for (const [what, verdict, change] of [
    ["a proof of another key", 2, (hello: Buffer) => void hello.writeUInt8(hello[111]! ^ 1, 111)],
    ["a rank that the proof does not cover", 2, (hello: Buffer) => void hello.writeUInt8(9, 8)],
    ["a hello for another endpoint", 3, (hello: Buffer) => void hello.writeUInt8(hello[16]! ^ 1, 16)],
    ["another protocol", 4, (hello: Buffer) => void hello.write("GET / HT", 0)]
  ] as const) {
    live(
      `refuses ${what}, proves nothing and hangs up`,
      Effect.gen(function* () {
        const { port } = yield* openEndpoint(own)
        const wire = yield* Effect.promise(() => dialWire(port))
        const judged = yield* Effect.promise(() => greet(wire, peer, own, change))
        assert.deepStrictEqual(judged, { verdict, isProven: false })
        yield* Effect.promise(() => wire.ended)
      }).pipe(Effect.scoped, Effect.provide(hostEngine))
    )
  }

  live(
    "hangs up on strangers that say nothing, at the deadline",
    Effect.gen(function* () {
      const { port } = yield* openEndpoint(own, { deadline: 300 })
      const wire = yield* Effect.promise(() => dialWire(port))
      wire.write(randomBytes(50))
      yield* Effect.promise(() => wire.ended)
    }).pipe(Effect.scoped, Effect.provide(hostEngine))
  )

  live(
    "lets a peer in among 500 strangers, of whom the oldest make room",
    Effect.gen(function* () {
      const { port } = yield* openEndpoint(own)
      const strangers = yield* Effect.promise(() => Promise.all(Array.from({ length: 500 }, () => dialWire(port))))
      const lane = yield* Effect.promise(() => openLane(port, peer, own))
      assert.isFalse(lane.socket.destroyed)
      yield* Effect.promise(() => Promise.all(strangers.slice(0, 436).map(({ ended }) => ended)))
      for (const { socket } of strangers) socket.destroy()
    }).pipe(Effect.scoped, Effect.provide(hostEngine))
  )
})

describe("a receiver", () => {
  live(
    "takes chunks in any order and in pieces, and confirms each when it is in place",
    Effect.gen(function* () {
      const sent = randomBytes(2 * chunkBytes + 77)
      const { bytes, lane, ended } = yield* receiving(sent.length)
      const last = chunkOf(1, 2, sent.subarray(2 * chunkBytes))
      for (const byte of last) lane.write(Buffer.of(byte))
      assert.deepStrictEqual(yield* answer(lane), [kinds.have, 1, 2])
      assert.isTrue(sent.subarray(2 * chunkBytes).equals(bytes.subarray(2 * chunkBytes)))
      lane.write(chunkOf(1, 1, sent.subarray(chunkBytes, 2 * chunkBytes)), chunkOf(1, 0, sent.subarray(0, chunkBytes)))
      assert.deepStrictEqual(yield* answer(lane), [kinds.have, 1, 1])
      assert.deepStrictEqual(yield* answer(lane), [kinds.have, 1, 0])
      assert.strictEqual(yield* Effect.promise(() => ended), "Ok")
      assert.isTrue(sent.equals(bytes))
    }).pipe(Effect.scoped, Effect.provide(hostEngine))
  )

  live(
    "writes a chunk once, however often it comes, and confirms it each time",
    Effect.gen(function* () {
      const sent = randomBytes(chunkBytes + 5)
      const { bytes, lane, ended } = yield* receiving(sent.length)
      const other = Buffer.alloc(chunkBytes, 0xee)
      lane.write(chunkOf(1, 0, sent.subarray(0, chunkBytes)), chunkOf(1, 0, other))
      for (const _ of [1, 2]) assert.deepStrictEqual(yield* answer(lane), [kinds.have, 1, 0])
      lane.write(chunkOf(1, 1, sent.subarray(chunkBytes)), chunkOf(1, 0, other))
      for (const chunk of [1, 0]) assert.deepStrictEqual(yield* answer(lane), [kinds.have, 1, chunk])
      assert.strictEqual(yield* Effect.promise(() => ended), "Ok")
      assert.isTrue(sent.equals(bytes))
    }).pipe(Effect.scoped, Effect.provide(hostEngine))
  )

  live(
    "takes a chunk again whose lane broke within it, and says again what it waits for",
    Effect.gen(function* () {
      const sent = randomBytes(chunkBytes)
      const { bytes, lane, ended, port } = yield* receiving(sent.length)
      lane.write(chunkOf(1, 0, sent).subarray(0, 500_000))
      lane.socket.end()
      const second = yield* Effect.promise(() => openLane(port, peer, own))
      assert.deepStrictEqual(yield* answer(second), [kinds.ready, 1, 0])
      second.write(chunkOf(1, 0, sent))
      assert.deepStrictEqual(yield* answer(second), [kinds.have, 1, 0])
      assert.strictEqual(yield* Effect.promise(() => ended), "Ok")
      assert.isTrue(sent.equals(bytes))
    }).pipe(Effect.scoped, Effect.provide(hostEngine))
  )

  live(
    "gives up a lane that stands within a chunk when the chunk comes on another",
    Effect.gen(function* () {
      const sent = randomBytes(chunkBytes)
      const { bytes, lane, ended, port } = yield* receiving(sent.length)
      lane.write(chunkOf(1, 0, sent).subarray(0, 500_000))
      const second = yield* Effect.promise(() => openLane(port, peer, own))
      second.write(chunkOf(1, 0, sent))
      assert.strictEqual(yield* Effect.promise(() => ended), "Ok")
      assert.isTrue(sent.equals(bytes))
    }).pipe(Effect.scoped, Effect.provide(hostEngine))
  )

  live(
    "keeps its memory from runs that it withdrew, and takes the next one",
    Effect.gen(function* () {
      const sent = randomBytes(chunkBytes)
      const { bytes, lane, job, ended, flow, ...made } = yield* receiving(sent.length)
      lane.write(chunkOf(1, 0, sent).subarray(0, 5000))
      yield* untilMoved(job, 4000)
      yield* job.cancel
      assert.match(yield* Effect.promise(() => ended), /^Cancelled/)
      bytes.fill(3)
      lane.write(chunkOf(1, 0, sent).subarray(5000))
      assert.deepStrictEqual(yield* answer(lane), [kinds.withdrawn, 1, 0])
      assert.deepStrictEqual(yield* answer(lane), [kinds.withdrawn, 1, 0])
      assert.isTrue(bytes.every((byte) => byte === 3))
      const again = startFlows(made, [flow])
      assert.deepStrictEqual(yield* answer(lane), [kinds.ready, 2, 0])
      lane.write(chunkOf(2, 0, sent))
      assert.strictEqual(yield* Effect.promise(() => again.ended), "Ok")
      assert.isTrue(sent.equals(bytes))
    }).pipe(Effect.scoped, Effect.provide(hostEngine))
  )

  live(
    "does not touch memory any more when closing the flow has returned",
    Effect.gen(function* () {
      const sent = randomBytes(chunkBytes)
      const { addon, endpoint, bytes, lane, job, ended, flow } = yield* receiving(sent.length)
      lane.write(chunkOf(1, 0, sent).subarray(0, 600_000))
      yield* untilMoved(job, 500_000)
      addon.closeFlow(endpoint, flow)
      bytes.fill(9)
      assert.match(yield* Effect.promise(() => ended), /^InvalidHandle/)
      lane.write(chunkOf(1, 0, sent).subarray(600_000))
      assert.deepStrictEqual(yield* answer(lane), [kinds.withdrawn, 1, 0])
      assert.deepStrictEqual(yield* answer(lane), [kinds.withdrawn, 1, 0])
      assert.isTrue(bytes.every((byte) => byte === 9))
    }).pipe(Effect.scoped, Effect.provide(hostEngine))
  )

  for (const [what, frame] of [
    ["a frame of no kind", { kind: 99, program: 7, run: 1, chunk: 0, length: 10 }],
    ["an answer", { kind: kinds.have, program: 7, run: 1, chunk: 0, length: 0 }],
    ["a chunk of no bytes", { kind: kinds.chunk, program: 7, run: 1, chunk: 0, length: 0 }],
    ["a chunk that is too short", { kind: kinds.chunk, program: 7, run: 1, chunk: 0, length: 10 }],
    ["a chunk beyond the last", { kind: kinds.chunk, program: 7, run: 1, chunk: 2, length: chunkBytes }],
    ["a chunk of any number", { kind: kinds.chunk, program: 7, run: 1, chunk: Number.MAX_SAFE_INTEGER, length: 5 }],
    ["a chunk that is too long", { kind: kinds.chunk, program: 8, run: 1, chunk: 0, length: 2 ** 40 }]
  ] as const) {
    live(
      `names the peer that sends ${what}, and hangs up`,
      Effect.gen(function* () {
        const { bytes, lane, ended } = yield* receiving(2 * chunkBytes)
        bytes.fill(5)
        lane.write(encodeFrame(frame), Buffer.alloc(1000, 0xff))
        yield* Effect.promise(() => lane.ended)
        assert.match(yield* Effect.promise(() => ended), /Rank 1 broke the protocol/)
        assert.isTrue(bytes.every((byte) => byte === 5))
      }).pipe(Effect.scoped, Effect.provide(hostEngine))
    )
  }

  live(
    "reads chunks of programs that it does not have to nowhere",
    Effect.gen(function* () {
      const { lane } = yield* receiving(10)
      const frame = { kind: kinds.chunk, program: 8, run: 4, chunk: 3, length: 5000 }
      lane.write(encodeFrame(frame), Buffer.alloc(5000))
      assert.deepStrictEqual(yield* answer(lane), [kinds.withdrawn, 4, 3])
    }).pipe(Effect.scoped, Effect.provide(hostEngine))
  )

  live(
    "lives through random bytes of a peer that was admitted",
    Effect.gen(function* () {
      const { port } = yield* receiving(3 * chunkBytes)
      for (let round = 0; round < 40; round++) {
        const wire = yield* Effect.promise(() => openLane(port, peer, own))
        // Half of them begin like a chunk, so that they get further.
        const begin =
          round % 2 === 0
            ? encodeFrame({ kind: kinds.chunk, program: 7, run: 1, chunk: round % 4, length: round })
            : Buffer.alloc(0)
        wire.write(begin, randomBytes(1 + ((round * 97) % 3000)))
        wire.socket.end()
        yield* Effect.promise(() => wire.ended)
      }
      const lane = yield* Effect.promise(() => openLane(port, peer, own))
      assert.isFalse(lane.socket.destroyed)
    }).pipe(Effect.scoped, Effect.provide(hostEngine))
  )
})
