// SPDX-License-Identifier: Apache-2.0
/**
 * A piece of device memory as other processes may come to know it.
 *
 * Invariant: a block has a number that no other block of this process ever had; whatever others derive from a block keys
 * on it, never on an address.
 */
import type * as Result from "effect/Result"
import type { ExportedMemory } from "./Addon.ts"

/** A piece of device memory that other processes map as a whole, or not at all. */
export interface Block {
  /** Names the block among those of its device. */
  readonly number: number
  /** First byte; device addresses are below 2^53. */
  readonly address: number
  /** Bytes of the whole block. */
  readonly byteLength: number
  /** Nothing lies in it. */
  readonly isEmpty: () => boolean
  /** Empty, and still kept for what comes next. */
  readonly isSpare: () => boolean
  /** What another process needs to open it, or in words why it cannot. */
  readonly exported: () => Result.Result<ExportedMemory, string>
  /** Jobs whose ranks may know the block. */
  readonly sharings: Set<Sharing>
  /** Nothing is to be put into it any more. */
  readonly retire: () => void
  /** Gives it back if nothing lies in it and nobody may know it. */
  readonly reclaim: () => void
}

let lastNumber = 0

/** Counts from 1; each call gives another number. */
export const nextBlockNumber = (): number => ++lastNumber

/** Which blocks the ranks of a job may have mapped; see `makeSharing`. */
export interface Sharing {
  /** The block is about to be published to peers. */
  readonly share: (block: Block) => void
  /** Numbers of the blocks that peers must release, to be sent with this publication. */
  readonly revoked: (publication: number) => ReadonlyArray<number>
  /** All ranks have carried out what publications up to this one said. */
  readonly settle: (publication: number) => void
  /**
   * A driver begins: publications are counted again, and all are sent again. The function that it gives back
   * is for when all ranks have closed their mappings: unless another driver has begun, nobody knows any block any more.
   */
  readonly restart: () => () => void
  /** True where no peer has opened anything of it. */
  readonly isEmpty: () => boolean
}
