// SPDX-License-Identifier: Apache-2.0
/**
 * Proof that a storage is memory of this process, where it says it is.
 *
 * Invariant: a storage that proved it once is believed until its buffer is detached.
 */
import type { Storage } from "@tensorferry/core/tensor/Storage"
import type { NativeAnswer } from "./NativeAddon.ts"

/** Asks the addon where bytes lie. */
export interface AddressOf {
  /** Of the first byte. Fails with InvalidArgument for a detached buffer. */
  readonly addressOf: (bytes: Uint8Array) => NativeAnswer<bigint>
}

/** Why a storage is no memory of this process; `detail` is a sentence. */
export interface HostFault {
  readonly tag: "InvalidRequest" | "FreedStorage"
  readonly detail: string
}

/** Makes the function that says why a storage is no memory of this process that native work may touch. */
export const makeHostProof = (addon: AddressOf) => {
  const proven = new WeakSet<Storage>()
  return (storage: Storage): HostFault | undefined => {
    const { generation, bytes } = storage
    if (bytes === undefined) {
      return { tag: "InvalidRequest", detail: `Storage ${generation} shows no bytes to the host.` }
    }
    const { buffer } = bytes
    if (buffer instanceof ArrayBuffer && buffer.detached) {
      return { tag: "FreedStorage", detail: `The buffer of storage ${generation} was transferred or detached.` }
    }
    if (proven.has(storage)) return undefined
    const address = addon.addressOf(bytes)
    const isThere = address.code === "Ok" && (address.value === storage.address || storage.byteLength === 0)
    if (!isThere || bytes.byteLength < storage.byteLength) {
      return { tag: "InvalidRequest", detail: `Storage ${generation} states an address where its bytes do not lie.` }
    }
    proven.add(storage)
    return undefined
  }
}
