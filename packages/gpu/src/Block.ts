/**
 * A piece of device memory as other processes may come to know it.
 *
 * Invariant: a block has a number that no other block of this process ever had; whatever others derive from a block keys
 * on it, never on an address.
 */
import type * as Result from "effect/Result"
import type { ExportedMemory } from "./Addon.ts"
import type { Sharing } from "./Sharing.ts"

/** A piece of device memory that other processes map as a whole, or not at all. */
export interface Block {
  readonly number: number
  /** First byte; device addresses are below 2^53. */
  readonly address: number
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
