// SPDX-License-Identifier: Apache-2.0
/**
 * This rank on the network: where it listens, and the peers that it has met.
 *
 * Invariant: whoever connects proves that it knows this endpoint's key, which comes from the token and from a secret that only
 * the group was told. A rank that builds its driver again is another peer; what was under way with the old one has failed.
 */
import { createHmac, randomBytes } from "node:crypto"
import { availableParallelism } from "node:os"
import { type BackendError, backendError } from "@tensorferry/core/backend/BackendDescriptor"
import type { ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import { namedInterfaces } from "@tensorferry/native/driver/interfaces"
import { endpointCalls, type NativeFlow, type NativePeer } from "@tensorferry/native/driver/WireAddon"
import type { Wire } from "@tensorferry/native/driver/WireDriver"
import { resultOf } from "@tensorferry/native/NativeAddon"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { type Addon, backendName } from "./Addon.ts"
import { chooseAddresses, waysTo } from "./addresses.ts"
import type { TcpOptions } from "./options.ts"
import { PublishedEndpoint } from "./Publication.ts"

const bytesOf = (digits: string): Uint8Array => Buffer.from(digits, "hex")

/** What proves to the endpoint with this secret that one belongs to the group. */
const keyOf = (token: string | undefined, secret: string): Uint8Array =>
  createHmac("sha256", token ?? "")
    .update(`tensorferry tcp ${secret}`)
    .digest()

const unavailable = (detail: string, remedy: string, nativeCode?: number): BackendError =>
  backendError("Unavailable", {
    backend: backendName,
    op: "listen",
    detail,
    remedy,
    scope: "service",
    ...(nativeCode === undefined ? {} : { nativeCode })
  })

const defaultThreads = Math.min(4, Math.max(1, availableParallelism() >> 1))

/** Listens until the scope ends. Fails with Unavailable where the addresses cannot be used. */
export const makeNetwork = Effect.fnUntraced(function* (
  addon: Addon,
  group: ProcessGroupShape,
  token: string | undefined,
  options: TcpOptions
): Effect.fn.Return<Wire<PublishedEndpoint, NativePeer, NativeFlow>, BackendError, Scope.Scope> {
  const hasToken = token !== undefined
  const named = hasToken && options.addresses === undefined ? (options.interfaces ?? namedInterfaces()) : undefined
  const chosen = chooseAddresses({ ...(named === undefined ? {} : { interfaces: named }), ...options, hasToken })
  if (Result.isFailure(chosen)) {
    return yield* unavailable(
      chosen.failure,
      "Set TENSORFERRY_TOKEN to the same secret on every rank, and name interfaces or addresses of this host."
    )
  }
  const hosts = chosen.success
  const id = randomBytes(16).toString("hex")
  const secret = randomBytes(32).toString("hex")
  const { threads = defaultThreads, lanes = 64, port = 0 } = options
  const deadline = Math.max(1, Math.ceil(Duration.toMillis(group.deadline)))
  const { endpoint, ports } = yield* Effect.acquireRelease(
    Effect.suspend(() => {
      const key = keyOf(token, secret)
      const made = addon.createEndpoint(group.rank, bytesOf(id), key, threads, lanes, deadline, hosts, port)
      if (made.code === "Ok") return Effect.succeed(made.value)
      const remedy = "Name addresses of this host and a port that is free."
      return Effect.fail(unavailable(`${made.detail}.`, remedy, made.nativeCode))
    }),
    (opened) => Effect.sync(() => void addon.closeEndpoint(opened.endpoint))
  )
  const peers = new Map<number, { readonly id: string; readonly peer: NativePeer }>()

  let attends = false
  const endAttending = () => {
    attends = false
    addon.endAttending(endpoint)
  }

  return {
    ...endpointCalls(addon, endpoint),
    schema: PublishedEndpoint,
    published: { id, secret, addresses: hosts.map((host, at) => ({ host, port: ports[at]! })) },
    meet: (rank, published) => {
      const known = peers.get(rank)
      if (known?.id === published.id) return Result.succeed(known.peer)
      if (known !== undefined) addon.closePeer(endpoint, known.peer)
      const ways = waysTo(hosts, published.addresses)
      return Result.map(
        resultOf(
          addon.addPeer(
            endpoint,
            rank,
            bytesOf(published.id),
            keyOf(token, published.secret),
            ways.map(({ from }) => from),
            ways.map(({ to }) => to.host),
            ways.map(({ to }) => to.port)
          )
        ),
        (peer) => {
          peers.set(rank, { id: published.id, peer })
          return peer
        }
      )
    },
    // Receivers are dialed.
    connectsToReceive: false,
    describe: (rank) => {
      const known = peers.get(rank)
      const lanes = known === undefined ? undefined : addon.describePeer(endpoint, known.peer)
      const ways = lanes?.code === "Ok" ? [...new Set(lanes.value)].sort() : []
      return { path: backendName, reason: ways.length === 0 ? "no lane yet" : `over ${ways.join(", ")}` }
    },
    attend: (transfer) => {
      const attended = addon.attendTransfer(endpoint, transfer)
      const isDone = attended.code === "Ok" && attended.value
      if (isDone && !attends) {
        attends = true
        setImmediate(endAttending)
      }
      return isDone
    },
    addFlow: (peer, { program, isSending, table }) => resultOf(addon.addFlow(endpoint, peer, program, isSending, table))
  }
})
