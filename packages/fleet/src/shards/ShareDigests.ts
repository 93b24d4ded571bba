// SPDX-License-Identifier: Apache-2.0
/**
 * Digests of what ranks answer for: as parts of whole tensors, which add up to the digests of these, and under the names of
 * tensors, which add up to one digest of a version. The digest is that of `ElementDigest`; it finds damage, and stops nobody who
 * forges bytes. Pure.
 */
import { createHash } from "node:crypto"
import type { DigestPart } from "@tensorferry/core/service/TensorEngine"
import type { ElementDigest } from "@tensorferry/core/tensor/ElementDigest"
import { sliceTensor, type Tensor } from "@tensorferry/core/tensor/Tensor"
import * as Result from "effect/Result"
import type { TensorShare } from "./Shares.ts"

/** Intervals of a rank's tensor as parts of the whole one. */
export const digestParts = (
  tensor: Tensor,
  { shape, dim }: TensorShare,
  held: TensorShare["held"]
): ReadonlyArray<DigestPart> =>
  held.map(({ local, global: [start, end] }) => {
    // A tensor without dimensions is whole.
    if (shape.length === 0) return { tensor }
    const region = tensor.shape.map((length, at) =>
      at === dim ? ([local, local + end - start] as const) : ([0, length] as const)
    )
    const origin = shape.map((_, at) => (at === dim ? start : 0))
    return { tensor: Result.getOrThrow(sliceTensor(tensor, region)), whole: shape, origin }
  })

const half = (1n << 64n) - 1n
const factorsByName = new Map<string, readonly [bigint, bigint]>()

/** Two odd numbers of 64 bits, from SHA-256. */
const factorsOf = (name: string): readonly [bigint, bigint] => {
  const known = factorsByName.get(name)
  if (known !== undefined) return known
  const bytes = createHash("sha256").update(`tensorferry name ${name}`).digest()
  const made = [bytes.readBigUInt64LE(0) | 1n, bytes.readBigUInt64LE(8) | 1n] as const
  factorsByName.set(name, made)
  return made
}

/** The digest of a tensor as one of many: each half times a number of its name, so that tensors do not change places unseen. */
export const digestUnderName = (name: string, digest: ElementDigest): ElementDigest => {
  const [low, high] = factorsOf(name)
  return ((((digest >> 64n) * high) & half) << 64n) | (((digest & half) * low) & half)
}

/** What `formatElementDigest` wrote; undefined for any other text. */
export const parseElementDigest = (text: string): ElementDigest | undefined =>
  /^[0-9a-f]{32}$/.test(text) ? BigInt(`0x${text}`) : undefined
