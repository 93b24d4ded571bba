// SPDX-License-Identifier: Apache-2.0
/**
 * The digest of elements in plain TypeScript: what defines the bits, and what engines without kernels of their own use.
 *
 * Invariant: sums over a block stay below 2^53, so that numbers hold them exactly.
 */
import type { DigestPart, TensorEngineShape, TensorError } from "@tensorferry/core/service/TensorEngine"
import type { ElementDigest } from "@tensorferry/core/tensor/ElementDigest"
import { type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { Checked } from "../MoveChecks.ts"
import type { DigestBytes } from "./DigestParts.ts"

const blockWords = 128
const blockBytes = 4 * blockWords
const halves = [0, 1] as const
const low64 = (value: bigint): bigint => BigInt.asUintN(64, value)

/** A of `ElementDigest`: the factor of a word of a block. */
export const wordFactor = (half: 0 | 1, word: number): bigint => {
  let x = low64(BigInt(2 * word + half + 1) * 0x9e3779b97f4a7c15n)
  x = low64((x ^ (x >> 30n)) * 0xbf58476d1ce4e5b9n)
  x = low64((x ^ (x >> 27n)) * 0x94d049bb133111ebn)
  return (x ^ (x >> 31n)) | 1n
}

/** H of `ElementDigest`: the factor of a block. */
export const blockFactor = (half: 0 | 1, block: number): bigint => {
  let x = low64(BigInt(block + 1) * (half === 0 ? 0x9e3779b97f4a7c15n : 0xd1b54a32d192ed03n))
  x = low64((x ^ (x >> 32n)) * (half === 0 ? 0xbf58476d1ce4e5b9n : 0x94d049bb133111ebn))
  return (x ^ (x >> 32n)) | 1n
}

/** Factors of words in four parts of 16 bits, of each half in turn: products with 16 bits are exact. */
const factors = halves.map((half) =>
  Float64Array.from({ length: 4 * blockWords }, (_, at) =>
    Number((wordFactor(half, at >> 2) >> BigInt(16 * (at & 3))) & 0xffffn)
  )
)

/** Adds runs of bytes to the digest of one part. */
class DigestSum {
  #sums = [0n, 0n]
  readonly #block = new Uint8Array(blockBytes)
  readonly #words = new DataView(this.#block.buffer)

  get digest(): ElementDigest {
    return (low64(this.#sums[1]!) << 64n) | low64(this.#sums[0]!)
  }

  /** Words of the block from one to before another, of which bytes that do not count are ones. */
  #addBlock(block: number, from: number, to: number): void {
    for (const half of halves) {
      const table = factors[half]!
      // Sums of products of 16 bits, by the power of 2^16 that they stand for; above 2^48 nothing counts.
      let [s0, s1, s2, s3] = [0, 0, 0, 0]
      for (let word = from; word < to; word++) {
        const value = ~this.#words.getUint32(4 * word, true)
        const [low, high, at] = [value & 0xffff, value >>> 16, 4 * word]
        s0 += low * table[at]!
        s1 += low * table[at + 1]! + high * table[at]!
        s2 += low * table[at + 2]! + high * table[at + 1]!
        s3 += low * table[at + 3]! + high * table[at + 2]!
      }
      const sum = BigInt(s0) + (BigInt(s1) << 16n) + (BigInt(s2) << 32n) + (BigInt(s3) << 48n)
      this.#sums[half] = low64(this.#sums[half]! + low64(sum) * blockFactor(half, block))
    }
  }

  /** Bytes that follow one another in memory and in the whole. */
  addRun(bytes: Uint8Array, position: number, mask: number): void {
    for (let done = 0; done < bytes.length; ) {
      const at = position + done
      const first = at % blockBytes
      const length = Math.min(bytes.length - done, blockBytes - first)
      const [from, to] = [Math.floor(first / 4), Math.ceil((first + length) / 4)]
      this.#block.fill(0xff, 4 * from, 4 * to)
      this.#block.set(bytes.subarray(done, done + length), first)
      if (mask !== 0xff) for (let i = first; i < first + length; i++) this.#block[i]! |= ~mask & 0xff
      this.#addBlock(Math.floor(at / blockBytes), from, to)
      done += length
    }
  }
}

/** Calls `visit` with bytes of memory and of the whole, from the beginning of each, and the length of each run. */
const visitRuns = (
  { positionSteps, shape, size, steps }: DigestBytes,
  visit: (offset: number, position: number, length: number) => void
): void => {
  let run = size
  let outer = shape.length
  while (outer > 0 && (shape[outer - 1] === 1 || (steps[outer - 1] === run && positionSteps[outer - 1] === run))) {
    run *= shape[outer - 1]!
    outer -= 1
  }
  const go = (dim: number, offset: number, position: number): void => {
    if (dim === outer) visit(offset, position, run)
    else
      for (let at = 0; at < shape[dim]!; at++)
        go(dim + 1, offset + at * steps[dim]!, position + at * positionSteps[dim]!)
  }
  go(0, 0, 0)
}

/** Digests of parts whose bytes the host sees. */
export const digestHostBytes = (parts: number, entries: ReadonlyArray<DigestBytes>): ReadonlyArray<ElementDigest> => {
  const sums = Array.from({ length: parts }, () => new DigestSum())
  for (const entry of entries) {
    const { mask, offset, part, position, tensor } = entry
    const bytes = tensor.storage.bytes!
    const start = tensor.byteOffset + offset
    visitRuns(entry, (from, to, length) =>
      sums[part]!.addRun(bytes.subarray(start + from, start + from + length), position + to, mask)
    )
  }
  return sums.map(({ digest }) => digest)
}

/** `digest` of an engine that has no kernels for it: parts come to the host whole, one after the other. */
export const makeHostDigest =
  (
    check: (parts: ReadonlyArray<DigestPart>) => Checked<ReadonlyArray<DigestBytes>>,
    { copy, wrapHost }: Pick<TensorEngineShape, "copy" | "wrapHost">
  ): TensorEngineShape["digest"] =>
  (parts) => {
    const digestPart = (entries: ReadonlyArray<DigestBytes>): Effect.Effect<ElementDigest, TensorError> =>
      Effect.gen(function* () {
        const seen: Array<DigestBytes> = []
        for (const entry of entries) {
          const { offset, shape, size, steps, tensor } = entry
          if (tensor.storage.bytes !== undefined) {
            seen.push(entry)
            continue
          }
          const bytes = new Uint8Array(shape.reduce((product, length) => product * length, size))
          const dst = Result.getOrThrow(tensorView(yield* wrapHost(bytes), "uint8", [...shape, size]))
          const byteOffset = tensor.byteOffset + offset
          const src: Tensor = { ...tensor, dtype: "uint8", shape: dst.shape, strides: [...steps, 1], byteOffset }
          yield* copy([{ dst, src }])
          const dense = dst.strides.slice(0, shape.length)
          seen.push({ ...entry, tensor: dst, offset: 0, steps: dense })
        }
        return digestHostBytes(
          1,
          seen.map((entry) => ({ ...entry, part: 0 }))
        )[0]!
      }).pipe(Effect.scoped)
    return Effect.suspend(() =>
      Effect.flatMap(Effect.fromResult(check(parts)), (entries) => {
        const ofPart = parts.map((): Array<DigestBytes> => [])
        for (const entry of entries) ofPart[entry.part]!.push(entry)
        return Effect.forEach(ofPart, digestPart)
      })
    )
  }
