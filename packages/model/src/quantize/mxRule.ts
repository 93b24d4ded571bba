// SPDX-License-Identifier: Apache-2.0
/**
 * What the rules of the MX forms share: a block of 32 values along a row, one power of two for it, and the ways to find its
 * exponent.
 *
 * Invariant: a rule sees the largest magnitude of a block and the type of the source, and nothing else of the matrix.
 */
import { bitsOfFloat, log2Float, raisedByte, type SourceType } from "./numbers.ts"

/** The scale of one block as the byte of 2^(byte - 127), and the code of each of its values. */
export interface MxBlock {
  readonly byte: number
  readonly code: (value: number) => number
}

/** One way to make scales and codes of an MX form. */
export interface MxRule<Name extends string = string> {
  readonly name: Name
  /** Whose bits these are. */
  readonly reference: string
  readonly formula: string
  /** Whether the last block of a row may be short. */
  readonly shortBlock?: true
  /** Nothing for a block that the reference leaves undefined. */
  readonly block: (amax: number, dtype: SourceType) => MxBlock | undefined
}

/** Rules by their name, each with it. */
export const named = <Name extends string>(
  rules: {
    readonly [Key in Name]: Omit<MxRule, "name">
  }
): { readonly [Key in Name]: MxRule<Key> } =>
  Object.fromEntries(
    Object.entries<Omit<MxRule, "name">>(rules).map(([name, rule]) => [name, { ...rule, name }])
  ) as unknown as { readonly [Key in Name]: MxRule<Key> }

/**
 * The exponent of a block by compressed-tensors: a quarter is added to the mantissa in the bits of the source's type, so it
 * is one higher from 1.75 on. `-Infinity` for what stays zero; undefined where the addition overflows.
 */
export const quarterExponent = (amax: number, dtype: SourceType): number | undefined => {
  if (!Number.isFinite(amax)) return undefined
  if (dtype === "float16" && amax < 2 ** -14) return amax * 2 ** 24 >= 0x300 ? -14 : Number.NEGATIVE_INFINITY
  const byte = (bitsOfFloat(amax) + 0x200000) >>> 23
  const top = dtype === "float16" ? 15 : 127
  if (byte - 127 > top) return undefined
  return byte === 0 ? Number.NEGATIVE_INFINITY : byte - 127
}

/** The exponent byte of a quotient raised by a float32 logarithm. */
export const raisedByLog = (quotient: number): number => Math.ceil(log2Float(quotient)) + 127

/** The exponent byte raised by an integer sum over the bits, as Triton's is: that of a NaN wraps to 0. */
export const raisedByBits = (quotient: number): number => raisedByte(quotient) & 0xff
