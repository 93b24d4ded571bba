// SPDX-License-Identifier: Apache-2.0
/** Stores: what all of them promise, then tokens and limits of the served one, and a real etcd that is stopped on the way. */
import { type ChildProcess, spawn, spawnSync } from "node:child_process"
import { connect, createServer } from "node:net"
import { assert, describe, it } from "@effect/vitest"
import { freePort } from "@tensorferry/testing/machine/freePort"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import * as Schedule from "effect/Schedule"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { KeyValueMap } from "../../src/store/KeyValueMap.ts"
import { serveStore } from "../../src/store/KeyValueServer.ts"
import { awaitEntries, type KeyValueError, type KeyValueStoreShape } from "../../src/store/KeyValueStore.ts"
import * as KeyValueStoreEtcd from "../../src/store/KeyValueStoreEtcd.ts"
import { viewOf } from "../../src/store/KeyValueStoreMemory.ts"
import * as KeyValueStoreTcp from "../../src/store/KeyValueStoreTcp.ts"
import { scratch } from "../support.ts"

type MakeView = Effect.Effect<KeyValueStoreShape, KeyValueError, Scope.Scope>

const waitFor = (store: KeyValueStoreShape, prefix: string, wanted: Readonly<Record<string, string>>) =>
  awaitEntries(
    store,
    prefix,
    (entries) =>
      Effect.succeed(
        JSON.stringify(Object.fromEntries([...entries].sort())) === JSON.stringify(wanted) ? entries : undefined
      ),
    "15 seconds",
    (entries) => `There is ${JSON.stringify([...entries])}`
  )

/** `views` answers how to make one process's view after the other. */
const behaviours = (views: Effect.Effect<MakeView, unknown, Scope.Scope>) => {
  it.live("put, get, list, remove", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const view = yield* views
        const [a, b] = [yield* view, yield* view]
        assert.isUndefined(yield* a.get("p/x"))
        yield* a.put("p/x", "1")
        yield* a.put("p/y", "zwei ü")
        yield* a.put("q", "")
        assert.strictEqual(yield* b.get("p/y"), "zwei ü")
        assert.strictEqual(yield* b.get("q"), "")
        assert.deepStrictEqual(Object.fromEntries(yield* b.list("p/")), { "p/x": "1", "p/y": "zwei ü" })
        yield* b.remove("p/x")
        yield* b.remove("p/x")
        assert.isUndefined(yield* a.get("p/x"))
        const error = yield* Effect.flip(a.put("big", "x".repeat(2 ** 20 + 1)))
        assert.strictEqual(error.reason._tag, "TooLarge")
      })
    )
  )

  it.live("of many who create one key, one puts it, and all learn what stands", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const view = yield* views
        const all = yield* Effect.forEach([0, 1, 2, 3], () => view)
        const answers = yield* Effect.forEach(all, (store, at) => store.create("c/1", `by ${at}`), { concurrency: 4 })
        assert.strictEqual(new Set(answers).size, 1)
        assert.strictEqual(yield* all[0]!.get("c/1"), answers[0])
        assert.strictEqual(yield* all[1]!.create("c/1", "later"), answers[0])
        yield* all[2]!.remove("c/1")
        assert.strictEqual(yield* all[3]!.create("c/1", ""), "")
        assert.strictEqual(yield* all[0]!.create("c/1", "x"), "")
        assert.strictEqual((yield* Effect.flip(all[0]!.create("c/2", "x".repeat(2 ** 20 + 1)))).reason._tag, "TooLarge")
        yield* all[0]!.remove("c/1")
      })
    )
  )

  it.live("watches see what comes and what goes with its process", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const view = yield* views
        const a = yield* view
        const scope = yield* Scope.make()
        const b = yield* Scope.provide(view, scope)
        const seen = yield* Effect.forkChild(waitFor(a, "w/", { "w/1": "a", "w/2": "b" }), { startImmediately: true })
        yield* b.put("w/1", "a", { isEphemeral: true })
        yield* b.put("w/2", "b")
        yield* Fiber.join(seen)
        const gone = yield* Effect.forkChild(waitFor(a, "w/", { "w/2": "b" }), { startImmediately: true })
        yield* Scope.close(scope, Exit.void)
        yield* Fiber.join(gone)
        yield* a.remove("w/2")
      })
    )
  )

  it.live("a wait for missing keys fails and names the keys that are there", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const store = yield* yield* views
        yield* store.put("n/1", "a")
        const waited = awaitEntries(
          store,
          "n/",
          () => Effect.succeed(undefined),
          "100 millis",
          (entries) => `Only ${[...entries.keys()].join()} came`
        )
        const error = yield* Effect.flip(waited)
        assert.strictEqual(error.reason._tag, "DeadlineExceeded")
        assert.match(error.message, /Only n\/1 came/)
        yield* store.remove("n/1")
      })
    )
  )
}

