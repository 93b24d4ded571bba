// SPDX-License-Identifier: Apache-2.0
/**
 * Generators of pairs of mesh layouts and tensors: meshes of up to 4 dimensions and 24 ranks in any order, the same ranks
 * on both sides, others, or some in common; every placement; uneven, empty and single-element dimensions.
 */

import type { DType } from "@tensorferry/core/base/DType"
import { elementCount, type Shape } from "@tensorferry/core/base/Region"
import { deviceMesh } from "@tensorferry/core/layout/DeviceMesh"
import {
  type MeshLayout,
  meshLayout,
  PartialOp,
  type Placement,
  partial,
  replicate,
  shard,
  stridedShard
} from "@tensorferry/core/layout/Placement"
import * as Arbitrary from "effect/Arbitrary"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { between, oneOf } from "./arbitraries.ts"

/** One tensor and its layouts on two meshes. */
export interface MeshPair {
  readonly source: MeshLayout
  readonly target: MeshLayout
  readonly shape: Shape
  readonly sourceDtype: DType
  readonly targetDtype: DType
}

const mostRanks = 24

const meshShape: Arbitrary.Arbitrary<ReadonlyArray<number>> = Arbitrary.map(
  Arbitrary.array(oneOf([1, 2, 3, 4, 5, 8, 24]), { minLength: 1, maxLength: 4 }),
  (lengths) => {
    const shape: Array<number> = []
    for (const length of lengths) if (elementCount([...shape, length]) <= mostRanks) shape.push(length)
    return shape.length === 0 ? [1] : shape
  }
)

/** Keys whose order is a permutation. */
const permutation = Arbitrary.map(
  Arbitrary.array(between(0, 1_000_000), { minLength: mostRanks, maxLength: mostRanks }),
  (keys) => [...keys.keys()].sort((a, b) => keys[a]! - keys[b]! || a - b)
)

const tensorShape: Arbitrary.Arbitrary<Shape> = Arbitrary.map(
  Arbitrary.array(oneOf([0, 1, 2, 3, 4, 5, 7, 8, 11, 12, 13, 24]), { minLength: 1, maxLength: 4 }),
  (lengths) => {
    const shape: Array<number> = []
    for (const length of lengths) if (elementCount([...shape, length]) <= 600) shape.push(length)
    return shape
  }
)

interface PlacementChoice {
  readonly kind: "replicate" | "shard" | "strided" | "partial"
  readonly dim: number
  readonly splitFactor: number
}

const placementChoices = (
  kinds: readonly [PlacementChoice["kind"], ...ReadonlyArray<PlacementChoice["kind"]>]
): Arbitrary.Arbitrary<ReadonlyArray<PlacementChoice>> =>
  Arbitrary.array(Arbitrary.all({ kind: oneOf(kinds), dim: between(0, 3), splitFactor: oneOf([1, 2, 3, 4, 7]) }), {
    minLength: 4,
    maxLength: 4
  })

const placementOf = (choice: PlacementChoice, op: PartialOp, dims: number): Placement => {
  const dim = choice.dim % dims
  switch (choice.kind) {
    case "replicate":
      return replicate
    case "shard":
      return shard(dim)
    case "strided":
      return stridedShard(dim, choice.splitFactor)
    case "partial":
      return partial(op)
  }
}

const dtypePairs: ReadonlyArray<readonly [DType, DType]> = [
  ["float32", "float32"],
  ["bfloat16", "float32"],
  ["float32", "bfloat16"],
  ["bfloat16", "float16"],
  ["int32", "float32"],
  ["int64", "int64"],
  ["uint8", "uint8"]
]

/** Pairs whose source holds whole values, or contributions where `isPartial`. */
export const meshPair = (options: { readonly isPartial?: boolean } = {}): Arbitrary.Arbitrary<MeshPair> =>
  Arbitrary.map(
    Arbitrary.all({
      sourceShape: meshShape,
      targetShape: meshShape,
      sourceOrder: permutation,
      targetOrder: permutation,
      overlap: oneOf(["same", "disjoint", "some"] as const),
      source: placementChoices(
        options.isPartial === true
          ? ["partial", "shard", "partial", "replicate", "strided"]
          : ["shard", "replicate", "shard", "strided"]
      ),
      target: placementChoices(["shard", "replicate", "shard", "strided"]),
      op: Arbitrary.schema(PartialOp),
      shape: tensorShape,
      dtypes: oneOf(dtypePairs),
      isSorted: Arbitrary.schema(Schema.Boolean)
    }),
    ({ sourceShape, targetShape, overlap, shape, dtypes, op, isSorted, ...rest }) => {
      const side = (
        meshLengths: ReadonlyArray<number>,
        order: ReadonlyArray<number>,
        first: number,
        choices: typeof rest.source
      ) => {
        const size = elementCount(meshLengths)
        const chosen = order.slice(0, size).map((rank) => rank + first)
        const ranks = isSorted ? [...chosen].sort((a, b) => a - b) : chosen
        return Result.getOrThrow(
          Result.flatMap(deviceMesh({ shape: meshLengths, ranks }), (mesh) =>
            meshLayout(
              mesh,
              meshLengths.map((_, dim) => placementOf(choices[dim]!, op, shape.length))
            )
          )
        )
      }
      const first = overlap === "same" ? 0 : overlap === "disjoint" ? mostRanks : mostRanks / 2
      return {
        source: side(sourceShape, rest.sourceOrder, 0, rest.source),
        target: side(targetShape, overlap === "same" ? rest.sourceOrder : rest.targetOrder, first, rest.target),
        shape,
        sourceDtype: dtypes[0],
        targetDtype: dtypes[1]
      }
    }
  )
