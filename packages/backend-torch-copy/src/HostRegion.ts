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

  free(): void {
    HostRegion.freed += 1
    this.pins.whenUnpinned(this.#release)
  }
}
