// SPDX-License-Identifier: Apache-2.0
/**
 * The manifest of a resharded checkpoint: `tensorferry.json` beside one safetensors file per rank. It says which pieces of
 * which tensor each file holds, so that the folder can be read, compared and resharded again whatever its layout.
 *
 * Nothing in it is trusted: names are plain file names, pieces must lie inside their tensors, and files must hold what the
 * manifest says.
 */

import { bitsOf, DType } from "@tensorferry/core/base/DType"
import { Natural32 } from "@tensorferry/core/base/Numbers"
import {
  equalShapes,
  intersect,
  isEmptyRegion,
  isInside,
  isRepresentable,
  Region,
  regionShape,
  Shape
} from "@tensorferry/core/base/Region"
import { coverageFault } from "@tensorferry/core/planner/Coverage"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { Cutting } from "./Cutting.ts"
import type { CheckpointError } from "./checkpoint/CheckpointError.ts"
import { readSmallFile } from "./checkpoint/FileAccess.ts"
import { ParallelConfig } from "./layout/ModelLayout.ts"
import { type ModelError, modelError } from "./ModelError.ts"

/** The file that makes a folder a resharded checkpoint. */
export const manifestFileName = "tensorferry.json"

const PlainFileName = Schema.String.check(
  Schema.isPattern(/^[A-Za-z0-9_][A-Za-z0-9._-]{0,199}$/, { message: "must be a plain file name" })
)

/** One rank's file, and what each of its tensors holds of the whole ones. */
export const ShardFile = Schema.Struct({
  file: PlainFileName,
  rank: Natural32,
  tensors: Schema.Array(
    Schema.Struct({
      name: Schema.String,
      /** Shape of what the file holds under this name, padding included. */
      shape: Shape,
      /** Which region of the whole tensor lies where in it; what is in no piece is padding. */
      pieces: Schema.Array(Schema.Struct({ local: Region, global: Region })).check(Schema.isMaxLength(1024)),
      /** What makes the whole's integers of the file's: added to all of them, or to each its own. */
      shift: Schema.optionalKey(Schema.Array(Schema.Int).check(Schema.isMaxLength(64))),
      /** SHA-256 of the dense bytes that the file holds. */
      digest: Schema.String.check(Schema.isPattern(/^[0-9a-f]{64}$/))
    })
  )
})
export type ShardFile = typeof ShardFile.Type
/** What a file holds of one tensor. */
export type ShardTensor = ShardFile["tensors"][number]

/** What `tensorferry.json` in a folder of shards says: the layout, the rules, and each file's tensors with their digests. */
export const Manifest = Schema.Struct({
  format: Schema.Literal("tensorferry.checkpoint"),
  version: Schema.Literal(2),
  layout: ParallelConfig,
  rules: Cutting,
  metadata: Schema.Record(Schema.String, Schema.String),
  tensors: Schema.Array(Schema.Struct({ name: Schema.String, dtype: DType, shape: Shape })),
  shards: Schema.Array(ShardFile)
})
export type Manifest = typeof Manifest.Type

const codec = Schema.fromJsonString(Manifest)

/** The manifest as JSON text. Fails with InvalidManifest where it does not fit its own schema. */
export const encodeManifest = (manifest: Manifest): Effect.Effect<string, ModelError> =>
  Effect.mapError(Schema.encodeEffect(codec)(manifest), (error) =>
    modelError("InvalidManifest", { detail: error.message, remedy: "Report this as a fault of tensorferry." })
  )

type Fault = { readonly paramName?: string; readonly detail: string } | undefined

/** What is wrong with the pieces of one tensor in one file. */
const piecesFault = (entry: ShardTensor, whole: Shape): string | undefined => {
  const { shape, pieces } = entry
  for (const [at, { local, global }] of pieces.entries()) {
    if (!isInside(global, whole)) return "A piece lies outside the tensor."
    if (!isInside(local, shape) || !equalShapes(regionShape(local), regionShape(global)))
      return "A piece lies outside what the file holds, or has another shape there."
    if (isEmptyRegion(local)) return "A piece is empty."
    if (pieces.slice(0, at).some((other) => intersect(other.local, local) !== undefined)) return "Two pieces overlap."
  }
  return undefined
}

