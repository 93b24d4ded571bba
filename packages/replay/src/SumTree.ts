// SPDX-License-Identifier: Apache-2.0
/**
 * Weights of rows with their sums over ever larger groups, so that the row in whose share a number falls is found in a few
 * steps. The reference for trees on devices, and the tree of engines that have no kernels.
 *
 * Invariants: weights are whole numbers of 32 bits and sums are exact, so the order of changes leaves no trace. A sum is
 * always that of its children: groups are summed anew, nothing is added to old sums.
 */

/** Children of a node. */
export const fanOut = 16

/** Numbers of nodes, from the level above the weights to the root. One weight has a root too. */
export const levelLengths = (capacity: number): ReadonlyArray<number> => {
  const lengths: Array<number> = []
  let length = capacity
  do {
    length = Math.ceil(length / fanOut)
    lengths.push(length)
  } while (length > 1)
  return lengths
}

/** Weights of the slots of a ring. */
export class SumTree {
  readonly #leaves: Uint32Array
  readonly #levels: ReadonlyArray<BigUint64Array>

  constructor(capacity: number) {
    this.#leaves = new Uint32Array(capacity)
    this.#levels = levelLengths(capacity).map((length) => new BigUint64Array(length))
  }

  /** The sum of all weights. */
  get total(): bigint {
    return this.#levels.at(-1)![0]!
  }

  /** The weight of a slot. */
  weightOf(slot: number): number {
    return this.#leaves[slot]!
  }

  /** Sets the weight of a slot, and all sums that it belongs to. */
  set(slot: number, weight: number): void {
    this.#leaves[slot] = weight
    let below: Uint32Array | BigUint64Array = this.#leaves
    let node = slot
    for (const level of this.#levels) {
      node = Math.floor(node / fanOut)
      let sum = 0n
      for (const part of below.subarray(node * fanOut, (node + 1) * fanOut)) sum += BigInt(part)
      level[node] = sum
      below = level
    }
  }

  /** The slot in whose share of the sum a number lies, counted from slot 0 on. The number is below the sum. */
  find(number: bigint): number {
    let rest = number
    let node = 0
    for (let level = this.#levels.length - 1; level >= 0; level--) {
      const below: Uint32Array | BigUint64Array = level === 0 ? this.#leaves : this.#levels[level - 1]!
      node *= fanOut
      for (let share = BigInt(below[node]!); rest >= share; share = BigInt(below[node]!)) {
        rest -= share
        node += 1
      }
    }
    return node
  }
}
