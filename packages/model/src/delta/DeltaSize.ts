// SPDX-License-Identifier: Apache-2.0
/**
 * How many bytes changes take before any is known: the model by which a sender states what an update costs, and where a full
 * tensor costs less. Pure.
 *
 * The model: a share `p` of the elements changes, each for itself. A change takes its own bytes, and as many bits as the widest
 * gap of its block: `E[bits] = sum over k of P(widest gap >= 2^k)`, where a gap is at least `m` with `(1 - p)^m`. A block adds
 * its head, and half a byte that packing leaves on average.
 *
 * Between ranks a change takes its own bytes, and two for the gap before it where the host sees the list; on a device four.
 */
import { blockElements, blockHeadBytes } from "./PositionCode.ts"

/** Bits of a gap, on average over blocks of so many elements. */
const expectedBits = (elements: number, share: number): number => {
  const changes = elements * share
  let bits = 0
  for (let k = 0; k < 16; k++) {
    const atLeast = (1 - share) ** (2 ** k)
    bits += 1 - (1 - atLeast) ** changes
  }
  return bits
}

/** Bytes that positions and values of a share of the elements take, uncompressed and without the head of the payload. */
export const expectedChangeBytes = (elements: number, elementBytes: number, share: number): number => {
  if (elements === 0) return 0
  const blocks = Math.ceil(elements / blockElements)
  const changes = elements * share
  const gaps = (changes * expectedBits(elements / blocks, share)) / 8
  return blocks * (blockHeadBytes + (share === 0 ? 0 : 0.5)) + gaps + changes * elementBytes
}

/** The share of changed elements from which on all elements take fewer bytes than the changes do. */
export const breakEvenShare = (elements: number, elementBytes: number): number => {
  let [low, high] = [0, 1]
  for (let step = 0; step < 40; step++) {
    const middle = (low + high) / 2
    if (expectedChangeBytes(elements, elementBytes, middle) < elements * elementBytes) low = middle
    else high = middle
  }
  return low
}

/** Bytes of a position between hosts: two, for the gap to the change before, unless gaps of more than 16 bits are expected. */
export const gapBytes = 2
/** Bytes of a position on a device, where nothing is packed. */
export const positionBytes = 4

/** Bytes that a share of the elements takes between ranks, as it is listed; beside it, a region is stated by 24 bytes. */
export const expectedListBytes = (elements: number, elementBytes: number, share: number): number => {
  const longGaps = elements * share * (1 - share) ** (2 ** 16)
  return elements * share * ((longGaps < 0.5 ? gapBytes : positionBytes) + elementBytes)
}

/** The share of changed elements from which on a region is sent whole between ranks. */
export const listBreakEvenShare = (elementBytes: number, ofPosition: number): number =>
  elementBytes / (ofPosition + elementBytes)
