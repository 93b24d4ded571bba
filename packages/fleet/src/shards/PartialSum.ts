// SPDX-License-Identifier: Apache-2.0
/**
 * A digest that parts of a tensor add up to, however it is cut: what several ranks hold of a tensor is summed by each, and the
 * sum of the sums is that of the whole tensor. Pure.
 *
 * Algorithm. Let `w(i)` be the bytes 2i and 2i + 1 of the whole tensor in row-major order, as a little-endian number of 16 bits;
 * bytes that a rank does not hold count as 0. The sum is `K(0) w(0) + K(1) w(1) + ...` modulo the prime p = 2^31 - 1, twice,
 * with two independent lists of factors. `K(i)` is a product of four entries of tables, chosen by the four digits of `i` to
 * the base 4096. Tables are SHA-256 in counter mode, so they are the same everywhere and have nothing to do with weights. Since
 * the sum is linear, sums of disjoint parts add up, and it makes no difference in which order.
 *
 * What it proves. A difference that has nothing to do with the factors passes with a chance of about 2 / p in each list, 2^-60 in
 * both. It is no proof against somebody who wants to be believed: they can solve for bytes with the same sum. Chunks on their way
 * have SHA-256 besides.
 */
import { createHash } from "node:crypto"

const prime = 2 ** 31 - 1
const digits = 4096
/** Bytes of which all factors differ in the last digit only. */
const blockBytes = 2 * digits
/** Words whose products fit a double beside a reduced sum: 63 products below 2^47. */
const wordsBetweenReductions = 63

/** Two sums, each below 2^31 - 1. */
export type PartialSum = readonly [number, number]

/** The sum of no bytes. */
export const emptySum: PartialSum = [0, 0]

/** Below 2^31 + 2^22 for what is below 2^53, and the same modulo the prime. */
const fold = (value: number): number => {
  const high = Math.floor(value / 2 ** 31)
  return value - high * 2 ** 31 + high
}

const reduce = (value: number): number => {
  const folded = fold(fold(value))
  return folded >= prime ? folded - prime : folded
}

/** The product of two numbers below 2^31, modulo the prime. */
const multiply = (a: number, b: number): number => {
  const high = Math.floor(b / 2 ** 16)
  return reduce(reduce(a * high) * 2 ** 16 + a * (b - high * 2 ** 16))
}

/** Numbers from 1 to p - 1 that follow from a text. */
const numbersOf = (text: string, length: number): Float64Array => {
  const numbers = new Float64Array(length)
  for (let at = 0; at < length; at += 8) {
    const bytes = createHash("sha256").update(`${text} ${at}`).digest()
    for (let word = 0; word < 8 && at + word < length; word++)
      numbers[at + word] = 1 + (bytes.readUInt32LE(4 * word) % (prime - 1))
  }
  return numbers
}

const tables = [0, 1].map((list) => [0, 1, 2, 3].map((digit) => numbersOf(`tensorferry sum ${list} ${digit}`, digits)))

/** The factor that all words of a block have in common. */
const blockFactor = (list: number, block: number): number => {
  const [, first, second, third] = tables[list]!
  const high = Math.floor(block / digits)
  const low = multiply(first![block % digits]!, second![high % digits]!)
  return multiply(low, third![Math.floor(high / digits) % digits]!)
}

/** Both sums together. */
export const addSums = (a: PartialSum, b: PartialSum): PartialSum => [reduce(a[0] + b[0]), reduce(a[1] + b[1])]

/** The sum with all words multiplied by these. */
const scaleSum = (sum: PartialSum, by: PartialSum): PartialSum => [multiply(sum[0], by[0]), multiply(sum[1], by[1])]

/** Sums bytes within one block. */
const sumWithinBlock = (bytes: Uint8Array, at: number): PartialSum => {
  const [left, right] = [tables[0]![0]!, tables[1]![0]!]
  let [a, b] = [0, 0]
  let byte = 0
  const addByte = (): void => {
    const place = at + byte
    const value = place % 2 === 0 ? bytes[byte]! : bytes[byte]! * 256
    a = fold(a + left[place >> 1]! * value)
    b = fold(b + right[place >> 1]! * value)
    byte += 1
  }
  if (at % 2 === 1 && bytes.length > 0) addByte()
  const words = (bytes.length - byte) >> 1
  const first = (at + byte) >> 1
  const isAligned = (bytes.byteOffset + byte) % 2 === 0
  const whole = isAligned ? new Uint16Array(bytes.buffer, bytes.byteOffset + byte, words) : undefined
  for (let word = 0; word < words; ) {
    const end = Math.min(words, word + wordsBetweenReductions)
    if (whole === undefined) {
      for (; word < end; word++) {
        const value = bytes[byte + 2 * word]! + 256 * bytes[byte + 2 * word + 1]!
        a += left[first + word]! * value
        b += right[first + word]! * value
      }
    } else {
      for (; word < end; word++) {
        const value = whole[word]!
        a += left[first + word]! * value
        b += right[first + word]! * value
      }
    }
    a = fold(a)
    b = fold(b)
  }
  byte += 2 * words
  if (byte < bytes.length) addByte()
  return [reduce(a), reduce(b)]
}

/** The sum of bytes that begin at byte `at` of the whole tensor. */
export const sumOfBytes = (bytes: Uint8Array, at: number): PartialSum => {
  let sum = emptySum
  for (let done = 0; done < bytes.length; ) {
    const block = Math.floor((at + done) / blockBytes)
    const inBlock = at + done - block * blockBytes
    const length = Math.min(bytes.length - done, blockBytes - inBlock)
    const part = sumWithinBlock(bytes.subarray(done, done + length), inBlock)
    sum = addSums(sum, scaleSum(part, [blockFactor(0, block), blockFactor(1, block)]))
    done += length
  }
  return sum
}

const nameFactors = new Map<string, PartialSum>()

/** The sum of a tensor as one of many: sums of all tensors of a model add up to one. */
export const sumUnderName = (name: string, sum: PartialSum): PartialSum => {
  let factors = nameFactors.get(name)
  if (factors === undefined) {
    const numbers = numbersOf(`tensorferry name ${name}`, 2)
    factors = [numbers[0]!, numbers[1]!]
    nameFactors.set(name, factors)
  }
  return scaleSum(sum, factors)
}

/** 16 hexadecimal digits. */
export const formatSum = (sum: PartialSum): string => sum.map((half) => half.toString(16).padStart(8, "0")).join("")

/** Undefined for a text that is no sum. */
export const parseSum = (text: string): PartialSum | undefined => {
  if (!/^[0-7][0-9a-f]{7}[0-7][0-9a-f]{7}$/.test(text)) return undefined
  return [Number.parseInt(text.slice(0, 8), 16) % prime, Number.parseInt(text.slice(8), 16) % prime]
}
