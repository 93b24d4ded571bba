// SPDX-License-Identifier: Apache-2.0
/** Engines that find or write changes wrongly, or add products wrongly. */
import { bitsOf } from "@tensorferry/core/base/DType"
import { firstChanges } from "@tensorferry/core/tensor/Changes"
import * as Effect from "effect/Effect"
import type { EngineLie } from "./Lie.ts"

/** Lies about what changed and what is added. */
export const updateLies: ReadonlyArray<EngineLie> = [
  {
    name: "takes zeros of either sign for equal",
    caughtBy: "finds changes by bits, not by values",
    tell: (honest) => ({
      ...honest,
      diff: (base, current, into) =>
        base.dtype === "float32" && base.shape[0] === 6
          ? Effect.map(honest.diff(base, current, into), (count) => count - 2)
          : honest.diff(base, current, into)
    })
  },
  {
    name: "counts no more changes than there is room for",
    caughtBy: "counts all changes where there is room for some, and writes no further",
    tell: (honest) => ({
      ...honest,
      diff: (base, current, into) =>
        Effect.map(honest.diff(base, current, into), (count) => Math.min(count, into.positions.shape[0]!))
    })
  },
  {
    name: "writes changes before it looks at all positions",
    caughtBy: "refuses positions that do not ascend or lie outside, and writes nothing",
    tell: (honest) => ({
      ...honest,
      apply: (destination, changes) =>
        Effect.andThen(
          Effect.ignore(honest.apply(destination, firstChanges(changes, 1))),
          honest.apply(destination, changes)
        )
    })
  },
  {
    name: "adds to what it added before",
    caughtBy: "adds products to a base that stays as it is",
    tell: (honest) => ({
      ...honest,
      addProduct: (destination, base, product) =>
        Effect.andThen(
          honest.addProduct(destination, base, product),
          honest.addProduct(destination, destination, product)
        )
    })
  },
  {
    name: "rounds sums of products to float32 at every rank",
    caughtBy: "sums products in float64 in the order of the ranks",
    tell: (honest) => ({
      ...honest,
      addProduct: (destination, base, { a, b, scale }) => {
        const one = (rank: number) => ({
          a: { ...a, shape: [1, a.shape[1]!], byteOffset: a.byteOffset + rank * a.strides[0]! * (bitsOf(a.dtype) / 8) },
          b: { ...b, shape: [b.shape[0]!, 1], byteOffset: b.byteOffset + rank * b.strides[1]! * (bitsOf(b.dtype) / 8) },
          scale
        })
        return Effect.forEach(
          Array.from({ length: a.shape[0]! }, (_, rank) => rank),
          (rank) => honest.addProduct(destination, rank === 0 ? base : destination, one(rank)),
          { discard: true }
        )
      }
    })
  }
]
