// SPDX-License-Identifier: Apache-2.0
/**
 * Connections that rank 0 turns away: the one who is refused ends at once, the one who waits is told at once and in the
 * end, and nobody who has not proved to be a rank can end a job.
 */
import { type AddressInfo, connect, createServer, type Socket } from "node:net"
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Logger from "effect/Logger"
import { encodeFrame } from "../../src/group/Frames.ts"
import { attach } from "../../src/group/internal/connection.ts"
import { frameType, hello } from "../../src/group/internal/frames.ts"
import { makeRefusals } from "../../src/group/internal/refusals.ts"
import { make } from "../../src/group/ProcessGroupTcp.ts"
import { dialRaw } from "../fixtures/process-group-raw.ts"

/** The two ends of one connection. */
const socketPair = (): Promise<{ readonly accepted: Socket; readonly dialled: Socket }> =>
  new Promise((resolve) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const dialled = connect((server.address() as AddressInfo).port, "127.0.0.1")
      dialled.on("error", () => {})
      server.once("connection", (accepted) => {
        server.close()
        resolve({ accepted, dialled })
      })
    })
  })

const at = { size: 2, host: "127.0.0.1" }

/** Rank 0 under way, its port, and the warnings that it logs. */
const startRankZero = Effect.fnUntraced(function* (options: { readonly connectDeadline?: number }) {
  const warnings: Array<string> = []
  const logger = Logger.make<unknown, void>(({ logLevel, message }) => {
    if (logLevel === "Warn") warnings.push(String(message))
  })
  const port = yield* Deferred.make<number>()
  const making = make({
    ...at,
    ...options,
    rank: 0,
    port: 0,
    token: "right",
    onListening: (bound) => Effect.asVoid(Deferred.succeed(port, bound))
  }).pipe(Effect.provide(Logger.layer([logger])))
  const fiber = yield* Effect.forkScoped(making, { startImmediately: true })
  return { fiber, warnings, port: yield* Deferred.await(port) }
})

const refused = (port: number, rank = 1, size = 2) =>
  Effect.flip(Effect.scoped(make({ ...at, size, rank, port, token: "wrong" }))).pipe(Effect.timeout("10 seconds"))

describe("a wrong token", () => {
  it.live("ends its rank at once, makes rank 0 warn at once, and ends no other rank", () =>
    Effect.gen(function* () {
      const { fiber, warnings, port } = yield* startRankZero({})
      for (let time = 0; time < 3; time++) {
        const error = yield* refused(port)
        assert.strictEqual(error._tag, "ProcessGroupError")
        if (error._tag !== "ProcessGroupError") continue
        assert.strictEqual(error.reason._tag, "RendezvousFailed")
        assert.deepStrictEqual([...error.ranks], [1])
        assert.include(error.reason.remedy, "TENSORFERRY_TOKEN")
      }
      assert.lengthOf(warnings, 1)
      assert.include(warnings[0], "refused a connection from 127.0.0.1: The tokens of rank 1 and rank 0 differ.")
      assert.include(warnings[0], "Set the same TENSORFERRY_TOKEN on every rank.")
      assert.include(warnings[0], "continues to wait")
      const member = yield* make({ ...at, rank: 1, port, token: "right" })
      const hub = yield* Fiber.join(fiber)
      yield* Effect.all([hub.barrier("met"), member.barrier("met")], { concurrency: "unbounded" })

      // Into a group that is formed nobody comes either, and it goes on.
      yield* refused(port)
      yield* Effect.all([hub.barrier("again"), member.barrier("again")], { concurrency: "unbounded" })
    })
  )

  it.live("is counted in the failure of a rendezvous that ends without that rank", () =>
    Effect.gen(function* () {
      const { fiber, port } = yield* startRankZero({ connectDeadline: 1500 })
      yield* refused(port)
      yield* refused(port)
      const error = yield* Effect.flip(Fiber.join(fiber))
      assert.strictEqual(error.reason._tag, "RendezvousFailed")
      assert.deepStrictEqual([...error.ranks], [1])
      assert.include(
        error.reason.detail,
        "2 connections were refused. From 127.0.0.1, 2 times: The tokens of rank 1 and rank 0 differ."
      )
      assert.include(error.reason.remedy, "TENSORFERRY_TOKEN")
    })
  )

  it.live("tells an admitted rank that fails first that rank 0's output names the missing ranks", () =>
    Effect.gen(function* () {
      const { port, fiber } = yield* startRankZero({})
      const early = { host: "127.0.0.1", size: 3, port, token: "right" }
      yield* Fiber.interrupt(fiber)
      const listening = yield* Deferred.make<number>()
      yield* Effect.forkScoped(
        make({
          ...early,
          rank: 0,
          port: 0,
          onListening: (bound) => Effect.asVoid(Deferred.succeed(listening, bound))
        })
      )
      const bound = yield* Deferred.await(listening)
      const error = yield* Effect.flip(make({ ...early, rank: 1, port: bound, connectDeadline: 500 }))
      assert.include(error.message, "it was admitted, but not all others were")
    })
  )

  it.live("cannot fill the output, nor write lines of its own into it", () =>
    Effect.gen(function* () {
      const { warnings, port } = yield* startRankZero({})
      for (let rank = 1; rank < 24; rank++) yield* refused(port, rank, 32)
      assert.isAtMost(warnings.length, 8)
      const stranger = yield* startRankZero({})
      const peer = yield* Effect.promise(() => dialRaw(stranger.port))
      const claim = { protocol: `x\n[error] ${"y".repeat(2000)}`, version: 1, size: 2, rank: 1, nonce: "0".repeat(64) }
      peer.send(frameType.hello, hello.encode(claim))
      const answer = yield* Effect.promise(() => peer.next())
      assert.strictEqual(answer.type, frameType.reject)
      assert.lengthOf(stranger.warnings, 1)
      assert.notInclude(stranger.warnings[0], "\n")
      assert.isBelow(stranger.warnings[0]!.length, 600)
    })
  )
})

