// SPDX-License-Identifier: Apache-2.0
/**
 * Ascending positions in few bytes: the gaps between them, packed in as many bits as the widest gap of a block needs. Pure.
 *
 * Per block of `blockElements` elements, in order: a word of four bytes, whose low 24 bits are the number of positions in the
 * block and whose high 8 the bits of a gap; then the gaps, the first counted from the beginning of the block, each from behind
 * the position before it; then zero bits up to a whole byte. All little-endian.
 *
 * Invariant: there is one code for each list of positions, and reading any bytes takes memory for no more positions than
 * were asked for.
 */
import * as Result from "effect/Result"

/** Elements of a block. */
export const blockElements = 65_536

/** Bytes of a block's first word. */
export const blockHeadBytes = 4

const mostBits = 16

const bitsFor = (gap: number): number => 32 - Math.clz32(gap)

/** Bytes of the positions of one block. */
const gapBytes = (count: number, bits: number): number => Math.ceil((count * bits) / 8)

/** The widest gap of positions from one place in the list on, up to the first in another block. */
const measureBlock = (positions: Uint32Array, from: number, start: number) => {
  let end = from
  let widest = 0
  let next = start
  while (end < positions.length && positions[end]! - start < blockElements) {
    widest |= positions[end]! - next
    next = positions[end]! + 1
    end += 1
  }
  return { end, bits: bitsFor(widest) }
}

/** Bytes of the code of these positions among so many elements. */
export const positionCodeBytes = (positions: Uint32Array, elements: number): number => {
  let [bytes, from] = [0, 0]
  for (let start = 0; start < elements; start += blockElements) {
    const { bits, end } = measureBlock(positions, from, start)
    bytes += blockHeadBytes + gapBytes(end - from, bits)
    from = end
  }
  return bytes
}

/** Writes the code of ascending positions below `elements` at the beginning of `into`, which has `positionCodeBytes`. */
export const encodePositions = (positions: Uint32Array, elements: number, into: Uint8Array): void => {
  let [at, from] = [0, 0]
  for (let start = 0; start < elements; start += blockElements) {
    const { bits, end } = measureBlock(positions, from, start)
    const count = end - from
    into[at] = count & 0xff
    into[at + 1] = (count >>> 8) & 0xff
    into[at + 2] = count >>> 16
    into[at + 3] = bits
    at += blockHeadBytes
    let [held, heldBits, next] = [0, 0, start]
    for (; from < end && bits > 0; from++) {
      held |= (positions[from]! - next) << heldBits
      heldBits += bits
      next = positions[from]! + 1
      for (; heldBits >= 8; heldBits -= 8, held >>>= 8) into[at++] = held & 0xff
    }
    if (heldBits > 0) into[at++] = held
    from = end
  }
}

/** Positions, and the bytes that their code had. */
export interface ReadPositions {
  readonly positions: Uint32Array
  readonly byteLength: number
}

/** The positions whose code stands at the beginning of `bytes`, or why it is none: a sentence. */
export const decodePositions = (
  bytes: Uint8Array,
  elements: number,
  count: number
): Result.Result<ReadPositions, string> => {
  if (count > elements) return Result.fail(`${count} of ${elements} elements cannot have changed.`)
  const blocks = Math.ceil(elements / blockElements)
  if (bytes.length < blocks * blockHeadBytes) {
    return Result.fail(`${bytes.length} bytes are too few for ${blocks} blocks of positions.`)
  }
  const positions = new Uint32Array(count)
  let [at, read] = [0, 0]
  for (let block = 0; block < blocks; block++) {
    const start = block * blockElements
    const here = Math.min(blockElements, elements - start)
    if (at + blockHeadBytes > bytes.length) return Result.fail(`The code ends before block ${block}.`)
    const own = bytes[at]! | (bytes[at + 1]! << 8) | (bytes[at + 2]! << 16)
    const bits = bytes[at + 3]!
    at += blockHeadBytes
    if (own > here || own > count - read)
      return Result.fail(`Block ${block} has ${own} positions, more than there are.`)
    if (bits > mostBits || (own === 0 && bits > 0)) return Result.fail(`Block ${block} has gaps of ${bits} bits.`)
    const end = at + gapBytes(own, bits)
    if (end > bytes.length) return Result.fail(`The code ends within block ${block}.`)
    const mask = (1 << bits) - 1
    let [held, heldBits, next, widest] = [0, 0, 0, 0]
    for (let place = 0; place < own; place++) {
      for (; heldBits < bits; heldBits += 8) held |= bytes[at++]! << heldBits
      const gap = held & mask
      held >>>= bits
      heldBits -= bits
      widest |= gap
      const position = next + gap
      if (position >= here) return Result.fail(`Block ${block} names an element behind its end.`)
      positions[read++] = start + position
      next = position + 1
    }
    if (held !== 0 || bitsFor(widest) !== bits) return Result.fail(`Block ${block} is not in its shortest form.`)
    at = end
  }
  return read === count
    ? Result.succeed({ positions, byteLength: at })
    : Result.fail(`There are ${read} positions, ${count} are stated.`)
}
