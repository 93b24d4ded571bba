// SPDX-License-Identifier: Apache-2.0
/**
 * What `TensorEngine.diff` must find and `apply` must refuse, on dense bytes. Pure.
 */

/** Changed elements of a dense tensor: all of them, in order. */
export interface FoundChanges {
  readonly positions: Uint32Array
  /** Their bytes, one after the other. */
  readonly values: Uint8Array
}

/** The elements of `size` bytes that differ in any bit. */
export const findChanges = (base: Uint8Array, current: Uint8Array, size: number): FoundChanges => {
  const positions: Array<number> = []
  for (let at = 0; at < current.length; at += size) {
    for (let byte = at; byte < at + size; byte++) {
      if (base[byte] === current[byte]) continue
      positions.push(at / size)
      break
    }
  }
  const values = new Uint8Array(positions.length * size)
  for (const [at, position] of positions.entries()) {
    values.set(current.subarray(position * size, (position + 1) * size), at * size)
  }
  return { positions: Uint32Array.from(positions), values }
}

/** The first position that does not follow the one before it or is none of `elements`; -1 where all are right. */
export const firstWrongPosition = (positions: Uint32Array, elements: number): number =>
  positions.findIndex((position, at) => position >= elements || (at > 0 && position <= positions[at - 1]!))
