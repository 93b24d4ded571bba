// SPDX-License-Identifier: Apache-2.0
/**
 * What a ring on a device knows of its rows: how far they are reserved and written, and their weights. The same on every
 * device; here in plain TypeScript, as the reference and for engines without kernels.
 *
 * Invariant: a row has a weight exactly while it can be drawn. A step that does not continue what was there before it marks
 * the ring as torn and changes nothing else.
 */
import { SumTree } from "./SumTree.ts"

/** The words of a ring and the weights of its rows. */
export class RingModel {
  readonly capacity: number
  readonly weights: SumTree
  #reserved = 0
  #written = 0
  #isTorn = false

  constructor(capacity: number) {
    this.capacity = capacity
    this.weights = new SumTree(capacity)
  }

  /** Rows begun, and rows complete, counted from the ring's birth. */
  get reserved(): number {
    return this.#reserved
  }
  get written(): number {
    return this.#written
  }
  /** Whether a step contradicted the words. */
  get isTorn(): boolean {
    return this.#isTorn
  }

  /** Oldest row that can be drawn. */
  get first(): number {
    return Math.min(Math.max(0, this.#reserved - this.capacity), this.#written)
  }

  /** Whether the row is there: written, and not about to be overwritten. */
  has(position: number): boolean {
    return position >= this.first && position < this.#written
  }

  /** Takes rows out of the draws that these are about to overwrite. Rows that were begun and not committed may begin again. */
  reserve(at: number, rows: number): void {
    const end = at + rows
    if (at < this.#written || at > this.#reserved || end - this.#written > this.capacity) {
      this.#isTorn = true
      return
    }
    this.#reserved = Math.max(this.#reserved, end)
    for (let row = at; row < end; row++) this.weights.set(row % this.capacity, 0)
  }

  /** Lets rows be drawn, each with this weight. */
  commit(at: number, rows: number, weight: number): void {
    const end = at + rows
    if (at !== this.#written || end > this.#reserved) {
      this.#isTorn = true
      return
    }
    for (let row = at; row < end; row++) this.weights.set(row % this.capacity, weight)
    this.#written = end
  }

  /** Gives rows that are there new weights: of those that come twice, the largest of theirs. */
  weigh(positions: BigInt64Array, weights: Uint32Array): void {
    const largest = new Map<number, number>()
    for (const [at, given] of positions.entries()) {
      const position = Number(given)
      if (this.has(position)) largest.set(position, Math.max(largest.get(position) ?? 0, weights[at]!))
    }
    for (const [position, weight] of largest) this.weights.set(position % this.capacity, weight)
  }
}
