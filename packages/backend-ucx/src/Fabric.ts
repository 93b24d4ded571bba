// SPDX-License-Identifier: Apache-2.0
/**
 * This rank as UCX knows it, the peers that it has met, and the memory that UCX was told of.
 *
 * Invariants: memory is registered once for as long as its storage lives, and no longer. A rank that builds its driver again is
 * another peer; what was under way with the old one has failed.
 */
import { randomBytes } from "node:crypto"
import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import type { ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import type { Storage } from "@tensorferry/core/tensor/Storage"
import { namedInterfaces } from "@tensorferry/native/driver/interfaces"
import { endpointCalls, type NativeFlow, type NativePeer } from "@tensorferry/native/driver/WireAddon"
import { peerFailure, type Wire } from "@tensorferry/native/driver/WireDriver"
import { type NativeFailure, resultOf } from "@tensorferry/native/NativeAddon"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { type Addon, backendName, type NativeRegion, ways } from "./Addon.ts"
import { devicesOf } from "./devices.ts"
import { openLibrary, unavailable } from "./library.ts"
import type { UcxOptions } from "./options.ts"
import { PublishedEndpoint, proofOf, provesToken, ticketOf } from "./Publication.ts"

/** What the addon cuts a stream into, and the size of a slot of its memory. */
const chunkBytes = 2 ** 18

/** Which devices UCX may use, as UCX_NET_DEVICES takes them; undefined where that is left to it. */
export const netDevices = (
  options: UcxOptions,
  hasToken: boolean,
  environment: NodeJS.ProcessEnv = process.env
): Result.Result<string | undefined, string> => {
  if (options.devices !== undefined) return Result.succeed(options.devices)
  if (options.interfaces !== undefined) return devicesOf(options.interfaces)
  if (environment.UCX_NET_DEVICES !== undefined) return Result.succeed(undefined)
  // Strangers can talk to a port of UCX, which asks for no token.
  if (!hasToken) return Result.succeed("lo")
  const named = namedInterfaces(environment)
  return named === undefined ? Result.succeed(undefined) : devicesOf(named)
}

/**
 * Bytes of the buffers in which UCX's TCP sends and receives. A chunk with its header fits into one that is received: else UCX
 * cuts it and puts the pieces together in memory of its own, which is a copy more. A write by remote key, which TCP emulates,
 * is cut into buffers that are sent, each of which is answered.
 */
const tcpSegments: Readonly<Record<string, number>> = {
  TX_SEG_SIZE: 2 ** 16,
  RX_SEG_SIZE: chunkBytes + 2 ** 14
}

/** What the environment says of them; undefined where it says nothing. It goes for both, as the one bounds the other. */
const ownSegments = (environment: NodeJS.ProcessEnv): ReadonlyArray<string> | undefined => {
  const values = Object.keys(tcpSegments).map((name) => environment[`UCX_TCP_${name}`])
  return values.every((value) => value === undefined) ? undefined : values.map((value) => value ?? "default")
}

/** Bytes to send and to receive, as ranks compare them. */
export const segmentsOf = (environment: NodeJS.ProcessEnv = process.env): string =>
  (ownSegments(environment) ?? Object.values(tcpSegments)).join("/")

/** Configuration of UCX: options, and what neither they nor the environment say otherwise. */
export const configurationOf = (
  options: UcxOptions,
  devices: string | undefined,
  environment: NodeJS.ProcessEnv = process.env
): ReadonlyArray<readonly [name: string, value: string]> => {
  // UCX 1.13 knows settings of a transport without its name, later versions with it: neither takes the other's.
  const segments = Object.entries(tcpSegments).flatMap(([name, bytes]) =>
    ["?", "?TCP_"].map((prefix) => [`${prefix}${name}`, String(bytes)] as const)
  )
  return [
    // A chunk is one message that is copied once, and can be refused: a rendezvous would wait for memory of both ends.
    ...(environment.UCX_RNDV_THRESH === undefined ? [["RNDV_THRESH", "inf"] as const] : []),
    ...(ownSegments(environment) === undefined ? segments : []),
    ...(options.transports === undefined ? [] : [["TLS", options.transports] as const]),
    ...(devices === undefined ? [] : [["NET_DEVICES", devices] as const])
  ]
}

/** The transports among what UCX prints of a link, each once. */
export const transportsOf = (lanes: string): ReadonlyArray<string> => [
  ...new Set([...lanes.matchAll(/lane\[\d+\]:\s*\d+:([^\s]+)/g)].map(([, transport]) => transport!))
]

/** Opens UCX until the scope ends. Fails with Unavailable where there is none, or none of its transports works. */
export const makeFabric = Effect.fnUntraced(function* (
  addon: Addon,
  group: ProcessGroupShape,
  token: string | undefined,
  options: UcxOptions
): Effect.fn.Return<Wire<PublishedEndpoint, NativePeer, NativeFlow>, BackendError, Scope.Scope> {
  const { library, interface: version } = yield* openLibrary(addon, options)
  const devices = netDevices(options, token !== undefined)
  if (Result.isFailure(devices)) {
    return yield* unavailable("choose devices", `${devices.failure}.`, "Name interfaces of this host.")
  }
  const configuration = configurationOf(options, devices.success)
  const deadline = Math.max(1, Math.ceil(Duration.toMillis(group.deadline)))
  const slots = Math.floor((options.stagingBytes ?? 2 ** 25) / (2 * chunkBytes))
  const { endpoint, address } = yield* Effect.acquireRelease(
    Effect.suspend(() => {
      const made = addon.createEndpoint(
        library,
        group.rank,
        deadline,
        slots,
        group.size,
        ways.indexOf(options.transfer ?? "auto"),
        configuration.map(([name]) => name),
        configuration.map(([, value]) => value)
      )
      if (made.code === "Ok") return Effect.succeed(made.value)
      const remedy = "Choose other transports or devices; `ucx_info -d` lists them. Pinned memory needs `ulimit -l`."
      return Effect.fail(unavailable(made.op, `${made.detail}.`, remedy, made.nativeCode))
    }),
    (opened) => Effect.sync(() => void addon.closeEndpoint(opened.endpoint))
  )
  const id = randomBytes(16).toString("hex")
  const secret = randomBytes(32).toString("hex")
  const published: PublishedEndpoint = {
    id,
    secret,
    proof: proofOf(token, secret),
    version,
    segments: segmentsOf(),
    address: Buffer.from(address).toString("base64")
  }
  const peers = new Map<number, { readonly id: string; readonly peer: NativePeer }>()

  /** By generation of the storage. */
  const regions = new Map<number, { readonly region: NativeRegion; readonly keep: () => void }>()
  yield* Effect.addFinalizer(() =>
    Effect.sync(() => {
      for (const { keep } of regions.values()) keep()
    })
  )
  const regionOf = (storage: Storage): ReadonlyArray<NativeRegion> => {
    // Of less, no chunk lies in it whole.
    if (storage.byteLength < chunkBytes) return []
    const known = regions.get(storage.generation)
    if (known !== undefined) return [known.region]
    const made = addon.registerMemory(endpoint, storage.address, storage.byteLength)
    if (made.code !== "Ok") return []
    const region = made.value
    const keep = storage.onRevoke(() => {
      regions.delete(storage.generation)
      addon.unregisterMemory(endpoint, region)
    })
    regions.set(storage.generation, { region, keep })
    return [region]
  }

  const refusalOf = (rank: number, theirs: PublishedEndpoint): NativeFailure | undefined => {
    if (!provesToken(token, theirs)) return peerFailure(rank, "PermissionDenied", "has another token")
    if (theirs.version !== version) {
      const what = `has UCX ${theirs.version}, which does not read addresses of UCX ${version} here`
      return peerFailure(rank, "Unsupported", what)
    }
    if (theirs.segments !== published.segments) {
      const what = `has other buffers for TCP than this rank (${theirs.segments} and ${published.segments} bytes)`
      return peerFailure(rank, "Unsupported", `${what}: set UCX_TCP_TX_SEG_SIZE and UCX_TCP_RX_SEG_SIZE alike, or not`)
    }
    return undefined
  }

  return {
    ...endpointCalls(addon, endpoint),
    published,
    schema: PublishedEndpoint,
    meet: (rank, theirs) => {
      const known = peers.get(rank)
      if (known?.id === theirs.id) return Result.succeed(known.peer)
      const refusal = refusalOf(rank, theirs)
      if (refusal !== undefined) return Result.fail(refusal)
      if (known !== undefined) addon.closePeer(endpoint, known.peer)
      const tickets = [ticketOf(token, published, theirs), ticketOf(token, theirs, published)] as const
      const added = addon.addPeer(endpoint, rank, Buffer.from(theirs.address, "base64"), ...tickets)
      return Result.map(resultOf(added), (peer) => {
        peers.set(rank, { id: theirs.id, peer })
        return peer
      })
    },
    connectsToReceive: true,
    describe: (rank) => {
      const known = peers.get(rank)
      const answer = known === undefined ? undefined : addon.describePeer(endpoint, known.peer)
      const { lanes, isPutting } = answer?.code === "Ok" ? answer.value : { lanes: "", isPutting: false }
      const over = transportsOf(lanes).join(", ") || "no transport yet"
      return { path: isPutting ? `${backendName}-put` : `${backendName}-message`, reason: `over ${over}` }
    },
    addFlow: (peer, { program, isSending, digest, table, tensors }) =>
      resultOf(
        addon.addFlow(endpoint, peer, program, isSending, BigInt(`0x${digest.slice(0, 16)}`), table, [
          ...new Set(tensors.flatMap(({ storage }) => regionOf(storage)))
        ])
      )
  }
})
