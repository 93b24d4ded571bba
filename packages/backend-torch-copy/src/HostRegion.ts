/**
 * What `Storage.sharing` holds for memory of this package: where it lies, and who still uses it.
 *
 * Invariant: `free` gives the region back only when no native work that could touch it is left. Regions of one memory file
 * share a count of pins: a batch over thousands of tensors then pins a few files.
 */
import { makePinCount, type PinCount } from "./PinCount.ts"

/** Where other processes find the region: a memory file of this process. */
export interface RegionOrigin {
  readonly descriptor: number
  readonly inode: bigint
  readonly byteOffset: number
}

export class HostRegion {
  /** Absent for memory that another process owns. */
  readonly origin: RegionOrigin | undefined
  /** False for memory of another process: copies into it would never reach its owner. */
  readonly isWritable: boolean
  readonly pins: PinCount
  readonly #release: () => void

  constructor(origin: RegionOrigin | undefined, isWritable: boolean, release: () => void, pins = makePinCount()) {
    this.origin = origin
    this.isWritable = isWritable
    this.pins = pins
    this.#release = release
  }

  free(): void {
    this.pins.whenUnpinned(this.#release)
  }
}
