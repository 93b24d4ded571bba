// SPDX-License-Identifier: Apache-2.0
/** How much memory of which kind a rank takes whose tensors lie on a device. Pure. */
import { boundedBytes, deviceInFlight } from "@tensorferry/model/BoundedRegions"
import * as Schema from "effect/Schema"

const mebi = 2 ** 20
/** As the engine divides memory: small tensors share arenas, and those from a quarter of one on have a block each. */
const arenaBytes = 64 * mebi
const dedicatedBytes = arenaBytes / 4
/** Drivers give whole pages of this size. */
const pageBytes = 2 * mebi
/** A pinned buffer begins and ends at such a page of the host. */
const pinnedPageBytes = 64 * 1024
/** Portions of what is converted as it is read that are under way at once. */
const convertedInFlight = 2

const rounded = (bytes: number, to: number): number => Math.ceil(bytes / to) * to

/** Bytes by the kind of memory, beside what the program itself takes. */
export interface JobMemory {
  /** Of the host, as any process has it. */
  readonly host: number
  /** Of the host, where the device reaches it: portions on their way from and to files. */
  readonly pinned: number
  /** Of the device: tensors, and buffers of the update. */
  readonly device: number
}

/** What a rank holds. */
export interface HeldBytes {
  /** Of each tensor, both sides. */
  readonly tensors: ReadonlyArray<number>
  /** Buffers of the update. */
  readonly buffers: number
  /** Whether values are made of what is read, to load or to prove them. */
  readonly isConverted: boolean
}

/** What a rank takes at its peak. */
export const jobMemory = ({ buffers, isConverted, tensors }: HeldBytes): JobMemory => {
  const large = tensors.filter((bytes) => bytes >= dedicatedBytes)
  const small = tensors.reduce((sum, bytes) => sum + (bytes >= dedicatedBytes ? 0 : bytes), 0)
  const portion = tensors.reduce((most, bytes) => Math.max(most, Math.min(bytes, boundedBytes)), 0)
  // Values, what they become, and its scales.
  const converted = isConverted ? convertedInFlight * 3 * portion : 0
  return {
    host: isConverted ? convertedInFlight * portion : 0,
    pinned: portion === 0 ? 0 : deviceInFlight * (rounded(portion, pinnedPageBytes) + pinnedPageBytes),
    device:
      large.reduce((sum, bytes) => sum + rounded(bytes, pageBytes), 0) +
      rounded(small + converted, arenaBytes) +
      rounded(buffers, pageBytes)
  }
}

/** What the driver says of the device of a rank. */
export const DeviceShare = Schema.Struct({
  /** Names the device, whatever its number here. */
  id: Schema.String,
  /** For people, as `cuda:0`. */
  name: Schema.String,
  /** Bytes that the rank takes. */
  needed: Schema.Finite,
  /** Bytes that were free before. */
  free: Schema.Finite
})
export type DeviceShare = typeof DeviceShare.Type
