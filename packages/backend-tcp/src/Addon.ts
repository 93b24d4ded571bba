// SPDX-License-Identifier: Apache-2.0
/**
 * The native addon as TypeScript sees it, and how it is found. Nothing is loaded before the first use.
 */
import type { NativeEndpoint, NativeFlow, NativePeer, WireAddon } from "@tensorferry/native/driver/WireAddon"
import { addonLoader, type NativeAnswer } from "@tensorferry/native/NativeAddon"
import type { NativeJobHandle } from "@tensorferry/native/NativeJob"

/** Name of this backend in errors and reports. */
export const backendName = "tcp"

export interface OpenedEndpoint {
  readonly endpoint: NativeEndpoint
  /** Where it listens, by address. */
  readonly ports: ReadonlyArray<number>
}

export interface Addon extends WireAddon {
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
  /** The addresses of this end and the other of each lane that is open. */
  readonly describePeer: (endpoint: NativeEndpoint, peer: NativePeer) => NativeAnswer<ReadonlyArray<string>>
  /**
   * Looks at the sockets of a short transfer for a moment, on this thread. True where it has ended well, and then `done` is
   * not called, and `endAttending` is to be when the turn ends.
   */
  readonly attendTransfer: (endpoint: NativeEndpoint, transfer: NativeJobHandle) => NativeAnswer<boolean>
  /** Leaves the sockets to the endpoint's threads again. */
  readonly endAttending: (endpoint: NativeEndpoint) => NativeAnswer<undefined>
  readonly addFlow: (
    endpoint: NativeEndpoint,
    peer: NativePeer,
    program: number,
    isSending: boolean,
    table: BigUint64Array
  ) => NativeAnswer<NativeFlow>
}

const loader = addonLoader<Addon>(backendName, import.meta.url, 2)

/** The folder that holds `build` or `prebuilds`: one above both `src` and `dist`. */
export const packageFolder = loader.folder

/** Loads the addon once per process. It fails with Unavailable, which lists what was tried. */
export const loadAddon = loader.load
