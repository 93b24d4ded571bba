// SPDX-License-Identifier: Apache-2.0
/** Engines that digest wrongly. */
import { rowMajorStrides } from "@tensorferry/core/base/Region"
import type { DigestPart, TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import { sumOfDigests } from "@tensorferry/core/tensor/ElementDigest"
import * as Effect from "effect/Effect"
import type { EngineLie } from "./Lie.ts"

/** Changes what is digested. */
const withParts =
  (change: (part: DigestPart) => DigestPart) =>
  (honest: TensorEngineShape): TensorEngineShape => ({
    ...honest,
    digest: (parts) => honest.digest(parts.map(change))
  })

/** Lies of an engine about digests. */
export const digestLies: ReadonlyArray<EngineLie> = [
  {
    name: "digests every part as if it were the whole",
    caughtBy: "digests of parts add up to the digest of the whole, whatever the layout",
    tell: withParts(({ tensor }) => ({ tensor }))
  },
  {
    name: "digests what lies between the elements",
    caughtBy: "digests of every form of memory are those of dense memory",
    tell: withParts((part) => ({
      ...part,
      tensor: { ...part.tensor, strides: rowMajorStrides(part.tensor.shape) }
    }))
  },
  {
    name: "digests whole words only",
    caughtBy: "digests elements of every type and length by the stated algorithm",
    tell: withParts((part) =>
      part.tensor.dtype === "uint8" && part.tensor.shape.length === 1
        ? { ...part, whole: part.tensor.shape, tensor: { ...part.tensor, shape: [part.tensor.shape[0]! & ~3] } }
        : part
    )
  },
  {
    name: "gives one half of the digest twice",
    caughtBy: "digests of known contents are these",
    tell: (honest) => ({
      ...honest,
      digest: (parts) =>
        Effect.map(honest.digest(parts), (digests) =>
          digests.map((digest) => (BigInt.asUintN(64, digest) << 64n) | BigInt.asUintN(64, digest))
        )
    })
  },
  {
    name: "adds what it digested before",
    caughtBy: "digests of parts add up to the digest of the whole, whatever the layout",
    tell: (honest) => ({
      ...honest,
      digest: (parts) =>
        Effect.map(honest.digest(parts), (digests) => digests.map((digest) => sumOfDigests([digest, ...digests])))
    })
  },
  {
    name: "digests no more than a mebibyte",
    caughtBy: "digests large tensors, at any address",
    tell: withParts((part) =>
      part.tensor.shape.length === 1 && part.tensor.shape[0]! > 2 ** 20
        ? {
            ...part,
            tensor: { ...part.tensor, shape: [2 ** 20] },
            whole: part.whole ?? part.tensor.shape
          }
        : part
    )
  }
]
