// SPDX-License-Identifier: Apache-2.0
/**
 * What `Storage.sharing` holds for memory of this package: where it lies, and who still uses it.
 *
 * Invariant: `free` gives the region back only when no native work that could touch it is left. Regions of one memory file
 * share a count of pins: a batch over thousands of tensors then pins a few files.
 */
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import { makePinCount, type PinCount } from "./PinCount.ts"

/** Where other processes find the region: a memory file of this process. */
export interface RegionOrigin {
  readonly descriptor: number
  readonly inode: bigint
  readonly byteOffset: number
}

export class HostRegion {
  /** How many regions of this process were freed so far: what was true of all stays true while this stays. */
  static freed = 0
  /** First byte, as a number: host addresses are below 2^53. */
  readonly address: number
  /** Absent for memory that another process owns. */
  readonly origin: RegionOrigin | undefined
  /** False for a private mapping of another process's memory: copies into it would never reach its owner. */
  readonly isWritable: boolean
  readonly pins: PinCount
  readonly #release: () => void
  /** A tensor that was found to lie in this memory, densely and whole, when so many regions had been freed. */
  #dense: Tensor | undefined = undefined
  #denseBytes = 0
  #denseSince = 0

  constructor(
    address: bigint,
    origin: RegionOrigin | undefined,
    isWritable: boolean,
    release: () => void,
    pins = makePinCount()
  ) {
    this.address = Number(address)
    this.origin = origin
    this.isWritable = isWritable
    this.pins = pins
    this.#release = release
  }

  /** The bytes of a tensor that is remembered, 0 for any other. */
  denseBytesOf(tensor: Tensor): number {
    return this.#dense === tensor && this.#denseSince === HostRegion.freed ? this.#denseBytes : 0
  }

  rememberDense(tensor: Tensor, bytes: number): void {
    this.#dense = tensor
    this.#denseBytes = bytes
    this.#denseSince = HostRegion.freed
  }

  free(): void {
    HostRegion.freed += 1
    this.pins.whenUnpinned(this.#release)
  }
}