describe("in memory", () =>
  behaviours(
    Effect.sync(() => {
      const map = new KeyValueMap()
      return viewOf(map)
    })
  ))

describe("served", () => {
  behaviours(
    Effect.map(serveStore({ token: "t" }), (port) => KeyValueStoreTcp.make({ host: "127.0.0.1", port, token: "t" }))
  )

  it.live("another token, no token, and interfaces without one", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const port = yield* serveStore({ token: "right" })
        for (const token of ["wrong", undefined]) {
          const error = yield* Effect.flip(
            KeyValueStoreTcp.make({ host: "127.0.0.1", port, ...(token === undefined ? {} : { token }) })
          )
          assert.strictEqual(error.reason._tag, "Refused")
          assert.notInclude(error.message, "right")
        }
        assert.strictEqual((yield* Effect.flip(serveStore({ host: "0.0.0.0" }))).reason._tag, "InvalidOptions")
      })
    )
  )

  it.live("a server that does not know the token is refused", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const port = yield* serveStore({ token: "another" })
        const error = yield* Effect.flip(KeyValueStoreTcp.make({ host: "127.0.0.1", port, token: "mine" }))
        assert.strictEqual(error.reason._tag, "Refused")
      })
    )
  )

  it.live("strangers: long frames, junk, and silence cost the store nothing", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const port = yield* serveStore({ token: "t", maxFrameBytes: 4096 })
        const store = yield* KeyValueStoreTcp.make({ host: "127.0.0.1", port, token: "t" })
        for (const bytes of [
          Buffer.from([0xff, 0xff, 0xff, 0xff, 1]),
          Buffer.from("GET / HTTP/1.1\r\n\r\n"),
          Buffer.concat([Buffer.from([2, 0, 0, 0, 1]), Buffer.from("{}")]),
          Buffer.concat([Buffer.from([2, 0, 0, 0, 16]), Buffer.from("{}")])
        ]) {
          const ended = Effect.callback<void>((resume) => {
            const socket = connect(port, "127.0.0.1", () => socket.write(bytes))
            socket.on("error", () => {})
            socket.on("close", () => resume(Effect.void))
            socket.resume()
          })
          yield* Effect.timeout(ended, "5 seconds")
        }
        yield* store.put("k", "v")
        assert.strictEqual(yield* store.get("k"), "v")
        const error = yield* Effect.flip(store.put("long", "x".repeat(8192)))
        assert.include(["Unreachable", "Refused"], error.reason._tag)
        assert.strictEqual(yield* store.get("k"), "v")
      })
    )
  )

  it.live("a store that is full says so", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const port = yield* serveStore({ maxBytes: 200 })
        const store = yield* KeyValueStoreTcp.make({ host: "127.0.0.1", port })
        yield* store.put("a", "x".repeat(50))
        assert.strictEqual((yield* Effect.flip(store.put("b", "x".repeat(60)))).reason._tag, "TooLarge")
        yield* store.remove("a")
        yield* store.put("b", "x".repeat(60))
      })
    )
  )

  it.live("entries that exceed the longest message when they are written come whole, in a list and in a watch", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const maxFrameBytes = 2 ** 20
        const port = yield* serveStore({ maxFrameBytes })
        const store = yield* KeyValueStoreTcp.make({ host: "127.0.0.1", port, maxFrameBytes })
        // Each of these characters takes six bytes in JSON: 600 kB a value, 12 MB together.
        const value = "\u0001".repeat(100_000)
        for (let at = 0; at < 20; at++) yield* store.put(`k${at}`, value)
        const listed = yield* store.list("k")
        assert.strictEqual(listed.size, 20)
        for (const found of listed.values()) assert.strictEqual(found, value)
        const watched = Option.getOrThrow(yield* Stream.runHead(store.watch("k")))
        assert.deepStrictEqual([...watched.keys()], [...listed.keys()])
        assert.strictEqual(watched.get("k19"), value)
      })
    )
  )

  it.live("an entry that no message can hold is refused, and the store goes on", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const port = yield* serveStore({ maxFrameBytes: 8192 })
        const store = yield* KeyValueStoreTcp.make({ host: "127.0.0.1", port })
        const long = yield* Effect.flip(store.put("long", "x".repeat(8100)))
        assert.strictEqual(long.reason._tag, "TooLarge")
        yield* store.put("short", "x".repeat(8000))
        assert.deepStrictEqual([...(yield* store.list("")).keys()], ["short"])
      })
    )
  )

  it.live("a store that does not answer, and one that is not there", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const server = yield* Effect.acquireRelease(
          Effect.callback<ReturnType<typeof createServer>>((resume) => {
            const made = createServer(() => {}).listen(0, "127.0.0.1", () => resume(Effect.succeed(made)))
          }),
          (made) => Effect.sync(() => made.close())
        )
        const { port } = server.address() as { readonly port: number }
        const silent = yield* Effect.flip(
          KeyValueStoreTcp.make({ host: "127.0.0.1", port, deadline: "100 millis", connectMillis: 0 })
        )
        assert.strictEqual(silent.reason._tag, "DeadlineExceeded")
        const absent = yield* Effect.flip(KeyValueStoreTcp.make({ host: "127.0.0.1", port: 1, connectMillis: 100 }))
        assert.strictEqual(absent.reason._tag, "Unreachable")
      })
    )
  )

  it.live("a store that comes back gets what its users had put for their lifetime", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const scope = yield* Scope.make()
        const port = yield* Scope.provide(serveStore({ port: yield* Effect.promise(freePort) }), scope)
        const store = yield* KeyValueStoreTcp.make({ host: "127.0.0.1", port })
        yield* store.put("mine", "1", { isEphemeral: true })
        yield* store.put("ours", "1")
        yield* Scope.close(scope, Exit.void)
        yield* serveStore({ port })
        assert.strictEqual(yield* store.get("mine"), "1")
        assert.isUndefined(yield* store.get("ours"))
      })
    )
  )
})

