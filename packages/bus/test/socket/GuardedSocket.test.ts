// SPDX-License-Identifier: Apache-2.0
/** Guarded sockets: who is let in and who is not, what a stranger can cost, and how connections end. */
import { createHmac } from "node:crypto"
import { connect, type Socket } from "node:net"
import { assert, describe, it } from "@effect/vitest"
import { canonicalJson } from "@tensorferry/core/base/Digest"
import { encodeFrame, makeFrameReader } from "@tensorferry/core/group/Frames"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import type { FramedSocket } from "../../src/socket/FramedSocket.ts"
import { type Guard, type Listener, listen, open, type SocketRefused } from "../../src/socket/GuardedSocket.ts"

const Claim = Schema.Struct({ rank: Schema.Int })
type Claim = typeof Claim.Type

const guardWith = (options: Partial<Guard<Claim>> = {}): Guard<Claim> => ({
  protocol: "test",
  version: 1,
  token: "right",
  claim: Claim,
  limits: { frameBytes: 2 ** 20 },
  ...options
})

const host = "127.0.0.1"
const bytesOf = (text: string) => new TextEncoder().encode(text)
const textOf = (bytes: Uint8Array) => new TextDecoder().decode(bytes)

/** Sends every frame back. */
const echo = (socket: FramedSocket) =>
  socket.listen({ receive: ({ type, body }) => socket.send(type, body), closed: () => {} })

const serve = (options: Partial<Listener<Claim>> = {}) =>
  listen<Claim>({ address: { host, port: 0 }, guard: guardWith(), attend: echo, ...options })

const opened = (port: number, options: Partial<Guard<Claim>> = {}) =>
  Effect.acquireRelease(open({ host, port }, guardWith(options), { rank: 3 }), (socket) =>
    Effect.sync(() => socket.destroy("the test is over"))
  )

const refusalOf = (port: number, options: Partial<Guard<Claim>> = {}) =>
  Effect.map(Effect.flip(open({ host, port }, guardWith(options), { rank: 3 })), (error) => {
    assert.strictEqual(error._tag, "SocketRefused", String(error))
    return error as SocketRefused
  })

/** A socket without any guard, what it reads, and its end. */
const stranger = (port: number) =>
  Effect.acquireRelease(
    Effect.callback<{ readonly socket: Socket; readonly read: () => Buffer; readonly ended: Promise<void> }>(
      (resume) => {
        const chunks: Array<Buffer> = []
        const socket = connect(port, host)
        socket.on("error", () => {})
        socket.on("data", (chunk) => chunks.push(chunk as Buffer))
        const ended = new Promise<void>((resolve) => socket.once("close", () => resolve()))
        socket.once("connect", () => resume(Effect.succeed({ socket, read: () => Buffer.concat(chunks), ended })))
      }
    ),
    ({ socket }) => Effect.sync(() => socket.destroy())
  )

const frame = (type: number, body: Uint8Array) => encodeFrame(type, body.byteLength, [body])
const framesIn = (bytes: Uint8Array) => {
  const reader = makeFrameReader(2 ** 20)
  reader.push(bytes)
  const frames = []
  for (let taken = reader.take(); taken._tag === "Success" && taken.success; taken = reader.take()) {
    frames.push({ type: taken.success.type, text: textOf(taken.success.body) })
  }
  return frames
}
const helloBody = { protocol: "test", version: 1, nonce: "0".repeat(64), claim: { rank: 1 } }

