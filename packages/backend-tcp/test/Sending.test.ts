// SPDX-License-Identifier: Apache-2.0
/**
 * The sending end against receivers of plain sockets: that refuse, vanish, confirm late or never, begin again, or freeze.
 */
import { assert, describe, it } from "@effect/vitest"
import { runJob } from "@tensorferry/native/NativeJob"
import * as Effect from "effect/Effect"
import {
  addFlow,
  addPeer,
  chunkBytes,
  encodeFrame,
  hostEngine,
  kinds,
  listenWire,
  makeIdentity,
  openEndpoint,
  startFlows,
  untilMoved,
  type Wire
} from "./support.ts"

const [own, peer] = [makeIdentity(0), makeIdentity(1)]

/** An endpoint that has begun to send so many bytes of program 3 to a receiver that the test plays. */
const sending = (byteLength: number, settings: { readonly deadline?: number; readonly lanes?: number } = {}) =>
  Effect.gen(function* () {
    const made = yield* openEndpoint(own, settings)
    const receiver = yield* listenWire(peer)
    const tensor = yield* made.engine.allocate("uint8", [byteLength])
    const bytes = tensor.storage.bytes!
    for (let at = 0; at < byteLength; at++) bytes[at] = (at * 31 + (at >> 12)) & 255
    const flow = addFlow(made, addPeer(made.addon, made.endpoint, peer, receiver.port), 3, "send", [tensor])
    const { job, ended } = startFlows(made, [flow])
    const lane = yield* Effect.promise(receiver.lane)
    return { ...made, receiver, bytes, flow, lane, job, ended }
  })

const say = (lane: Wire, kind: number, run: number, chunk = 0) =>
  lane.write(encodeFrame({ kind, program: 3, run, chunk, length: 0 }))

/** The next chunk of a lane: its number and bytes. */
const take = (lane: Wire, run: number) =>
  Effect.promise(async () => {
    const frame = await lane.frame()
    if (frame === undefined) return undefined
    assert.deepStrictEqual([frame.kind, frame.program, frame.run], [kinds.chunk, 3, run])
    const bytes = await lane.read(frame.length)
    return bytes === undefined ? undefined : { chunk: frame.chunk, bytes }
  })

const live = (title: string, test: Effect.Effect<unknown, unknown, never>) =>
  it.live(title, () => Effect.asVoid(test), 30_000)

