// SPDX-License-Identifier: Apache-2.0
/**
 * What `Storage.sharing` holds for device memory of this package: the piece of memory it lies in, and on which device.
 *
 * Invariant: a block has a number that no other block of this process ever had; whatever others derive from a block keys
 * on it, never on an address.
 */
import type { Block } from "./Block.ts"

/** A range of a device's memory: how other devices and processes find it. */
export class DeviceRegion {
  /** First byte, as a number. */
  readonly address: number
  /** Whose libraries and which device of this process. */
  readonly family: string
  readonly ordinal: number
  readonly block: Block

  constructor(address: bigint, family: string, ordinal: number, block: Block) {
    this.address = Number(address)
    this.family = family
    this.ordinal = ordinal
    this.block = block
  }
}
