// SPDX-License-Identifier: Apache-2.0
/**
 * Ranks in a grid of one or more dimensions, which may have names. Ranks come in any order; a coordinate, never the order
 * of rank numbers, says what a rank holds.
 *
 * Invariant: `ranks` lists one rank per coordinate, the last dimension varying fastest, and no rank twice.
 */
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { Rank } from "../base/Ids.ts"
import { dimensionLimit, formatShape } from "../base/Region.ts"
import { type MeshError, meshError } from "./MeshError.ts"

/** Ranks as an array of any number of dimensions, in row-major order, with names for dimensions where they have some. */
export const DeviceMesh = Schema.Struct({
  /** Ranks along each dimension, each at least 1. */
  shape: Schema.Array(Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 2 ** 31 - 1 }))),
  /** Row-major. */
  ranks: Schema.Array(Rank),
  dimNames: Schema.NullOr(Schema.Array(Schema.String))
})
export type DeviceMesh = typeof DeviceMesh.Type

/** More ranks than any job has; keeps a mistyped shape from filling memory, which holds a plan of each. */
const mostRanks = 2 ** 18

const largestRank = 2 ** 31 - 1

/** What a mesh is made of; ranks count up from 0 where they are not stated. */
export interface DeviceMeshInput {
  readonly shape: ReadonlyArray<number>
  /** Row-major; `firstRank`, `firstRank + 1`, ... by default. */
  readonly ranks?: ReadonlyArray<Rank>
  /** 0 by default. */
  readonly firstRank?: Rank
  readonly dimNames?: ReadonlyArray<string>
  /** Ranks of the group that the mesh lies in; without it any rank is taken. */
  readonly worldSize?: number
}

/** A mesh that keeps its invariant, or why there is none. */
export const deviceMesh = (input: DeviceMeshInput): Result.Result<DeviceMesh, MeshError> => {
  const { shape, worldSize } = input
  const text = formatShape(shape)
  if (shape.length === 0) return meshError("EmptyMesh", "The mesh has no dimensions.", "State at least one.")
  if (shape.length > dimensionLimit) {
    const detail = `The mesh has ${shape.length} dimensions, more than ${dimensionLimit}.`
    return meshError("EmptyMesh", detail, "State fewer: dimensions of one rank can be left out.")
  }
  const bad = shape.find((length) => !Number.isSafeInteger(length) || length < 1)
  if (bad !== undefined) {
    return meshError("EmptyMesh", `Mesh ${text} has a dimension of ${bad} ranks.`, "Give every dimension a rank.")
  }
  let size = 1
  for (const length of shape) {
    size *= length
    if (size > (worldSize ?? mostRanks)) {
      const group = worldSize === undefined ? `${mostRanks} ranks, the most that are planned for` : `${worldSize} ranks`
      return meshError(
        "OutsideGroup",
        `Mesh ${text} has more ranks than its group, which has ${group}.`,
        "Make the mesh smaller."
      )
    }
  }
  const first = input.firstRank ?? 0
  const ranks = input.ranks ?? Array.from({ length: size }, (_, at) => first + at)
  if (ranks.length !== size) {
    return meshError(
      "CountMismatch",
      `Mesh ${text} has ${size} places for ${ranks.length} ranks.`,
      "List one rank per place."
    )
  }
  const seen = new Set<Rank>()
  for (const rank of ranks) {
    if (
      !Number.isSafeInteger(rank) ||
      rank < 0 ||
      rank > largestRank ||
      rank >= (worldSize ?? Number.POSITIVE_INFINITY)
    ) {
      const group = worldSize === undefined ? "no rank can have" : `the group of ${worldSize} ranks does not have`
      return meshError("OutsideGroup", `Mesh ${text} names rank ${rank}, which ${group}.`, "Name ranks of the group.")
    }
    if (seen.has(rank)) {
      return meshError("RepeatedRank", `Mesh ${text} names a rank twice.`, "Name every rank once.", [rank])
    }
    seen.add(rank)
  }
  const { dimNames } = input
  if (dimNames !== undefined && (dimNames.length !== shape.length || new Set(dimNames).size !== dimNames.length)) {
    return meshError(
      "CountMismatch",
      `Mesh ${text} needs ${shape.length} different names and has ${dimNames.join(", ") || "none"}.`,
      "Name every dimension once, or none."
    )
  }
  return Result.succeed({ shape, ranks, dimNames: dimNames ?? null })
}

/** Steps between neighbours along each dimension, counted in positions of `ranks`. */
export const meshStrides = (mesh: DeviceMesh): ReadonlyArray<number> => {
  const strides = new Array<number>(mesh.shape.length)
  let step = 1
  for (let dim = mesh.shape.length - 1; dim >= 0; dim--) {
    strides[dim] = step
    step *= mesh.shape[dim]!
  }
  return strides
}

/** Coordinate of a position in `ranks`. */
export const coordinateAt = (mesh: DeviceMesh, position: number): ReadonlyArray<number> => {
  const coordinate = new Array<number>(mesh.shape.length)
  let rest = position
  for (let dim = mesh.shape.length - 1; dim >= 0; dim--) {
    coordinate[dim] = rest % mesh.shape[dim]!
    rest = Math.floor(rest / mesh.shape[dim]!)
  }
  return coordinate
}

/** Coordinate of a rank; `undefined` where the mesh does not have it. */
export const coordinateOf = (mesh: DeviceMesh, rank: Rank): ReadonlyArray<number> | undefined => {
  const position = mesh.ranks.indexOf(rank)
  return position < 0 ? undefined : coordinateAt(mesh, position)
}
