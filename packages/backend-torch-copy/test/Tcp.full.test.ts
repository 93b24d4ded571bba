// SPDX-License-Identifier: Apache-2.0
/**
 * The last step of the ladder by itself: who may fetch, from where, and what back-pressure and faults do.
 */
import { readFileSync } from "node:fs"
import { connect, type Socket } from "node:net"
import { assert, describe, it } from "@effect/vitest"
import { type Tensor, transposeTensor } from "@tensorferry/core/tensor/Tensor"
import { acquirePool } from "@tensorferry/native/NativeJob"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import { chunksOf } from "../src/tcp/chunks.ts"
import { makeFetcher } from "../src/tcp/fetch.ts"
import { encodeHello, encodeRequest, halfBytes } from "../src/tcp/greeting.ts"
import { serve } from "../src/tcp/serve.ts"
import { bytesOf, filled, makeEngine, makeRandom } from "./support.ts"

const makeEnds = Effect.gen(function* () {
  const { addon, engine } = yield* makeEngine()
  const pool = yield* acquirePool(addon, 1)
  const server = yield* serve(addon, pool)
  const fetcher = yield* makeFetcher(addon, pool, 1)
  const chunked = (tensors: ReadonlyArray<Tensor>, direction: "send" | "recv") =>
    Result.getOrThrow(chunksOf(addon, tensors, direction))
  return { addon, engine, server, fetcher, chunked }
})

/** Everything that arrives until the other end closes the connection. */
const talk = (port: number, ...said: ReadonlyArray<Uint8Array>) =>
  Effect.promise(
    () =>
      new Promise<Buffer>((resolve) => {
        const chunks: Array<Buffer> = []
        const socket: Socket = connect({ host: "127.0.0.1", port }, () => {
          for (const bytes of said) socket.write(bytes)
        })
        socket.on("data", (chunk) => chunks.push(chunk))
        socket.on("error", () => {})
        socket.on("close", () => resolve(Buffer.concat(chunks)))
      })
  )

/** Addresses on which this port is listened on, as /proc writes them. */
const listeners = (port: number): ReadonlyArray<string> =>
  ["tcp", "tcp6"].flatMap((kind) =>
    readFileSync(`/proc/net/${kind}`, "utf8")
      .split("\n")
      .map((line) => line.trim().split(/\s+/))
      .filter(
        (fields) => fields[3] === "0A" && fields[1]?.endsWith(`:${port.toString(16).toUpperCase().padStart(4, "0")}`)
      )
      .map((fields) => fields[1]!.split(":")[0]!)
  )

