// SPDX-License-Identifier: Apache-2.0
/**
 * Bytes for tests that compare what arrived.
 */

/** Bytes that differ from their neighbours and from zero and poison, different for each seed. */
export const bytePattern = (length: number, seed: number): Uint8Array =>
  Uint8Array.from({ length }, (_, at) => ((at + 1) * 167 + (at >> 8) * 31 + seed * 59) & 0xff)
