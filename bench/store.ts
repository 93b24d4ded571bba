// SPDX-License-Identifier: Apache-2.0
/**
 * The store where agents of the bus meet, against the same calls over effect's rpc and its socket server: round trips, how
 * soon a watcher sees a change, many calls at once, and what importing each costs. The reference proves no token.
 */
import { spawnSync } from "node:child_process"
import { fileURLToPath } from "node:url"
import * as NodeSocket from "@effect/platform-node/NodeSocket"
import type { KeyValueStoreShape } from "@tensorferry/bus/store/KeyValueStore"
import * as KeyValueStoreTcp from "@tensorferry/bus/store/KeyValueStoreTcp"
import { median } from "@tensorferry/core/base/Numbers"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as RpcClient from "effect/rpc/RpcClient"
import * as RpcSerialization from "effect/rpc/RpcSerialization"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { startChild } from "./child.ts"
import type { BenchResult } from "./measure.ts"
import { StoreCalls } from "./storeCalls.ts"

const serverScript = fileURLToPath(new URL("store-server.ts", import.meta.url))

type Store = Pick<KeyValueStoreShape, "put" | "get" | "watch">

const busStore = (port: number): Effect.Effect<Store, unknown, Scope.Scope> =>
  KeyValueStoreTcp.make({ host: "127.0.0.1", port, token: "token" })

const rpcStore = (port: number) =>
  Effect.gen(function* () {
    const protocol = yield* Layer.build(
      RpcClient.layerProtocolSocket().pipe(
        Layer.provide(RpcSerialization.layerNdjson),
        Layer.provide(NodeSocket.layerNet({ host: "127.0.0.1", port, noDelay: true }))
      )
    )
    const client = yield* RpcClient.make(StoreCalls).pipe(Effect.provideContext(protocol))
    return {
      put: (key: string, value: string) => Effect.orDie(client.Put({ key, value })),
      get: (key: string) => Effect.map(Effect.orDie(client.Get({ key })), (value) => value ?? undefined),
      watch: (prefix: string) => Stream.map(Stream.orDie(client.Watch({ prefix })), (entries) => new Map(entries))
    } satisfies Store
  })

const value = "x".repeat(200)

/** Median microseconds of one call after the other. */
const roundTrip = <E>(call: (round: number) => Effect.Effect<unknown, E>, rounds = 3001, warmUps = 2000) =>
  Effect.gen(function* () {
    const taken: Array<number> = []
    for (let round = -warmUps; round < rounds; round++) {
      const begun = performance.now()
      yield* call(round)
      if (round >= 0) taken.push((performance.now() - begun) * 1000)
    }
    return median(taken)
  })

/** From before a put by one client until another one's watcher has the entries. */
const watchLatency = (writer: Store, watcher: Store) =>
  Effect.gen(function* () {
    let seen = (_: string | undefined): void => {}
    yield* Effect.forkScoped(
      Stream.runForEach(watcher.watch("watched/"), (entries) => Effect.sync(() => seen(entries.get("watched/key"))))
    )
    return yield* roundTrip((round) =>
      Effect.callback<void>((resume) => {
        seen = (found) => {
          if (found === `${round}`) resume(Effect.void)
        }
        Effect.runFork(writer.put("watched/key", `${round}`))
      })
    )
  })

const atOnce = 64
const manyGets = (store: Store) =>
  Effect.map(
    roundTrip(
      () =>
        Effect.all(
          Array.from({ length: atOnce }, () => store.get("key")),
          { concurrency: "unbounded" }
        ),
      301,
      100
    ),
    (micros) => (atOnce / micros) * 1e6
  )

const measure = (kind: "bus" | "rpc") => {
  const server = startChild(process.execPath, [serverScript, kind])
  const connect: (port: number) => Effect.Effect<Store, unknown, Scope.Scope> = kind === "bus" ? busStore : rpcStore
  return Effect.gen(function* () {
    const { port } = yield* Effect.promise(() => server.next())
    const [store, other] = [yield* connect(port as number), yield* connect(port as number)]
    yield* store.put("key", value)
    return {
      get: yield* roundTrip(() => store.get("key")),
      put: yield* roundTrip(() => store.put("key", value)),
      watch: yield* watchLatency(store, other),
      many: yield* manyGets(store)
    }
  }).pipe(Effect.scoped, Effect.ensuring(Effect.promise(server.close)), Effect.runPromise)
}

/** What a user of each imports beyond `effect/Effect`, `effect/Layer` and `effect/Schema`. */
const importCosts = (): Readonly<Record<"bus" | "rpc", number>> => {
  const floor = ["effect/Effect", "effect/Layer", "effect/Schema", "effect/Stream"]
  const groups = {
    floor,
    // As it is published: compiled.
    bus: [...floor, "./packages/core/dist/socket/GuardedSocket.js"],
    rpc: [
      ...floor,
      ...["effect/rpc/Rpc", "effect/rpc/RpcGroup", "effect/rpc/RpcClient", "effect/rpc/RpcServer"],
      ...["effect/rpc/RpcSerialization", "@effect/platform-node/NodeSocket", "@effect/platform-node/NodeSocketServer"]
    ]
  }
  const times = { floor: [] as Array<number>, bus: [] as Array<number>, rpc: [] as Array<number> }
  for (let round = 0; round <= 11; round++) {
    for (const name of ["floor", "bus", "rpc"] as const) {
      const code = groups[name].map((from) => `import ${JSON.stringify(from)}`).join("\n")
      const begun = performance.now()
      const { status, stderr } = spawnSync(process.execPath, ["--input-type=module", "-e", code], {
        cwd: fileURLToPath(new URL("..", import.meta.url)),
        encoding: "utf8"
      })
      if (status !== 0) throw new Error(stderr)
      if (round > 0) times[name].push(performance.now() - begun)
    }
  }
  const own = median(times.floor)
  return { bus: median(times.bus) - own, rpc: median(times.rpc) - own }
}

export const store = async (): Promise<ReadonlyArray<BenchResult>> => {
  const bus = await measure("bus")
  const rpc = await measure("rpc")
  const imported = importCosts()
  const micros = { unit: "us", lowerIsBetter: true }
  return [
    { case: "get, round trip", ...micros, ours: bus.get, reference: rpc.get },
    { case: "put, round trip", ...micros, ours: bus.put, reference: rpc.put },
    { case: "put of one client until another one's watch shows it", ...micros, ours: bus.watch, reference: rpc.watch },
    { case: "gets, 64 at once", unit: "1/s", lowerIsBetter: false, ours: bus.many, reference: rpc.many },
    {
      case: "imports beyond effect's own: guarded socket or rpc over sockets",
      unit: "ms",
      lowerIsBetter: true,
      ours: imported.bus,
      reference: imported.rpc
    }
  ]
}
