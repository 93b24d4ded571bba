// SPDX-License-Identifier: Apache-2.0
/** Shapes of meshes and placements, as clients of both kinds send them. */
import { Natural } from "@tensorferry/core/base/Numbers"
import {
  Partial,
  type PartialOp,
  type Placement,
  Placement as PlacementSchema,
  partial,
  replicate,
  shard,
  stridedShard
} from "@tensorferry/core/layout/Placement"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { decodeOwnPayload, encodeOwnPayload, isOwnPayload } from "./OwnPayload.ts"
import { type PayloadError, payloadError } from "./PayloadError.ts"
import { type PickleValue, readPickle } from "./Pickle.ts"

const MeshShape = Schema.Struct({ type: Schema.Literal("mesh"), shape: Schema.Array(Natural) })
const Placements = Schema.Struct({ type: Schema.Literal("placements"), placements: Schema.Array(PlacementSchema) })

/** Meshes have few dimensions; more are a mistake or an attack. */
const mostDimensions = 32

const misused = (detail: string) =>
  Result.fail(
    payloadError("Forbidden", {
      op: "read layout",
      detail,
      remedy: "Send a tuple of whole numbers for a mesh, and a tuple of placements."
    })
  )

/** The lengths of a mesh, one per dimension, as a payload of this project. */
export const encodeMeshShape = (shape: ReadonlyArray<number>): Uint8Array =>
  encodeOwnPayload({ type: "mesh", shape: [...shape] })

/** The placements of a mesh, one per dimension, as a payload of this project. */
export const encodePlacements = (placements: ReadonlyArray<Placement>): Uint8Array =>
  encodeOwnPayload({ type: "placements", placements: placements.map((placement) => ({ ...placement })) })

const listOf = (value: PickleValue): ReadonlyArray<PickleValue> | undefined =>
  value.type === "tuple" || value.type === "list" ? value.items : undefined

/** Lengths of a mesh's dimensions. */
export const decodeMeshShape = (bytes: Uint8Array): Result.Result<ReadonlyArray<number>, PayloadError> => {
  if (isOwnPayload(bytes)) return Result.map(decodeOwnPayload(MeshShape, bytes), ({ shape }) => shape)
  return Result.flatMap(readPickle(bytes), (value) => {
    const items = listOf(value)
    if (items === undefined || items.length > mostDimensions) return misused("A mesh is not a tuple of few numbers.")
    const shape = items.flatMap((item) => (item.type === "int" && item.value >= 0 ? [item.value] : []))
    return shape.length === items.length ? Result.succeed(shape) : misused("A mesh has a length that is no number.")
  })
}

const isPartialOp = Schema.is(Partial.fields.op)

const placementOf = (value: PickleValue): Placement | undefined => {
  if (value.type !== "object") return undefined
  const state = value.state?.type === "dict" ? value.state.entries : []
  const find = (key: string): PickleValue | undefined =>
    state.findLast(([name]) => name.type === "text" && name.value === key)?.[1]
  const int = (key: string): number | undefined => {
    const found = find(key)
    return found?.type === "int" ? found.value : undefined
  }
  const dim = int("dim")
  switch (value.name) {
    case "Replicate":
      return replicate
    case "Shard":
      return dim === undefined ? undefined : shard(dim)
    case "_StridedShard": {
      const splitFactor = int("split_factor")
      return dim === undefined || splitFactor === undefined ? undefined : stridedShard(dim, splitFactor)
    }
    case "Partial": {
      const op = find("reduce_op")
      return op?.type === "text" && isPartialOp(op.value) ? partial(op.value as PartialOp) : undefined
    }
    default:
      return undefined
  }
}

/** One placement per dimension of a mesh. */
export const decodePlacements = (bytes: Uint8Array): Result.Result<ReadonlyArray<Placement>, PayloadError> => {
  if (isOwnPayload(bytes)) return Result.map(decodeOwnPayload(Placements, bytes), ({ placements }) => placements)
  return Result.flatMap(readPickle(bytes), (value) => {
    const items = listOf(value)
    if (items === undefined || items.length > mostDimensions) return misused("Placements are not a tuple.")
    const placements = items.map(placementOf)
    const wrong = placements.indexOf(undefined)
    return wrong < 0
      ? Result.succeed(placements as ReadonlyArray<Placement>)
      : misused(`Placement ${wrong} is not Shard, Replicate, Partial or _StridedShard with their own values.`)
  })
}
