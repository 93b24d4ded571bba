/**
 * Serves a store over TCP: the default meeting place of agents, within the first of them.
 *
 * Rules
 * - Without a token it listens on loopback only. With one, both ends prove that they know it; the traffic itself is not
 *   encrypted.
 * - Entries that a connection put as ephemeral go with the connection.
 * - A connection that breaks the protocol, does not prove itself in time or does not read what it is sent is closed.
 */
import { randomBytes } from "node:crypto"
import { createServer, type Server, type Socket } from "node:net"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { isLoopback } from "./addresses.ts"
import {
  clientCodec,
  type FromClient,
  type FromServer,
  frameOf,
  isProof,
  proofOf,
  readFrames,
  serverCodec
} from "./frames.ts"
import { KeyValueMap } from "./KeyValueMap.ts"
import { type KeyValueError, keyValueError } from "./KeyValueStore.ts"

export interface ServerOptions {
  /** 127.0.0.1 by default. */
  readonly host?: string
  /** 0, the default, takes any free port. */
  readonly port?: number
  readonly token?: string
  /** Longest message; 16 MiB by default. */
  readonly maxFrameBytes?: number
  /** Most bytes of all entries together; 256 MiB by default. */
  readonly maxBytes?: number
}

const proveMillis = 10_000
const defaultFrameBytes = 16 * 2 ** 20
const defaultBytes = 256 * 2 ** 20

const encode = Schema.encodeSync(serverCodec)

/** Serves one connection until it ends. */
const serveConnection = (socket: Socket, map: KeyValueMap, options: ServerOptions): void => {
  const owner = {}
  const token = options.token ?? ""
  const nonce = randomBytes(16).toString("hex")
  const mostBytes = options.maxFrameBytes ?? defaultFrameBytes
  const watches = new Map<number, () => void>()
  let isProven = false
  const send = (message: FromServer) => {
    if (socket.destroyed) return
    socket.write(frameOf(encode(message)))
    // Whoever does not read must not fill this process's memory.
    if (socket.writableLength > 4 * mostBytes) socket.destroy()
  }
  const late = setTimeout(() => socket.destroy(), proveMillis)
  const watch = (id: number, prefix: string) => {
    let isTold = false
    const tell = () => {
      if (isTold) return
      isTold = true
      setImmediate(() => {
        isTold = false
        if (watches.has(id)) send({ type: "entries", id, entries: [...map.list(prefix)] })
      })
    }
    watches.get(id)?.()
    watches.set(id, map.watch(prefix, tell))
    tell()
  }
  const receive = (message: FromClient) => {
    if (!isProven) {
      if (message.type !== "prove" || !isProof(message.proof, proofOf(token, "client", [nonce, message.nonce]))) {
        socket.destroy()
        return
      }
      isProven = true
      clearTimeout(late)
      lift()
      return send({ type: "proven", proof: proofOf(token, "server", [nonce, message.nonce]) })
    }
    switch (message.type) {
      case "prove":
        socket.destroy()
        return
      case "put":
        if (map.byteLength + message.key.length + message.value.length > (options.maxBytes ?? defaultBytes)) {
          return send({ type: "refused", id: message.id, detail: "The store is full." })
        }
        map.put(message.key, message.value, message.isEphemeral ? owner : undefined)
        return send({ type: "done", id: message.id, value: null })
      case "remove":
        map.remove(message.key)
        return send({ type: "done", id: message.id, value: null })
      case "get":
        return send({ type: "done", id: message.id, value: map.get(message.key) ?? null })
      case "list":
        return send({ type: "entries", id: message.id, entries: [...map.list(message.prefix)] })
      case "watch":
        return watch(message.id, message.prefix)
      case "unwatch":
        watches.get(message.id)?.()
        watches.delete(message.id)
    }
  }
  const lift = readFrames(socket, clientCodec, mostBytes, receive, () => socket.destroy())
  socket.setNoDelay(true)
  socket.setKeepAlive(true, 5_000)
  socket.on("error", () => socket.destroy())
  socket.on("close", () => {
    clearTimeout(late)
    for (const stop of watches.values()) stop()
    watches.clear()
    map.disown(owner)
  })
  send({ type: "hello", version: 1, nonce })
}

/** Serves until the scope ends; answers the port. */
export const serveStore = Effect.fnUntraced(function* (options: ServerOptions = {}) {
  const host = options.host ?? "127.0.0.1"
  const hasToken = options.token !== undefined && options.token !== ""
  if (!hasToken && !(yield* isLoopback(host))) {
    return yield* keyValueError("InvalidOptions", {
      op: "serve",
      detail: `${host} is not a loopback address, and there is no token to keep strangers out.`,
      remedy: "Set TENSORFERRY_TOKEN to the same secret for every agent, or use 127.0.0.1."
    })
  }
  const map = new KeyValueMap()
  const sockets = new Set<Socket>()
  const server = yield* Effect.acquireRelease(
    Effect.callback<Server, KeyValueError>((resume) => {
      const made = createServer((socket) => {
        sockets.add(socket)
        socket.on("close", () => sockets.delete(socket))
        serveConnection(socket, map, options)
      })
      made.once("error", (error) =>
        resume(
          Effect.fail(
            keyValueError("InvalidOptions", {
              op: "serve",
              detail: `Port ${options.port ?? 0} of ${host} cannot be served: ${error.message}.`,
              remedy: "Choose another port."
            })
          )
        )
      )
      made.listen({ host, port: options.port ?? 0 }, () => resume(Effect.succeed(made)))
      return Effect.sync(() => made.close())
    }),
    (made) =>
      Effect.callback<void>((resume) => {
        made.close(() => resume(Effect.void))
        for (const socket of sockets) socket.destroy()
      })
  )
  const address = server.address()
  return typeof address === "object" && address !== null ? address.port : (options.port ?? 0)
})
