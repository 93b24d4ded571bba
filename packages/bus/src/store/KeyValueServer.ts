// SPDX-License-Identifier: Apache-2.0
/**
 * Serves a store over TCP: the default meeting place of agents, within the first of them.
 *
 * Rules
 * - Without a token it listens on loopback only. With one, both ends prove that they know it; the traffic itself is not
 *   encrypted.
 * - Entries that a connection put as ephemeral go with the connection.
 * - A connection that breaks the protocol, does not prove itself in time or does not read what it is sent is closed.
 */

import * as Effect from "effect/Effect"
import type { FramedSocket } from "../socket/FramedSocket.ts"
import { listen } from "../socket/GuardedSocket.ts"
import { isLoopback } from "./addresses.ts"
import { KeyValueMap } from "./KeyValueMap.ts"
import { keyValueError } from "./KeyValueStore.ts"
import { type FromClient, guardOf, serverTalk } from "./messages.ts"

/** Where a store is served, to whom, and how much it takes. */
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

const defaultBytes = 256 * 2 ** 20

/** Serves one proved connection until it ends. */
const serveConnection = (socket: FramedSocket, map: KeyValueMap, mostBytes: number): void => {
  const owner = {}
  const { send, listen: receiveAll } = serverTalk(socket)
  const watches = new Map<number, () => void>()
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
    switch (message.type) {
      case "put":
        if (map.byteLength + message.key.length + message.value.length > mostBytes) {
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
  receiveAll(receive, () => {
    for (const stop of watches.values()) stop()
    watches.clear()
    map.disown(owner)
  })
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
  const mostBytes = options.maxBytes ?? defaultBytes
  const port = options.port ?? 0
  return yield* Effect.mapError(
    listen({
      address: { host, port },
      guard: guardOf(options),
      attend: (socket) => serveConnection(socket, map, mostBytes)
    }),
    ({ detail }) =>
      keyValueError("InvalidOptions", {
        op: "serve",
        detail: `Port ${port} of ${host} cannot be served: ${detail}.`,
        remedy: "Choose another port."
      })
  )
})
