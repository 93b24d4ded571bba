// SPDX-License-Identifier: Apache-2.0
/**
 * How a tensor lies on a device mesh: one placement per mesh dimension, applied left to right to the piece that the ones
 * before have left. The conventions are those of PyTorch's DTensor.
 */
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { DeviceMesh } from "./DeviceMesh.ts"
import { type MeshError, meshError } from "./MeshError.ts"

/** A tensor dimension; negative ones count from the last. */
const TensorDim = Schema.Int.check(Schema.isBetween({ minimum: -(2 ** 31), maximum: 2 ** 31 - 1 }))

/** Consecutive chunks of `ceil(length / ranks)`; later ones are shorter or empty. */
export const Shard = Schema.TaggedStruct("Shard", { dim: TensorDim })

/** Every rank holds all that is left. */
export const Replicate = Schema.TaggedStruct("Replicate", {})

/** How partial values make a whole one. */
export const PartialOp = Schema.Literals(["sum", "avg", "max", "min", "product"])
export type PartialOp = typeof PartialOp.Type

/** Every rank holds a contribution; the value is their reduction. Legal for sources only. */
export const Partial = Schema.TaggedStruct("Partial", { op: PartialOp })

/**
 * The piece is cut into `splitFactor` chunks, each of those into one chunk per rank; a rank joins its chunk of each. What a
 * later mesh dimension has sharded first is described so.
 */
export const StridedShard = Schema.TaggedStruct("StridedShard", {
  dim: TensorDim,
  splitFactor: Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: Number.MAX_SAFE_INTEGER })),
  /** Both cuts make chunks of `ceil(length / parts)`, later ones shorter or empty; nothing is padded. */
  uneven: Schema.Literal("ceil-of-ceil")
})

/** What a tensor does along one dimension of a mesh, as in PyTorch's DTensor: sharded, strided, replicated or partial. */
export const Placement = Schema.Union([Shard, Replicate, Partial, StridedShard])
export type Placement = typeof Placement.Type

/** The ranks of the mesh dimension hold consecutive chunks along `dim`. */
export const shard = (dim: number): Placement => ({ _tag: "Shard", dim })
/** Every rank of the dimension holds all. */
export const replicate: Placement = { _tag: "Replicate" }
/** Every rank of the dimension holds a part of each value; sources only. */
export const partial = (op: PartialOp): Placement => ({ _tag: "Partial", op })
/** Like `shard`, of chunks that another mesh dimension has cut before. */
export const stridedShard = (dim: number, splitFactor: number): Placement => ({
  _tag: "StridedShard",
  dim,
  splitFactor,
  uneven: "ceil-of-ceil"
})

/** A mesh with one placement per mesh dimension. */
export const MeshLayout = Schema.Struct({ mesh: DeviceMesh, placements: Schema.Array(Placement) })
export type MeshLayout = typeof MeshLayout.Type

/** Whether the placement cuts a dimension of the tensor. */
export const isSharding = (
  placement: Placement
): placement is Extract<Placement, { readonly _tag: "Shard" | "StridedShard" }> =>
  placement._tag === "Shard" || placement._tag === "StridedShard"

/** A layout with as many placements as mesh dimensions. */
export const meshLayout = (
  mesh: DeviceMesh,
  placements: ReadonlyArray<Placement>
): Result.Result<MeshLayout, MeshError> => {
  if (placements.length !== mesh.shape.length) {
    return meshError(
      "CountMismatch",
      `Mesh [${mesh.shape.join(",")}] needs ${mesh.shape.length} placements and has ${placements.length}.`,
      "State one placement per mesh dimension."
    )
  }
  for (const placement of placements) {
    if (isSharding(placement) && !Number.isSafeInteger(placement.dim)) {
      return meshError("InvalidPlacement", `Dimension ${placement.dim} is not a whole number.`, "State a dimension.")
    }
    if (
      placement._tag === "StridedShard" &&
      !(Number.isSafeInteger(placement.splitFactor) && placement.splitFactor > 0)
    ) {
      return meshError(
        "InvalidPlacement",
        `Split factor ${placement.splitFactor} is not a positive whole number.`,
        "State into how many chunks the piece is cut first."
      )
    }
  }
  return Result.succeed({ mesh, placements })
}

/** The layout with dimensions counted from the first, for tensors of `tensorRank` dimensions. */
export const resolveDims = (layout: MeshLayout, tensorRank: number): Result.Result<MeshLayout, MeshError> => {
  const placements: Array<Placement> = []
  for (const [meshDim, placement] of layout.placements.entries()) {
    if (!isSharding(placement)) {
      placements.push(placement)
      continue
    }
    const dim = placement.dim < 0 ? placement.dim + tensorRank : placement.dim
    if (dim < 0 || dim >= tensorRank) {
      return meshError(
        "DimOutOfRange",
        `Mesh dimension ${meshDim} shards tensor dimension ${placement.dim} of a tensor of ${tensorRank} dimensions.`,
        tensorRank === 0 ? "Replicate scalars." : `Name a dimension from ${-tensorRank} to ${tensorRank - 1}.`
      )
    }
    placements.push({ ...placement, dim })
  }
  return Result.succeed({ mesh: layout.mesh, placements })
}