describe("connections that do not prove themselves", () => {
  it.live("keep no rank out, however many are silent", () =>
    Effect.gen(function* () {
      const { fiber, port } = yield* startRankZero({})
      for (let count = 0; count < 120; count++) yield* Effect.promise(() => dialRaw(port))
      const member = yield* make({ ...at, rank: 1, port, token: "right", connectDeadline: "5 seconds" })
      const hub = yield* Fiber.join(fiber)
      yield* Effect.all([hub.barrier("met"), member.barrier("met")], { concurrency: "unbounded" })
    })
  )

  it.live("are not read behind the frame that is waited for", () =>
    Effect.gen(function* () {
      const { accepted, dialled } = yield* Effect.promise(socketPair)
      const connection = attach(accepted)
      const paused = new Promise((resolve) => accepted.once("pause", resolve))
      const piece = encodeFrame(1, 4096, [])
      for (let count = 0; count < 16_384; count++) dialled.write(piece)
      yield* connection.next
      yield* Effect.timeout(
        Effect.promise(() => paused),
        "10 seconds"
      )
      assert.isBelow(accepted.bytesRead, 2 ** 20)
      connection.destroy("the test is over")
    })
  )
})

describe("a connection", () => {
  it.live("ends with the reason where its sink throws", () =>
    Effect.gen(function* () {
      const pair = yield* Effect.promise(socketPair)
      const over = yield* Deferred.make<string>()
      attach(pair.accepted).listen({
        receive: () => assert.fail("a sink that throws"),
        closed: (detail) => Deferred.doneUnsafe(over, Effect.succeed(detail))
      })
      attach(pair.dialled).send(1)
      assert.include(
        yield* Deferred.await(over),
        "a frame of it could not be handled (AssertionError: a sink that throws)"
      )
    })
  )

  it.live("ends instead of sending a frame that exceeds the limit", () =>
    Effect.gen(function* () {
      const pair = yield* Effect.promise(socketPair)
      const connection = attach(pair.accepted)
      connection.send(1, new Uint8Array(4097))
      const { detail } = yield* Effect.flip(connection.next)
      assert.strictEqual(detail, "it was due 4097 bytes at once, the limit is 4096")
      pair.dialled.destroy()
    })
  )
})

describe("what was refused", () => {
  it("is reported by kind, with the rest counted", () => {
    const refusals = makeRefusals()
    assert.strictEqual(refusals.text(), "")
    assert.isTrue(refusals.add("10.0.0.1", "One."))
    assert.strictEqual(refusals.text(), " 1 connection was refused. From 10.0.0.1: One.")
    for (let kind = 0; kind < 20; kind++) refusals.add("10.0.0.2", `Kind ${kind}.`)
    assert.isFalse(refusals.add("10.0.0.1", "One."))
    const text = refusals.text()
    assert.include(text, " 22 connections were refused. From 10.0.0.1, 2 times: One. From 10.0.0.2: Kind 0.")
    assert.include(text, " 13 more are not listed.")
  })
})
