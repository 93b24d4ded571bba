// SPDX-License-Identifier: Apache-2.0
/**
 * The `.metadata` of a distributed checkpoint of PyTorch: which tensors there are, in which chunks, and in which stretch of
 * which file each chunk lies. Pure.
 *
 * Invariant: a description that parses is complete. Chunks lie inside their tensor and cover it exactly once, each has a
 * place, a place names a plain file of the folder, and no number exceeds 2^53.
 */
import { bitsOf, type DType } from "@tensorferry/core/base/DType"
import { fullRegion, isInside, isRepresentable, type Region, type Shape } from "@tensorferry/core/base/Region"
import { coverageFault } from "@tensorferry/core/planner/Coverage"
import * as Result from "effect/Result"
import { type CheckpointError, type CheckpointReason, checkpointError } from "../checkpoint/CheckpointError.ts"
import { isPlainName } from "../checkpoint/CheckpointIndex.ts"
import { type PickleValue, readClosedPickle, textEntries } from "../pickle/ClosedPickle.ts"
import { dtypeOfName, metadataRules, type TorchName } from "./TorchNames.ts"
import { sizesOf } from "./TorchTensors.ts"

type Value = PickleValue<TorchName>

/** Where the archive of a chunk lies. */
export interface ChunkPlace {
  readonly file: string
  readonly offset: number
  readonly length: number
}

/** A part of a tensor that was written by one rank. */
export interface Chunk {
  readonly region: Region
  readonly place: ChunkPlace
}

export interface DistributedTensor {
  readonly dtype: DType
  readonly shape: Shape
  readonly chunks: ReadonlyArray<Chunk>
}

export interface DistributedMetadata {
  readonly tensors: ReadonlyMap<string, DistributedTensor>
  /** Entries that are no tensors, as step counts and states of random generators. */
  readonly objects: ReadonlyArray<string>
}

const remedies = {
  InvalidHeader: "The file is damaged or of another kind; fetch or write the checkpoint again.",
  TensorInvalid: "The file is damaged or hostile; fetch or write the checkpoint again.",
  UnsafePath: "Do not use this checkpoint: its metadata may have been made to read other files.",
  Unsupported: "Load the checkpoint with PyTorch and save it without extensions."
} satisfies Partial<Record<CheckpointReason["_tag"], string>>

/** The state of an object of this name. */
const stateOf = (value: Value | undefined, name: TorchName): ReadonlyMap<string, Value> | undefined =>
  value?.type === "object" && value.name === name ? textEntries(value.state) : undefined

const typeOf = (properties: Value | undefined): TorchName | undefined => {
  if (properties?.type !== "object" || properties.name !== "TensorProperties") return undefined
  const first =
    properties.state?.type === "tuple" ? properties.state.items[0] : textEntries(properties.state)?.get("dtype")
  return first?.type === "name" ? first.name : undefined
}

const regionOf = (chunk: Value): Region | undefined => {
  const state = stateOf(chunk, "ChunkStorageMetadata")
  const [offsets, sizes] = [sizesOf(state?.get("offsets")), sizesOf(state?.get("sizes"))]
  if (offsets === undefined || sizes?.length !== offsets.length) return undefined
  return offsets.map((offset, dim) => [offset, offset + sizes[dim]!] as const)
}

const naturalOf = (value: Value | undefined): number | undefined =>
  value?.type === "int" && value.value >= 0 ? value.value : undefined

/** By name of the tensor and offset of the chunk. */
const keyOf = (name: string, offsets: ReadonlyArray<number>): string => `${offsets.join(",")} ${name}`

