// SPDX-License-Identifier: Apache-2.0
/**
 * What an engine does for a replay ring whose rows lie in its memory: steps that take rows in and draw batches, each run
 * where the rows are.
 *
 * Contract
 * - Row `r` is the r-th ever pushed and lies at slot `r` modulo capacity. The device's own words say how many rows are
 *   reserved and how many are written; a `Sample` reads them there. It draws from `[max(0, reserved - capacity), written)`.
 * - Steps of one stream happen in the order of the list. Steps of two streams may happen at the same time, in pieces, unless
 *   a `Wait` on one follows a `Record` of the same event on the other. Runs of a ring happen one after the other.
 * - Draw `k` of a sample is the k-th accepted candidate of the numbers that seed and tick fix (`rowDraws`), whatever the
 *   device. A candidate is one number of 32 bits, shifted to the bits of the range; of weighted draws it is two, the high half
 *   first, shifted to the bits of the sum of all weights, and means the row in whose share it falls. Rejected are those
 *   beyond the range, and windows that `episodes` forbids. After `candidateLimit` candidates the sample gives up.
 * - Sums of weights are exact: weights are whole numbers of 32 bits, sums have 64.
 */
import type { Tensor } from "../tensor/Tensor.ts"

/** How rows lie in a ring. All numbers are natural. */
export interface RingGeometry {
  /** Rows, up to 2^31. */
  readonly capacity: number
  /** A multiple of 8. */
  readonly rowBytes: number
  /** Places of columns in a row. */
  readonly columns: ReadonlyArray<{ readonly byteOffset: number; readonly byteLength: number }>
  /** Which byte of a row is not 0 where the row is the last of its episode. */
  readonly episodeEnd?: number
}

/** One batch to draw: `count` windows of `window` rows that follow one another. */
export interface RingSample {
  /** A natural number up to 2^53. */
  readonly seed: number
  /** Another one. */
  readonly tick: number
  /** Windows, 1 to 2^24. */
  readonly count: number
  /** Rows of each; 1 to 2^16. */
  readonly window: number
  /** Each window equally often, or in proportion to the weight of its first row. */
  readonly draws: "uniform" | "weighted"
  /** Windows may cross the end of an episode, never do, or are cut there: then the last row stands in for those behind it. */
  readonly episodes: "cross" | "whole" | "cut"
  /** Rows one behind the other, or columns: each dense, at multiples of `columnAlignment` bytes. */
  readonly packing: "rows" | "columns"
  /** uint8, dense: where the rows go. */
  readonly into: Tensor
  /** int64 `[count]`: gets the first row of each window. */
  readonly positions: Tensor
  /** uint32 `[count]`: gets the rows of each window up to the end of its episode. */
  readonly lengths: Tensor
}

/** Columns of a batch begin at multiples of this. */
export const columnAlignment = 256

/** Candidates that a sample looks at, at most. */
export const candidateLimit = (count: number): number => 1024 + 64 * count

/** What the device is to do. */
export type RingWork =
  /** These rows are about to be overwritten: nothing draws them any more. */
  | { readonly _tag: "Reserve"; readonly at: number; readonly rows: number }
  /** Copies packed rows from a dense host tensor of bytes; they do not reach beyond the last slot. */
  | { readonly _tag: "Place"; readonly at: number; readonly source: Tensor }
  /** The rows are in place, each with this weight: from now on they are drawn. */
  | { readonly _tag: "Commit"; readonly at: number; readonly rows: number; readonly weight: number }
  | ({ readonly _tag: "Sample" } & RingSample)
  /**
   * Gives rows new weights: int64 and uint32, dense, of one length. Rows that are no longer there are passed over; of the
   * weights of a row that comes twice, the largest counts.
   */
  | { readonly _tag: "Weigh"; readonly positions: Tensor; readonly weights: Tensor }
  | { readonly _tag: "Record" | "Wait"; readonly event: number }

/** Work on one of two streams. */
export type RingStep = RingWork & { readonly stream: 0 | 1 }

/** What a sample drew from. */
export interface RingAnswer {
  /** Oldest row that could be drawn. */
  readonly first: number
  /** One behind the newest. */
  readonly end: number
  /** Windows drawn: fewer than asked for where candidates ran out, and then the batch is not to be used. */
  readonly drawn: number
  /** Sum of the weights of all rows. */
  readonly total: bigint
  /** A commit or reservation did not continue what was there before it: something else writes to the ring's words. */
  readonly isTorn: boolean
}
