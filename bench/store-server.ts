// SPDX-License-Identifier: Apache-2.0
/**
 * A process that serves a store of names and prints its port: `bus` as agents do, `rpc` by effect's rpc over a socket
 * server, which lets everybody in.
 */
import * as NodeSocketServer from "@effect/platform-node/NodeSocketServer"
import { serveStore } from "@tensorferry/bus/store/KeyValueServer"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Queue from "effect/Queue"
import * as RpcSerialization from "effect/rpc/RpcSerialization"
import * as RpcServer from "effect/rpc/RpcServer"
import * as Stream from "effect/Stream"
import * as SocketServer from "effect/socket/SocketServer"
import { StoreCalls } from "./storeCalls.ts"

const values = new Map<string, string>()
const watchers = new Set<() => void>()
const changed = () => {
  for (const tell of watchers) tell()
}
const under = (prefix: string) => [...values].filter(([key]) => key.startsWith(prefix))

const handlers = StoreCalls.toLayer({
  Put: ({ key, value }) =>
    Effect.sync(() => {
      values.set(key, value)
      changed()
    }),
  Get: ({ key }) => Effect.sync(() => values.get(key) ?? null),
  Watch: ({ prefix }) =>
    Stream.callback((queue) =>
      Effect.acquireRelease(
        Effect.sync(() => {
          const tell = () => void Queue.offerUnsafe(queue, under(prefix))
          watchers.add(tell)
          tell()
          return tell
        }),
        (tell) => Effect.sync(() => watchers.delete(tell))
      )
    )
})

const rpc = Effect.gen(function* () {
  const served = yield* Layer.build(
    RpcServer.layer(StoreCalls).pipe(
      Layer.provide(handlers),
      Layer.provideMerge(RpcServer.layerProtocolSocketServer),
      Layer.provideMerge(NodeSocketServer.layer({ port: 0, host: "127.0.0.1", noDelay: true })),
      Layer.provide(RpcSerialization.layerNdjson)
    )
  )
  const { address } = Context.get(served, SocketServer.SocketServer)
  return "port" in address ? address.port : 0
})

const serve = process.argv[2] === "rpc" ? rpc : serveStore({ token: "token" })

const program = Effect.gen(function* () {
  const port = yield* serve
  console.log(JSON.stringify({ port }))
  return yield* Effect.never
})

process.stdin.on("end", () => process.exit()).resume()
Effect.runFork(Effect.scoped(program))
