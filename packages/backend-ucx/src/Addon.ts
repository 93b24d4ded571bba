// SPDX-License-Identifier: Apache-2.0
/**
 * The native addon as TypeScript sees it, and how it is found. Nothing is loaded before the first use.
 */
import type { NativeEndpoint, NativeFlow, NativePeer, WireAddon } from "@tensorferry/native/driver/WireAddon"
import { addonLoader, type NativeAnswer, type NativeHandle } from "@tensorferry/native/NativeAddon"

/** Name of this backend in errors and reports. */
export const backendName = "ucx"

/** The UCX that the process has opened. */
export type NativeLibrary = NativeHandle<"library">
/** Memory that UCX was told of. */
export type NativeRegion = NativeHandle<"region">

/** What came of looking for UCX; without `library`, `problem` says why there is none. */
export interface LibraryAnswer {
  readonly tried: ReadonlyArray<string>
  readonly problem: string
  readonly library?: NativeLibrary
  readonly path?: string
  readonly version?: string
  /** Major and minor version: addresses are read by the same only. */
  readonly interface?: string
}

export interface OpenedEndpoint {
  readonly endpoint: NativeEndpoint
  /** What peers reach this rank by. */
  readonly address: Uint8Array
  /** Transports with their devices. */
  readonly transports: ReadonlyArray<string>
}

/** How a peer is reached, in UCX's own words. */
export interface PeerLanes {
  readonly lanes: string
  /** Whether dense chunks are written by remote keys. */
  readonly isPutting: boolean
}

/** How chunks travel, by number. */
export const ways = ["auto", "put", "messages", "emulated-put"] as const

export interface Addon extends WireAddon {
  /** Opens the first of these that serves, once per process. */
  readonly openLibrary: (names: ReadonlyArray<string>) => NativeAnswer<LibraryAnswer>
  /**
   * `slots` chunks of memory for what leaves and as many for what comes; `way` is a position in `ways`. Configuration of UCX by
   * name and value: names that begin with "?" are left out where this UCX does not know them.
   */
  readonly createEndpoint: (
    library: NativeLibrary,
    rank: number,
    deadlineMillis: number,
    slots: number,
    peers: number,
    way: number,
    names: ReadonlyArray<string>,
    values: ReadonlyArray<string>
  ) => NativeAnswer<OpenedEndpoint>
  /** Tickets have 16 bytes. */
  readonly addPeer: (
    endpoint: NativeEndpoint,
    rank: number,
    address: Uint8Array,
    ours: Uint8Array,
    theirs: Uint8Array
  ) => NativeAnswer<NativePeer>
  readonly describePeer: (endpoint: NativeEndpoint, peer: NativePeer) => NativeAnswer<PeerLanes>
  /** Memory that UCX refuses is used all the same, by way of memory that it took. */
  readonly registerMemory: (endpoint: NativeEndpoint, address: bigint, byteLength: number) => NativeAnswer<NativeRegion>
  readonly unregisterMemory: (endpoint: NativeEndpoint, region: NativeRegion) => NativeAnswer<undefined>
  readonly addFlow: (
    endpoint: NativeEndpoint,
    peer: NativePeer,
    program: number,
    isSending: boolean,
    digest: bigint,
    table: BigUint64Array,
    regions: ReadonlyArray<NativeRegion>
  ) => NativeAnswer<NativeFlow>
}

const loader = addonLoader<Addon>(backendName, import.meta.url, 2)

/** The folder that holds `build` or `prebuilds`: one above both `src` and `dist`. */
export const packageFolder = loader.folder

/** Loads the addon once per process. It fails with Unavailable, which lists what was tried. */
export const loadAddon = loader.load
