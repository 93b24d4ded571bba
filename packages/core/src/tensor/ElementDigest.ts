// SPDX-License-Identifier: Apache-2.0
/**
 * 128 bits that stand for what elements a tensor holds and where. Digests of parts add up to the digest of the whole, in any
 * order, so that layouts compare without a gather.
 *
 * The algorithm, the same bits on every device: the elements of the whole tensor, dense in row-major order, are a row of
 * little-endian words of 32 bits. An element of b bits at position p gives its bits, each turned over, as they stand in the
 * words that it shares: a number v in word j, or two of them for 64 bits. The digest has two halves of 64 bits, k = 0 and 1;
 * each is the sum of v * A(k, j mod 128) * H(k, floor(j / 128)), modulo 2^64. A and H are odd numbers that look random:
 *
 * - A(k, i) = mixed((2i + k + 1) * 0x9e3779b97f4a7c15) | 1, where `mixed` is the end of SplitMix64: x ^= x >> 30,
 *   x *= 0xbf58476d1ce4e5b9, x ^= x >> 27, x *= 0x94d049bb133111eb, x ^= x >> 31;
 * - H(k, b) = x | 1 after x = (b + 1) * G(k), x ^= x >> 32, x *= M(k), x ^= x >> 32, with
 *   G = 0x9e3779b97f4a7c15, 0xd1b54a32d192ed03 and M = 0xbf58476d1ce4e5b9, 0x94d049bb133111eb.
 *
 * Bits are turned over so that zeros that are missing, or counted twice, show. It is a check against accidents: contents that
 * differ by a fault have one digest with a chance of about 2^-66 in the worst kind of case (only the highest bits of words
 * differ), and far less in others. It is no defence: whoever wants two contents of one digest can compute them.
 */

/** Both halves: `high * 2^64 + low`, where `low` is the half of k = 0. The digest of nothing is 0. */
export type ElementDigest = bigint

const half = (1n << 64n) - 1n

/** The digest of what the parts hold together. */
export const sumOfDigests = (parts: Iterable<ElementDigest>): ElementDigest => {
  let [low, high] = [0n, 0n]
  for (const part of parts) [low, high] = [low + (part & half), high + (part >> 64n)]
  return ((high & half) << 64n) | (low & half)
}

/** Thirty-two hexadecimal digits, the high half first. */
export const formatElementDigest = (digest: ElementDigest): string => digest.toString(16).padStart(32, "0")