describe("the connection on loopback", () => {
  it.live("carries strided, tiny, empty and huge parts, again and again", () =>
    Effect.gen(function* () {
      const { engine, server, fetcher, chunked } = yield* makeEnds
      const random = makeRandom(1)
      const sources: Array<Tensor> = []
      const targets: Array<Tensor> = []
      for (const [rows, columns] of [
        [1, 1],
        [3, 5],
        [1023, 1025],
        [2048, 512],
        [1, 2 ** 20 + 1],
        [7, 2 ** 20 - 1]
      ] as const) {
        const source = yield* filled(engine, "uint8", [rows, columns], 0)
        source.storage.bytes!.set(random.bytes(rows * columns))
        sources.push(source, transposeTensor(source, 0, 1))
        targets.push(
          yield* filled(engine, "uint8", [rows, columns], 0xa5),
          transposeTensor(yield* filled(engine, "uint8", [rows, columns], 0xa5), 0, 1)
        )
      }
      server.offer(5, 1, { ...chunked(sources, "send"), isUsable: () => true })
      yield* fetcher.connect(0, server.endpoint)
      const into = chunked(targets, "recv")
      for (let round = 0; round < 3; round++) {
        for (const target of targets) target.storage.bytes!.fill(0xa5)
        let moved = 0
        yield* fetcher.fetch(0, 5, into, (byteLength) => {
          moved += byteLength
        })
        assert.isAbove(moved, 2 * 7 * (2 ** 20 - 1))
        for (const [i, target] of targets.entries()) {
          assert.isTrue(Buffer.from(bytesOf(target)).equals(bytesOf(sources[i]!)), `part ${i}`)
        }
      }
    })
  )

  it.live("gives nothing to who does not know the secret, or asks for what is another's", () =>
    Effect.gen(function* () {
      const { engine, server, chunked } = yield* makeEnds
      const source = yield* filled(engine, "uint8", [1000], 7)
      const { port, secret } = server.endpoint
      const known = Buffer.from(secret, "hex")
      const withdraw = server.offer(5, 1, { ...chunked([source], "send"), isUsable: () => true })
      assert.deepStrictEqual(listeners(port), ["0100007F"])
      const wrong = Buffer.from(known)
      wrong[halfBytes - 1]! ^= 1
      assert.strictEqual((yield* talk(port, encodeHello(wrong, 1), encodeRequest(5))).length, 0)
      const answered = yield* talk(port, encodeHello(known, 1), encodeRequest(6))
      assert.deepStrictEqual(answered, known.subarray(halfBytes))
      assert.strictEqual((yield* talk(port, encodeHello(known, 2), encodeRequest(5))).length, halfBytes)
      const got = yield* talk(port, encodeHello(known, 1), encodeRequest(5), encodeRequest(6))
      assert.strictEqual(got.length, halfBytes + 1 + 1000)
      withdraw()
      assert.strictEqual((yield* talk(port, encodeHello(known, 1), encodeRequest(5))).length, halfBytes)
    })
  )

  it.live("waits for a slow receiver without holding more than a chunk, and goes on", () =>
    Effect.gen(function* () {
      const { engine, server, fetcher, chunked } = yield* makeEnds
      const source = yield* filled(engine, "uint8", [2 ** 26], 7)
      const target = yield* filled(engine, "uint8", [2 ** 26], 0xa5)
      server.offer(5, 1, { ...chunked([source], "send"), isUsable: () => true })
      const socket = yield* Effect.promise(
        () =>
          new Promise<Socket>((resolve) => {
            const made: Socket = connect({ host: "127.0.0.1", port: server.endpoint.port }, () => resolve(made))
          })
      )
      // This one asks and never reads; the other gets everything meanwhile.
      socket.pause()
      socket.write(encodeHello(Buffer.from(server.endpoint.secret, "hex"), 1))
      socket.write(encodeRequest(5))
      yield* fetcher.connect(0, server.endpoint)
      yield* fetcher.fetch(0, 5, chunked([target], "recv"), () => {})
      assert.isTrue(Buffer.from(bytesOf(target)).equals(Buffer.alloc(2 ** 26, 7)))
      socket.destroy()
    })
  )

  it.live("stops touching memory when interrupted or when the sender ends, and works again", () =>
    Effect.gen(function* () {
      const { addon, engine, server, fetcher, chunked } = yield* makeEnds
      const source = yield* filled(engine, "uint8", [2 ** 26], 7)
      const target = yield* filled(engine, "uint8", [2 ** 26], 0xa5)
      let isUsable = true
      server.offer(5, 1, { ...chunked([source], "send"), isUsable: () => isUsable })
      yield* fetcher.connect(0, server.endpoint)
      const into = chunked([target], "recv")
      for (let round = 0; round < 3; round++) {
        const begun = yield* Deferred.make<void>()
        const fiber = yield* Effect.forkChild(
          fetcher.fetch(0, 5, into, () => void Deferred.doneUnsafe(begun, Effect.void)),
          { startImmediately: true }
        )
        yield* Deferred.await(begun)
        yield* Fiber.interrupt(fiber)
        target.storage.bytes!.fill(0xa5)
        yield* Effect.yieldNow
        assert.isTrue(Buffer.from(bytesOf(target)).equals(Buffer.alloc(2 ** 26, 0xa5)))
      }
      isUsable = false
      assert.include(yield* Effect.flip(fetcher.fetch(0, 5, into, () => {})), "closed")
      isUsable = true
      yield* fetcher.fetch(0, 5, into, () => {})
      assert.isTrue(Buffer.from(bytesOf(target)).equals(Buffer.alloc(2 ** 26, 7)))
      const scope = yield* Scope.make()
      const pool = yield* acquirePool(addon, 1)
      const other = yield* Scope.provide(serve(addon, pool), scope)
      other.offer(5, 1, { ...chunked([source], "send"), isUsable: () => true })
      yield* fetcher.connect(0, other.endpoint)
      yield* Scope.close(scope, Exit.void)
      assert.isString(yield* Effect.flip(fetcher.fetch(0, 5, into, () => {})))
      assert.isString(yield* Effect.flip(fetcher.fetch(0, 5, into, () => {})))
    })
  )
})