/** What is wrong with what is added to integers of a file. */
const shiftFault = ({ shape, shift }: ShardTensor, { dtype }: { readonly dtype: DType }): string | undefined =>
  shift === undefined ||
  ((dtype === "int32" || dtype === "int64") && shape.length === 1 && (shift.length === 1 || shift.length === shape[0]))
    ? undefined
    : "What is added to its elements is not for integers in a row."

/** Checks a decoded manifest against itself: unique names, pieces inside tensors, every element held somewhere. */
const check = (manifest: Manifest): Fault => {
  const tensors = new Map(manifest.tensors.map((tensor) => [tensor.name, tensor]))
  if (tensors.size !== manifest.tensors.length) return { detail: "Two tensors have one name." }
  if (new Set(manifest.shards.map((shard) => shard.file)).size !== manifest.shards.length) {
    return { detail: "Two shards name one file." }
  }
  const held = new Map<string, { readonly digests: Map<string, string>; readonly regions: Map<string, Region> }>()
  for (const { name, dtype, shape } of manifest.tensors) {
    if (!isRepresentable(shape, bitsOf(dtype))) return { paramName: name, detail: "Its size exceeds 2^53 bits." }
    held.set(name, { digests: new Map(), regions: new Map() })
  }
  for (const shard of manifest.shards) {
    const inFile = new Set<string>()
    for (const entry of shard.tensors) {
      const { name, digest, pieces, shape } = entry
      if (inFile.has(name)) return { paramName: name, detail: `${shard.file} is said to hold it twice.` }
      inFile.add(name)
      const tensor = tensors.get(name)
      if (tensor === undefined)
        return { paramName: name, detail: `${shard.file} holds a tensor that the manifest does not list.` }
      if (!isRepresentable(shape, bitsOf(tensor.dtype)))
        return { paramName: name, detail: `Its size in ${shard.file} exceeds 2^53 bits.` }
      const fault = shiftFault(entry, tensor) ?? piecesFault(entry, tensor.shape)
      if (fault !== undefined) return { paramName: name, detail: `In ${shard.file}: ${fault}` }
      const known = held.get(name)!
      const key = JSON.stringify([shape, pieces, entry.shift])
      if ((known.digests.get(key) ?? digest) !== digest)
        return { paramName: name, detail: `The replica in ${shard.file} has another digest than the one before it.` }
      known.digests.set(key, digest)
      for (const { global } of pieces) known.regions.set(JSON.stringify(global), global)
    }
  }
  // Replicas hold equal regions and count once.
  for (const { name, shape } of manifest.tensors) {
    const detail = coverageFault(shape, [...held.get(name)!.regions.values()])
    if (detail !== undefined) return { paramName: name, detail }
  }
  return undefined
}

/** Reads a manifest and checks it against itself. */
export const readManifest = (file: string): Effect.Effect<Manifest, ModelError | CheckpointError> =>
  Effect.gen(function* () {
    const bytes = yield* readSmallFile(file)
    const decoded = Schema.decodeResult(codec, { onExcessProperty: "error" })(new TextDecoder().decode(bytes))
    const invalid = (detail: string, paramName?: string) =>
      modelError("InvalidManifest", {
        file,
        ...(paramName === undefined ? {} : { paramName }),
        detail,
        remedy: "Reshard the original checkpoint again."
      })
    if (Result.isFailure(decoded)) return yield* invalid(decoded.failure.message)
    const fault = check(decoded.success)
    if (fault !== undefined) return yield* invalid(fault.detail, fault.paramName)
    return decoded.success
  })

/** Fails where a file does not hold what the manifest says of it. */
export const checkShardFile = (
  manifest: Manifest,
  shard: ShardFile,
  file: string,
  held: ReadonlyMap<string, { readonly dtype: DType; readonly shape: Shape }>
): Effect.Effect<void, ModelError> => {
  const dtypes = new Map(manifest.tensors.map((tensor) => [tensor.name, tensor.dtype]))
  for (const { name, shape } of shard.tensors) {
    const tensor = held.get(name)
    if (tensor !== undefined && tensor.dtype === dtypes.get(name) && equalShapes(tensor.shape, shape)) continue
    return Effect.fail(
      modelError("InvalidManifest", {
        file,
        paramName: name,
        detail:
          tensor === undefined
            ? "The manifest says that the file holds it, but it does not."
            : `The file holds ${tensor.dtype}[${tensor.shape.join(",")}], the manifest says ${dtypes.get(name)}[${shape.join(",")}].`,
        remedy: "Restore the folder as it was written; manifest and files belong together."
      })
    )
  }
  return Effect.void
}