/** Parses the bytes of `.metadata`; `file` is its name for errors. */
export const parseDistributedMetadata = (
  bytes: Uint8Array,
  file = "<bytes>"
): Result.Result<DistributedMetadata, CheckpointError> => {
  const fail = (tag: keyof typeof remedies, detail: string, paramName?: string) =>
    Result.fail(
      checkpointError(tag, {
        detail,
        remedy: remedies[tag],
        file,
        ...(paramName === undefined ? {} : { paramName })
      })
    )
  const read = readClosedPickle(bytes, metadataRules)
  if (Result.isFailure(read)) return fail("InvalidHeader", `The metadata is not read: ${read.failure.detail}`)
  const root = stateOf(read.success, "Metadata")
  const described = textEntries(root?.get("state_dict_metadata"))
  const stored = root?.get("storage_data")
  if (described === undefined || stored?.type !== "dict") {
    return fail("InvalidHeader", "This is not the metadata of a distributed checkpoint with files.")
  }

  const places = new Map<string, ChunkPlace>()
  for (const [index, info] of stored.entries) {
    const [key, place] = [stateOf(index, "MetadataIndex"), stateOf(info, "StorageInfo")]
    const name = key?.get("fqn")
    const path = place?.get("relative_path")
    const [offset, length] = [naturalOf(place?.get("offset")), naturalOf(place?.get("length"))]
    if (name?.type !== "text" || path?.type !== "text" || offset === undefined || length === undefined) {
      return fail("InvalidHeader", "A place of its data is not one.")
    }
    const where = key?.get("offset")
    // Objects have no offset, and are not read.
    if (where === undefined || where.type === "none") continue
    const offsets = sizesOf(where)
    if (offsets === undefined) return fail("TensorInvalid", "The offset of a chunk is not one.", name.value)
    if (!isPlainName(path.value)) {
      const shown = JSON.stringify(path.value.slice(0, 200))
      return fail("UnsafePath", `The data is said to lie in ${shown}, which is not a plain file name.`, name.value)
    }
    const transforms = place?.get("transform_descriptors")
    const isPlain =
      transforms === undefined ||
      transforms.type === "none" ||
      (transforms.type === "list" && transforms.items.length === 0)
    if (!isPlain) return fail("Unsupported", "The data was compressed or changed by an extension.", name.value)
    if (!Number.isSafeInteger(offset + length))
      return fail("TensorInvalid", "Its place exceeds 2^53 bytes.", name.value)
    places.set(keyOf(name.value, offsets), { file: path.value, offset, length })
  }

  const tensors = new Map<string, DistributedTensor>()
  const objects: Array<string> = []
  for (const [name, entry] of described) {
    if (entry.type === "object" && entry.name === "BytesStorageMetadata") {
      objects.push(name)
      continue
    }
    const state = stateOf(entry, "TensorStorageMetadata")
    const [typeName, shape, chunkList] = [
      typeOf(state?.get("properties")),
      sizesOf(state?.get("size")),
      state?.get("chunks")
    ]
    if (typeName === undefined || shape === undefined || chunkList?.type !== "list") {
      return fail("TensorInvalid", "Its description is not one of a tensor.", name)
    }
    const dtype = dtypeOfName(typeName)
    if (dtype === undefined) return fail("Unsupported", `Elements of ${typeName} are not known.`, name)
    if (!isRepresentable(shape, bitsOf(dtype))) return fail("TensorInvalid", "Its size exceeds 2^53 bits.", name)
    const chunks = new Map<string, Chunk>()
    for (const item of chunkList.items) {
      const region = regionOf(item)
      if (region === undefined || !isInside(region, shape))
        return fail("TensorInvalid", "A chunk lies outside of it.", name)
      if (region.some(([start, stop]) => start === stop)) continue
      const key = keyOf(
        name,
        region.map(([start]) => start)
      )
      const place = places.get(key)
      if (place === undefined) return fail("TensorInvalid", `The chunk at ${key.split(" ")[0]} lies in no file.`, name)
      // Copies of a chunk on several ranks are one.
      if (!chunks.has(key)) chunks.set(key, { region, place })
    }
    const all = [...chunks.values()]
    const fault = coverageFault(
      shape,
      shape.length === 0 && all.length === 1 ? [fullRegion(shape)] : all.map(({ region }) => region)
    )
    if (fault !== undefined) return fail("TensorInvalid", `Its chunks are not the tensor: ${fault}`, name)
    tensors.set(name, { dtype, shape, chunks: all })
  }
  return Result.succeed({ tensors, objects })
}