describe("GuardedSocket", () => {
  it.live("lets a peer with the token in, whole frames in order, up to the limit", () =>
    Effect.gen(function* () {
      const claims: Array<Claim> = []
      const port = yield* serve({
        attend: (socket, claim) => {
          claims.push(claim)
          echo(socket)
        }
      })
      const socket = yield* opened(port)
      const large = new Uint8Array(2 ** 20).map((_, at) => at % 251)
      socket.send(16, bytesOf("a"), bytesOf("b"))
      socket.send(17)
      socket.send(18, large)
      const answers = [yield* socket.next, yield* socket.next, yield* socket.next]
      assert.deepStrictEqual(
        answers.map(({ type }) => type),
        [16, 17, 18]
      )
      assert.strictEqual(textOf(answers[0]!.body), "ab")
      assert.deepStrictEqual(answers[2]!.body, large)
      assert.deepStrictEqual(claims, [{ rank: 3 }])
    })
  )

  it.live("refuses another token, no token, another protocol and another version, and says which it was", () =>
    Effect.gen(function* () {
      const heard: Array<string> = []
      const port = yield* serve({ refused: ({ why }) => Effect.sync(() => void heard.push(why)) })
      const cases: ReadonlyArray<readonly [string, Partial<Guard<Claim>>]> = [
        ["Token", { token: "wrong" }],
        ["Token", { token: undefined }],
        ["Protocol", { protocol: "another" }],
        ["Protocol", { version: 2 }]
      ]
      for (const [why, options] of cases) {
        const refusal = yield* refusalOf(port, options)
        assert.strictEqual(refusal.why, why)
        assert.notInclude(refusal.detail, "right")
      }
      assert.deepStrictEqual(
        heard,
        cases.map(([why]) => why)
      )
    })
  )

  it.live("passes an application's refusal on, with its text, after the proof only", () =>
    Effect.gen(function* () {
      const asked: Array<number> = []
      const told = yield* Deferred.make<unknown>()
      const port = yield* serve({
        admit: ({ rank }) => {
          asked.push(rank)
          return Effect.fail({ detail: "That rank is taken.", data: "{}" })
        },
        refusedAndTold: ({ claim, why }) => (why === "Claim" ? Deferred.succeed(told, claim) : Effect.void)
      })
      yield* refusalOf(port, { token: "wrong" })
      assert.deepStrictEqual(asked, [])
      const refusal = yield* refusalOf(port)
      assert.deepInclude({ ...refusal }, { why: "Claim", detail: "That rank is taken.", data: "{}" })
      assert.deepStrictEqual(asked, [3])
      assert.deepStrictEqual(yield* Deferred.await(told), { rank: 3 })
    })
  )

  it.live("does not welcome an opener that reflects the listener's own code or replays another's", () =>
    Effect.gen(function* () {
      const port = yield* serve()
      const answerWith = (code: (nonce: string) => string) =>
        Effect.gen(function* () {
          const { socket, read, ended } = yield* stranger(port)
          socket.write(frame(1, bytesOf(JSON.stringify(helloBody))))
          yield* Effect.promise(() => new Promise((resolve) => socket.once("data", resolve)))
          const nonce = JSON.parse(framesIn(read())[0]!.text).nonce as string
          socket.write(frame(3, bytesOf(JSON.stringify({ code: code(nonce) }))))
          yield* Effect.timeout(
            Effect.promise(() => ended),
            "5 seconds"
          )
          return framesIn(read())[1]
        })
      const keyed = (role: string, nonce: string) =>
        createHmac("sha256", "right")
          .update(canonicalJson({ role, hello: helloBody, nonce }))
          .digest("hex")
      const reflected = yield* answerWith((nonce) => keyed("listener", nonce))
      assert.strictEqual(reflected?.type, 6)
      const replayed = yield* answerWith(() => keyed("opener", "1".repeat(64)))
      assert.strictEqual(replayed?.type, 6)
    })
  )

  it.live("is not fooled by a listener that does not know the token", () =>
    Effect.gen(function* () {
      const port = yield* serve({ guard: guardWith({ token: "another" }) })
      assert.strictEqual((yield* refusalOf(port)).why, "Token")
    })
  )

  it.live("turns strangers away: long frames, junk, floods, silence", () =>
    Effect.gen(function* () {
      const port = yield* serve({ guard: guardWith({ handshakeTime: "300 millis" }) })
      const junk: ReadonlyArray<Uint8Array> = [
        Buffer.from([0x01, 0x10, 0, 0, 1]),
        Buffer.from([0xff, 0xff, 0xff, 0xff, 1]),
        Buffer.from("GET / HTTP/1.1\r\n\r\n"),
        frame(16, bytesOf("{}")),
        frame(1, bytesOf("{}")),
        Buffer.concat(Array.from({ length: 1000 }, () => Buffer.from(frame(1, bytesOf(JSON.stringify(helloBody)))))),
        new Uint8Array(0)
      ]
      for (const bytes of junk) {
        const { socket, ended } = yield* stranger(port)
        if (bytes.byteLength > 0) socket.write(bytes)
        yield* Effect.timeout(
          Effect.promise(() => ended),
          "5 seconds"
        )
      }
      const socket = yield* opened(port)
      socket.send(16, bytesOf("still here"))
      assert.strictEqual(textOf((yield* socket.next).body), "still here")
    })
  )

  it.live("does not read on while a stranger's handshake waits for the application", () =>
    Effect.gen(function* () {
      const begun = yield* Deferred.make<void>()
      const port = yield* serve({
        guard: guardWith({ handshakeTime: "1 hour" }),
        admit: () => Effect.andThen(Deferred.succeed(begun, undefined), Effect.never)
      })
      const { socket, read } = yield* stranger(port)
      socket.write(frame(1, bytesOf(JSON.stringify(helloBody))))
      yield* Effect.promise(() => new Promise((resolve) => socket.once("data", resolve)))
      const { nonce } = JSON.parse(framesIn(read())[0]!.text)
      const code = createHmac("sha256", "right")
        .update(canonicalJson({ role: "opener", hello: helloBody, nonce }))
        .digest("hex")
      socket.write(frame(3, bytesOf(JSON.stringify({ code }))))
      yield* Deferred.await(begun)
      // More than the buffers of both ends of a socket hold; what is taken from here was kept in memory there.
      const piece = Buffer.alloc(2 ** 20)
      for (let count = 0; count < 64; count++) socket.write(piece)
      yield* Effect.timeoutOption(
        Effect.promise(() => new Promise((resolve) => socket.once("drain", resolve))),
        "500 millis"
      )
      assert.isAbove(socket.writableLength, 32 * 2 ** 20)
    })
  )

  it.live("closes the connection of a peer that does not read", () =>
    Effect.gen(function* () {
      const over = yield* Deferred.make<string>()
      const port = yield* serve({
        guard: guardWith({ limits: { frameBytes: 2 ** 20, queuedBytes: 2 ** 20 } }),
        attend: (socket) => {
          socket.listen({ receive: () => {}, closed: (detail) => Deferred.doneUnsafe(over, Effect.succeed(detail)) })
          const piece = new Uint8Array(2 ** 20)
          for (let count = 0; count < 64 && socket.isOpen(); count++) socket.send(16, piece)
        }
      })
      yield* opened(port)
      assert.strictEqual(yield* Deferred.await(over), "it does not read what it is sent")
    })
  )

  it.live("reports the end once, with a reason, after all frames that came before it", () =>
    Effect.gen(function* () {
      const port = yield* serve({
        attend: (socket) => {
          for (let count = 0; count < 100; count++) socket.send(16, bytesOf(`${count}`))
          Effect.runFork(socket.close("1 second"))
        }
      })
      const socket = yield* opened(port)
      const seen: Array<string> = []
      const ends = yield* Effect.callback<ReadonlyArray<string>>((resume) => {
        const told: Array<string> = []
        socket.listen({
          receive: ({ body }) => void seen.push(textOf(body)),
          closed: (detail) => {
            told.push(detail)
            setImmediate(() => resume(Effect.succeed(told)))
          }
        })
      })
      assert.deepStrictEqual(ends, ["its connection was closed"])
      assert.lengthOf(seen, 100)
      assert.strictEqual(seen[99], "99")
      assert.isFalse(socket.isOpen())
      const late: Array<string> = []
      socket.listen({ receive: () => {}, closed: (detail) => void late.push(detail) })
      assert.deepStrictEqual(late, ["its connection was closed"])
    })
  )

  it.live("survives a sink that throws: its connection ends and says why, the others go on", () =>
    Effect.gen(function* () {
      const over = yield* Deferred.make<string>()
      const port = yield* serve({
        attend: (socket) =>
          socket.listen({
            receive: ({ type, body }) => {
              if (type === 99) (undefined as unknown as () => void)()
              socket.send(type, body)
            },
            closed: (detail) => Deferred.doneUnsafe(over, Effect.succeed(detail))
          })
      })
      const [bad, good] = [yield* opened(port), yield* opened(port)]
      bad.send(99)
      assert.match(yield* Deferred.await(over), /could not be handled/)
      over.pipe(Deferred.isDoneUnsafe, assert.isTrue)
      good.send(16, bytesOf("x"))
      assert.strictEqual(textOf((yield* good.next).body), "x")
    })
  )

  it.live("leaves no connection when the listener's scope ends, and its port is free again", () =>
    Effect.gen(function* () {
      const scope = yield* Scope.make()
      const port = yield* Scope.provide(serve(), scope)
      const socket = yield* opened(port)
      const waiting = yield* Effect.forkChild(Effect.flip(socket.next), { startImmediately: true })
      yield* Scope.close(scope, Exit.void)
      assert.strictEqual((yield* Fiber.join(waiting))._tag, "SocketClosed")
      const refused = yield* Effect.flip(open({ host, port }, guardWith(), { rank: 0 }))
      assert.strictEqual(refused._tag, "SocketClosed")
      yield* serve({ address: { host, port } })
      assert.strictEqual((yield* Effect.flip(serve({ address: { host, port } })))._tag, "ListenFailed")
    })
  )

  it.live("closes what exceeds the number of connections", () =>
    Effect.gen(function* () {
      const port = yield* serve({ mostConnections: 1 })
      const first = yield* opened(port)
      assert.strictEqual((yield* Effect.flip(open({ host, port }, guardWith(), { rank: 0 })))._tag, "SocketClosed")
      first.send(16, bytesOf("y"))
      assert.strictEqual(textOf((yield* first.next).body), "y")
    })
  )

  it.live("lets a peer with the token in while more strangers are silent than there are places", () =>
    Effect.gen(function* () {
      const port = yield* serve({ mostConnections: 100 })
      const strangers = yield* Effect.forEach(Array.from({ length: 150 }), () => stranger(port))
      const socket = yield* opened(port)
      socket.send(16, bytesOf("y"))
      assert.strictEqual(textOf((yield* socket.next).body), "y")
      // The oldest made room.
      yield* Effect.timeout(
        Effect.promise(() => strangers[0]!.ended),
        "5 seconds"
      )
    })
  )

  it.live("ends a connection instead of sending a frame that exceeds the limit", () =>
    Effect.gen(function* () {
      const sizes: Array<number> = []
      const port = yield* serve({
        attend: (socket) => socket.listen({ receive: ({ body }) => void sizes.push(body.byteLength), closed: () => {} })
      })
      const socket = yield* opened(port)
      socket.send(16, new Uint8Array(2 ** 20 + 1))
      const { detail } = yield* Effect.flip(socket.next)
      assert.strictEqual(detail, "it was due 1048577 bytes at once, the limit is 1048576")
      assert.deepStrictEqual(sizes, [])
    })
  )
})
