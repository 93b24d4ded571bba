// SPDX-License-Identifier: Apache-2.0
/**
 * Serves a store over TCP: the default meeting place of agents, within the first of them.
 *
 * Rules
 * - Without a token it listens on loopback only. With one, both ends prove that they know it; the traffic itself is not
 *   encrypted.
 * - Entries that a connection put as ephemeral go with the connection.
 * - A connection that breaks the protocol, does not prove itself in time or does not read what it is sent is closed.
 * - Answers leave in pages, the next when the peer has taken the last ones: no answer exceeds the longest message, and what
 *   waits for a slow reader is the entries themselves, which are there anyway.
 */

import * as Effect from "effect/Effect"
import type { FramedSocket } from "../socket/FramedSocket.ts"
import { listen } from "../socket/GuardedSocket.ts"
import { isLoopback } from "./addresses.ts"
import { entryBytes, KeyValueMap } from "./KeyValueMap.ts"
import { entryFault, keyValueError } from "./KeyValueStore.ts"
import {
  defaultFrameBytes,
  type FromClient,
  type FromServer,
  fitsPage,
  guardOf,
  pagesOf,
  serverTalk
} from "./messages.ts"

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

/** Answers that may wait for a peer to read, and watches of one connection. */
const mostWaiting = 4096
const mostWatches = 1024

/** The answers of one connection, in order. Each is made when its turn comes. */
const makeAnswers = (socket: FramedSocket, send: (message: FromServer) => void, frameBytes: number) => {
  const waiting: Array<Iterator<FromServer, void>> = []
  let isResting = false
  const pump = (): void => {
    while (!isResting && waiting.length > 0 && socket.isOpen()) {
      if (socket.bytesQueued() > frameBytes) {
        isResting = true
        const goOn = Effect.sync(() => {
          isResting = false
          pump()
        })
        Effect.runFork(Effect.andThen(socket.drained, goOn))
        return
      }
      const page = waiting[0]!.next()
      if (page.done === true) waiting.shift()
      else send(page.value)
    }
  }
  return (answer: Iterator<FromServer, void>): void => {
    if (waiting.length >= mostWaiting) socket.destroy("it does not read what it is sent")
    else waiting.push(answer)
    pump()
  }
}

/** What all connections share. */
interface Served {
  readonly map: KeyValueMap
  readonly mostBytes: number
  readonly frameBytes: number
}

/** Serves one proved connection until it ends. */
const serveConnection = (socket: FramedSocket, { map, mostBytes, frameBytes }: Served): void => {
  const owner = {}
  const { send, listen: receiveAll } = serverTalk(socket)
  const watches = new Map<number, () => void>()
  const add = makeAnswers(socket, send, frameBytes)
  const answer = (message: FromServer) => add([message].values())
  const refuse = (id: number, detail: string) => answer({ type: "refused", id, detail })
  const watch = (id: number, prefix: string) => {
    let isDue = false
    const pages = function* () {
      isDue = false
      if (watches.has(id)) yield* pagesOf(id, map.list(prefix), frameBytes)
    }
    const changed = () => {
      if (isDue) return
      isDue = true
      setImmediate(() => add(pages()))
    }
    watches.get(id)?.()
    watches.set(id, map.watch(prefix, changed))
    changed()
  }
  const faultOf = (key: string, value: string): string | undefined => {
    const fault = entryFault(key, value)
    if (fault !== undefined) return fault
    if (!fitsPage(key, value, frameBytes)) return "The entry is too long for a message."
    return map.byteLength + entryBytes(key, value) > mostBytes ? "The store is full." : undefined
  }
  const put = ({ id, key, value, isEphemeral }: FromClient & { readonly type: "put" }) => {
    const fault = faultOf(key, value)
    if (fault !== undefined) return refuse(id, fault)
    map.put(key, value, isEphemeral ? owner : undefined)
    return answer({ type: "done", id, value: null })
  }
  const create = ({ id, key, value }: FromClient & { readonly type: "create" }) => {
    const fault = map.get(key) === undefined ? faultOf(key, value) : undefined
    return fault === undefined ? answer({ type: "done", id, value: map.create(key, value) }) : refuse(id, fault)
  }
  const receive = (message: FromClient) => {
    switch (message.type) {
      case "put":
        return put(message)
      case "create":
        return create(message)
      case "remove":
        map.remove(message.key)
        return answer({ type: "done", id: message.id, value: null })
      case "get":
        return answer({ type: "done", id: message.id, value: map.get(message.key) ?? null })
      case "list": {
        const { id, prefix } = message
        const pages = function* () {
          yield* pagesOf(id, map.list(prefix), frameBytes)
        }
        return add(pages())
      }
      case "watch":
        return watches.size < mostWatches || watches.has(message.id)
          ? watch(message.id, message.prefix)
          : refuse(message.id, `The connection has ${mostWatches} watches.`)
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
  const frameBytes = options.maxFrameBytes ?? defaultFrameBytes
  const port = options.port ?? 0
  return yield* Effect.mapError(
    listen({
      address: { host, port },
      guard: guardOf(options),
      attend: (socket) => serveConnection(socket, { map, mostBytes, frameBytes })
    }),
    ({ detail }) =>
      keyValueError("InvalidOptions", {
        op: "serve",
        detail: `Port ${port} of ${host} cannot be served: ${detail}.`,
        remedy: "Choose another port."
      })
  )
})
