// SPDX-License-Identifier: Apache-2.0
/**
 * The native addon as TypeScript sees it, and how it is found. Nothing is loaded before the first use.
 */
import {
  type AddonIdentity,
  addonLoader,
  type Done,
  type NativeAnswer,
  type NativeHandle
} from "@tensorferry/native/NativeAddon"
import type { JobControl, NativeJobHandle } from "@tensorferry/native/NativeJob"

/** Name of this backend in errors and reports. */
export const backendName = "tcp"

/** One rank on the network, until `closeEndpoint`. */
export type NativeEndpoint = NativeHandle<"endpoint">
export type NativePeer = NativeHandle<"peer">
/** All that a program sends to a peer, or gets from it. */
export type NativeFlow = NativeHandle<"flow">

export interface OpenedEndpoint {
  readonly endpoint: NativeEndpoint
  /** Where it listens, by address. */
  readonly ports: ReadonlyArray<number>
}

export interface Addon extends AddonIdentity, JobControl {
  /** `id` has 16 bytes, `key` 32. A port of 0 takes a free one at each address. */
  readonly createEndpoint: (
    rank: number,
    id: Uint8Array,
    key: Uint8Array,
    threads: number,
    lanes: number,
    deadlineMillis: number,
    addresses: ReadonlyArray<string>,
    port: number
  ) => NativeAnswer<OpenedEndpoint>
  /** Ends its threads; what is under way fails with Cancelled. */
  readonly closeEndpoint: (endpoint: NativeEndpoint) => NativeAnswer<undefined>
  /** Ways to the peer: from an address of this host, or from any where the text is empty, to one of the peer's. */
  readonly addPeer: (
    endpoint: NativeEndpoint,
    rank: number,
    id: Uint8Array,
    key: Uint8Array,
    from: ReadonlyArray<string>,
    addresses: ReadonlyArray<string>,
    ports: ReadonlyArray<number>
  ) => NativeAnswer<NativePeer>
  readonly closePeer: (endpoint: NativeEndpoint, peer: NativePeer) => NativeAnswer<undefined>
  /** Ends when there is a lane to the peer. The item of a failure is the peer's rank, in `startTransfer` too. */
  readonly connectPeer: (
    endpoint: NativeEndpoint,
    peer: NativePeer,
    done: Done<undefined>
  ) => NativeAnswer<NativeJobHandle>
  /** The addresses of this end and the other of each lane that is open. */
  readonly describePeer: (endpoint: NativeEndpoint, peer: NativePeer) => NativeAnswer<ReadonlyArray<string>>
  readonly addFlow: (
    endpoint: NativeEndpoint,
    peer: NativePeer,
    program: number,
    isSending: boolean,
    table: BigUint64Array
  ) => NativeAnswer<NativeFlow>
  /** A run under way fails. When this returns, memory of the flow is not touched any more. */
  readonly closeFlow: (endpoint: NativeEndpoint, flow: NativeFlow) => NativeAnswer<undefined>
  readonly startTransfer: (
    endpoint: NativeEndpoint,
    flows: ReadonlyArray<NativeFlow>,
    done: Done<undefined>
  ) => NativeAnswer<NativeJobHandle>
}

const loader = addonLoader<Addon>(backendName, import.meta.url, 1)

/** The folder that holds `build` or `prebuilds`: one above both `src` and `dist`. */
export const packageFolder = loader.folder

/** Loads the addon once per process. It fails with Unavailable, which lists what was tried. */
export const loadAddon = loader.load