describe("a sender", () => {
  live(
    "sends nothing before the receiver is ready, and is done when all is confirmed",
    Effect.gen(function* () {
      const { lane, bytes, job, ended } = yield* sending(chunkBytes + 100, { lanes: 1 })
      say(lane, kinds.ready, 1)
      const first = yield* take(lane, 1)
      const second = yield* take(lane, 1)
      assert.deepStrictEqual([first?.chunk, second?.chunk], [0, 1])
      assert.isTrue(Buffer.concat([first!.bytes, second!.bytes]).equals(bytes))
      say(lane, kinds.have, 1, 1)
      assert.isFalse(job.isComplete())
      say(lane, kinds.have, 1, 0)
      assert.strictEqual(yield* Effect.promise(() => ended), "Ok")
      assert.strictEqual(job.movedBytes(), bytes.length)
    }).pipe(Effect.scoped, Effect.provide(hostEngine))
  )

  live(
    "sends chunks again that a broken lane did not confirm, and no others",
    Effect.gen(function* () {
      const { lane, bytes, receiver, ended } = yield* sending(3 * chunkBytes, { lanes: 1 })
      say(lane, kinds.ready, 1)
      for (const _ of [0, 1]) yield* take(lane, 1)
      say(lane, kinds.have, 1, 1)
      // The third chunk is on its way, so that the confirmation has been read when it has come.
      yield* take(lane, 1)
      say(lane, kinds.ready, 1)
      lane.socket.end()
      const next = yield* Effect.promise(receiver.lane)
      say(next, kinds.ready, 1)
      const again = [yield* take(next, 1), yield* take(next, 1)]
      assert.deepStrictEqual(
        again.map((each) => each?.chunk),
        [0, 2]
      )
      for (const each of again) {
        assert.isTrue(each!.bytes.equals(bytes.subarray(each!.chunk * chunkBytes, (each!.chunk + 1) * chunkBytes)))
        say(next, kinds.have, 1, each!.chunk)
      }
      assert.strictEqual(yield* Effect.promise(() => ended), "Ok")
    }).pipe(Effect.scoped, Effect.provide(hostEngine))
  )

  live(
    "takes the receiver's next run for the confirmation of the one before",
    Effect.gen(function* () {
      const { lane, flow, ended, ...made } = yield* sending(1000, { lanes: 1 })
      say(lane, kinds.ready, 1)
      yield* take(lane, 1)
      say(lane, kinds.ready, 2, 1)
      assert.strictEqual(yield* Effect.promise(() => ended), "Ok")
      const again = startFlows(made, [flow])
      yield* take(lane, 2)
      say(lane, kinds.have, 2)
      assert.strictEqual(yield* Effect.promise(() => again.ended), "Ok")
    }).pipe(Effect.scoped, Effect.provide(hostEngine))
  )

  live(
    "sends all again to a receiver that began again",
    Effect.gen(function* () {
      const { lane, ended } = yield* sending(1000, { lanes: 1 })
      say(lane, kinds.ready, 1)
      yield* take(lane, 1)
      say(lane, kinds.withdrawn, 1)
      say(lane, kinds.ready, 2)
      yield* take(lane, 2)
      say(lane, kinds.have, 2)
      assert.strictEqual(yield* Effect.promise(() => ended), "Ok")
    }).pipe(Effect.scoped, Effect.provide(hostEngine))
  )

  live(
    "reads its memory no more when a cancel within a chunk has ended",
    Effect.gen(function* () {
      const { lane, job, ended, receiver, flow, bytes, ...made } = yield* sending(64 * chunkBytes, { lanes: 1 })
      lane.socket.pause()
      say(lane, kinds.ready, 1)
      yield* untilMoved(job, 1)
      yield* job.cancel
      assert.match(yield* Effect.promise(() => ended), /^Cancelled/)
      const before = Buffer.from(bytes)
      bytes.fill(77)
      lane.socket.resume()
      let taken = yield* take(lane, 1)
      while (taken !== undefined) {
        assert.isTrue(taken.bytes.equals(before.subarray(taken.chunk * chunkBytes, (taken.chunk + 1) * chunkBytes)))
        taken = yield* take(lane, 1)
      }
      const again = startFlows(made, [flow])
      const next = yield* Effect.promise(receiver.lane)
      say(next, kinds.ready, 2)
      const first = yield* take(next, 2)
      assert.isTrue(first!.bytes.every((byte) => byte === 77))
      yield* again.job.cancel
    }).pipe(Effect.scoped, Effect.provide(hostEngine))
  )

  live(
    "learns at once that a peer has ended",
    Effect.gen(function* () {
      const { lane, ended, receiver } = yield* sending(1000, { deadline: 60_000 })
      say(lane, kinds.ready, 1)
      const begun = performance.now()
      receiver.close()
      assert.match(yield* Effect.promise(() => ended), /^PeerGone: Rank 1 has ended or closed its driver: 127/)
      assert.isBelow(performance.now() - begun, 3000)
    }).pipe(Effect.scoped, Effect.provide(hostEngine))
  )

  live(
    "fails at the deadline, naming the peer, where nothing is confirmed",
    Effect.gen(function* () {
      const { lane, ended } = yield* sending(64 * chunkBytes, { deadline: 800, lanes: 1 })
      say(lane, kinds.ready, 1)
      lane.socket.pause()
      assert.match(yield* Effect.promise(() => ended), /^DeadlineExceeded: Rank 1 has not answered for 0.8 s/)
    }).pipe(Effect.scoped, Effect.provide(hostEngine))
  )

  live(
    "names a listener that does not know the token",
    Effect.gen(function* () {
      const { addon, endpoint } = yield* openEndpoint(own)
      const receiver = yield* listenWire(peer)
      const other = addPeer(addon, endpoint, { ...peer, key: own.key }, receiver.port)
      const failure = yield* Effect.flip(
        runJob<undefined>(
          addon,
          (done) => addon.connectPeer(endpoint, other, done),
          () => {}
        )
      )
      assert.strictEqual(failure.code, "PermissionDenied")
      assert.match(failure.detail, /Rank 1 has another token: 127.0.0.1/)
      assert.strictEqual(failure.item, 1)
    }).pipe(Effect.scoped, Effect.provide(hostEngine))
  )

  for (const [what, frame] of [
    ["a chunk", { kind: kinds.chunk, program: 3, run: 1, chunk: 0, length: 0 }],
    ["an answer with bytes behind it", { kind: kinds.have, program: 3, run: 1, chunk: 0, length: 9 }],
    ["a frame of kind 0", { kind: 0, program: 3, run: 1, chunk: 0, length: 0 }],
    ["a frame of no kind", { kind: 0x7fffffff, program: 3, run: 1, chunk: 0, length: 0 }]
  ] as const) {
    live(
      `names the peer that answers with ${what}`,
      Effect.gen(function* () {
        const { lane, ended } = yield* sending(1000, { lanes: 1 })
        lane.write(encodeFrame(frame))
        assert.match(yield* Effect.promise(() => ended), /Rank 1 broke the protocol/)
      }).pipe(Effect.scoped, Effect.provide(hostEngine))
    )
  }

  live(
    "passes by confirmations of what it did not send",
    Effect.gen(function* () {
      const { lane, ended, job } = yield* sending(1000, { lanes: 1 })
      for (const [run, chunk] of [
        [1, 0],
        [9, 0],
        [1, 2 ** 50]
      ] as const)
        say(lane, kinds.have, run, chunk)
      say(lane, kinds.ready, 1)
      yield* take(lane, 1)
      say(lane, kinds.have, 1, 1)
      assert.isFalse(job.isComplete())
      say(lane, kinds.have, 1, 0)
      assert.strictEqual(yield* Effect.promise(() => ended), "Ok")
    }).pipe(Effect.scoped, Effect.provide(hostEngine))
  )
})