const hasEtcd = spawnSync("etcd", ["--version"]).status === 0
const etcdMissing = "etcd is not installed (apt-get install etcd-server)"

describe.skipIf(!hasEtcd)(`etcd${hasEtcd ? "" : ` (skipped: ${etcdMissing})`}`, () => {
  const ports = Effect.promise(() => Promise.all([freePort(), freePort()]))
  const startEtcd = (folder: string, client: number, peer: number) =>
    Effect.acquireRelease(
      Effect.sync(() =>
        spawn(
          "etcd",
          [
            ["--data-dir", folder],
            ["--name", "t1"],
            ["--listen-client-urls", `http://127.0.0.1:${client}`],
            ["--advertise-client-urls", `http://127.0.0.1:${client}`],
            ["--listen-peer-urls", `http://127.0.0.1:${peer}`],
            ["--initial-advertise-peer-urls", `http://127.0.0.1:${peer}`],
            ["--initial-cluster", `t1=http://127.0.0.1:${peer}`],
            ["--unsafe-no-fsync"],
            ["--heartbeat-interval=10"],
            ["--election-timeout=100"],
            ["--log-level", "error"]
          ].flat(),
          { stdio: "ignore" }
        )
      ),
      (child: ChildProcess) =>
        Effect.callback<void>((resume) => {
          if (child.exitCode !== null || child.signalCode !== null) return resume(Effect.void)
          child.once("exit", () => resume(Effect.void))
          child.kill("SIGKILL")
        })
    )
  const viewAt = (port: number, leaseSeconds = 1): MakeView =>
    Effect.retry(KeyValueStoreEtcd.make({ url: `http://127.0.0.1:${port}/`, leaseSeconds }), {
      while: ({ reason }) => reason._tag === "Unreachable",
      times: 200,
      schedule: Schedule.spaced("50 millis")
    })
  const etcd = Effect.gen(function* () {
    const folder = yield* scratch
    const [client, peer] = yield* ports
    yield* startEtcd(folder, client, peer)
    return viewAt(client)
  })

  behaviours(etcd)

  it.live("a stop longer than its lease, and a restart of etcd", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const folder = yield* scratch
        const [client, peer] = yield* ports
        const scope = yield* Scope.make()
        yield* Scope.provide(startEtcd(folder, client, peer), scope)
        const [a, b] = [yield* viewAt(client), yield* viewAt(client)]
        yield* a.put("mine", "1", { isEphemeral: true })
        const seen = yield* Effect.forkChild(waitFor(b, "", { mine: "1", other: "2" }), { startImmediately: true })
        yield* Scope.close(scope, Exit.void)
        const down = yield* Effect.flip(b.get("mine"))
        assert.strictEqual(down.reason._tag, "Unreachable")
        yield* startEtcd(folder, client, peer)
        yield* Effect.retry(b.put("other", "2"), { times: 200, schedule: Schedule.spaced("50 millis") })
        yield* Fiber.join(seen)
      })
    )
  )
})
