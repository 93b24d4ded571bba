// SPDX-License-Identifier: Apache-2.0
/**
 * A distributed checkpoint of PyTorch as one model: a folder with `.metadata` and the files of the ranks that wrote it, as
 * FSDP, DTensors and Megatron-Core leave it. Regions are read where they lie, from the chunks that hold them.
 *
 * Invariant: nothing is loaded whole; a chunk is read only where it is what the metadata says.
 */
import { createHash } from "node:crypto"
import { stat } from "node:fs/promises"
import { join } from "node:path"
import { digestOf } from "@tensorferry/core/base/Digest"
import { bitsOf, byteLengthOf } from "@tensorferry/core/base/DType"
import {
  elementCount,
  equalShapes,
  formatRegion,
  formatShape,
  intersect,
  isInside,
  type Region,
  regionShape
} from "@tensorferry/core/base/Region"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { type CheckpointError, checkpointError } from "../checkpoint/CheckpointError.ts"
import type { Checkpoint, CheckpointTensor } from "../checkpoint/CheckpointIndex.ts"
import { readSmallFile, systemCall } from "../checkpoint/FileAccess.ts"
import { regionRuns } from "../checkpoint/RegionRuns.ts"
import { decodeUtf8, isJsonObject, parseJson } from "../checkpoint/StrictJson.ts"
import { asOneRun, scatter } from "../regionBytes.ts"
import { type Chunk, type DistributedTensor, parseDistributedMetadata } from "./DistributedMetadata.ts"
import { makeRawCache, type PlacedTensor, readPlaced, tensorAt } from "./RawFiles.ts"
import { metadataRules } from "./TorchNames.ts"

/** File that makes a folder a distributed checkpoint. */
export const distributedMetadataName = ".metadata"

/** Megatron-Core's note of what wrote a checkpoint. */
const megatronNoteName = "metadata.json"
const mostNoteBytes = 65_536

/** A tensor of the model as a part of one of the checkpoint: all of it, or one layer of a stack. */
interface Part {
  readonly name: string
  readonly tensor: DistributedTensor
  /** Where it lies along the first dimension of the tensor, which it then lacks. */
  readonly layer: number | undefined
}

/** Whether Megatron-Core wrote the folder: it keeps a note of the format beside the data. */
const isMegatronFolder = (folder: string): Effect.Effect<boolean, CheckpointError> =>
  Effect.gen(function* () {
    const note = yield* Effect.result(readSmallFile(join(folder, megatronNoteName), mostNoteBytes))
    if (Result.isFailure(note)) {
      return yield* note.failure.reason._tag === "NotFound" ? Effect.succeed(false) : Effect.fail(note.failure)
    }
    const text = decodeUtf8(note.success)
    const parsed = text === undefined ? undefined : Result.getOrUndefined(parseJson(text))?.value
    return isJsonObject(parsed) && parsed.get("sharded_backend") === "torch_dist"
  })

const stackedLayer = /\.layers\.(?!\d+\.)/

/** Megatron-Core keeps the layers of a stack as one tensor, whose name has no number: each layer is a tensor here. */
const partsOf = (name: string, tensor: DistributedTensor, isStacked: boolean): ReadonlyArray<Part> =>
  isStacked && stackedLayer.test(name) && tensor.shape.length > 1
    ? Array.from({ length: tensor.shape[0]! }, (_, layer) => ({
        name: name.replace(stackedLayer, `.layers.${layer}.`),
        tensor,
        layer
      }))
    : [{ name, tensor, layer: undefined }]

const moved = (region: Region, from: Region): Region =>
  region.map(([start, stop], dim) => [start - from[dim]![0], stop - from[dim]![0]] as const)

/** Opens the distributed checkpoint in a folder; its files are opened as they are read and closed by the scope. */
export const openDistributed = (folder: string): Effect.Effect<Checkpoint, CheckpointError, Scope.Scope> =>
  Effect.gen(function* () {
    const metadataFile = join(folder, distributedMetadataName)
    const bytes = yield* readSmallFile(metadataFile, metadataRules.mostBytes)
    const { tensors } = yield* Effect.fromResult(parseDistributedMetadata(bytes, metadataFile))
    const isMegatron = yield* isMegatronFolder(folder)
    const cache = yield* makeRawCache
    yield* cache.use(metadataFile, () => Effect.void)

    // A file that is missing or cut short is found now, not in the middle of a job.
    const needed = new Map<string, { bytes: number; name: string }>()
    for (const [name, { chunks }] of tensors) {
      for (const { place } of chunks) {
        const end = place.offset + place.length
        if (end > (needed.get(place.file)?.bytes ?? -1)) needed.set(place.file, { bytes: end, name })
      }
    }
    for (const [file, { bytes: end, name }] of needed) {
      const path = join(folder, file)
      const { size } = yield* systemCall("Unreadable", path, "examine the file", () => stat(path))
      if (size >= end) continue
      return yield* checkpointError("Truncated", {
        detail: `The file has ${size} bytes, the metadata needs ${end}.`,
        remedy: "Fetch or write the checkpoint again.",
        file: path,
        paramName: name
      })
    }

    const parts = new Map<string, Part>()
    const listed = new Map<string, CheckpointTensor>()
    for (const [name, tensor] of tensors) {
      for (const part of partsOf(name, tensor, isMegatron)) {
        const { dtype } = tensor
        const shape = part.layer === undefined ? tensor.shape : tensor.shape.slice(1)
        if (parts.has(part.name)) {
          return yield* checkpointError("TensorInvalid", {
            detail: "Two tensors have this name.",
            remedy: "Write the checkpoint again.",
            file: metadataFile,
            paramName: part.name
          })
        }
        parts.set(part.name, part)
        const byteLength = byteLengthOf(dtype, elementCount(shape))
        listed.set(part.name, { name: part.name, dtype, shape, byteLength, file: metadataFile })
      }
    }

    const placed = new Map<Chunk, PlacedTensor>()
    const readChunk = (name: string, { dtype }: DistributedTensor, chunk: Chunk, common: Region, into: Uint8Array) =>
      cache.use(join(folder, chunk.place.file), (file) =>
        Effect.gen(function* () {
          let found = placed.get(chunk)
          if (found === undefined) {
            found = yield* tensorAt(file, chunk.place.offset, chunk.place.length)
            const shape = regionShape(chunk.region)
            if (found.tensor.dtype !== dtype || !equalShapes(found.tensor.shape, shape)) {
              return yield* checkpointError("TensorInvalid", {
                detail: `The file holds ${found.tensor.dtype}${formatShape(found.tensor.shape)}, the metadata says ${dtype}${formatShape(shape)}.`,
                remedy: "Fetch or write the checkpoint again, metadata and files together.",
                file: file.path,
                paramName: name
              })
            }
            placed.set(chunk, found)
          }
          yield* readPlaced(file, found, moved(common, chunk.region), into)
        })
      )

    const readRegion: Checkpoint["readRegion"] = Effect.fnUntraced(function* (name, wanted, into) {
      const part = parts.get(name)
      if (part === undefined) {
        return yield* checkpointError("TensorMissing", {
          detail: "The checkpoint has no such tensor.",
          remedy: "Check the name.",
          file: folder,
          paramName: name
        })
      }
      const { layer, tensor } = part
      const shape = listed.get(name)!.shape
      const width = bitsOf(tensor.dtype) / 8
      if (!isInside(wanted, shape) || into.length !== elementCount(regionShape(wanted)) * width) {
        return yield* checkpointError("InvalidRequest", {
          detail: `Region ${formatRegion(wanted)} is not inside shape ${formatShape(shape)}, or the buffer has not its ${elementCount(regionShape(wanted)) * width} bytes.`,
          remedy: "Correct the region or the buffer.",
          file: folder,
          paramName: name
        })
      }
      const region: Region = layer === undefined ? wanted : [[layer, layer + 1], ...wanted]
      for (const chunk of tensor.chunks) {
        const common = intersect(region, chunk.region)
        if (common === undefined) continue
        const runs = Result.getOrThrow(regionRuns(regionShape(region), moved(common, region), width * 8))
        const direct = asOneRun(runs, into)
        const dense = direct ?? new Uint8Array(elementCount(regionShape(common)) * width)
        yield* readChunk(name, tensor, chunk, common, dense)
        if (direct === undefined) scatter(runs, dense, into)
      }
    })

    const headerDigest = digestOf([createHash("sha256").update(bytes).digest("hex")])
    return {
      path: folder,
      tensors: listed,
      metadata: new Map(),
      files: () => {
        const seen = new Map(cache.seen())
        seen.set(metadataFile, { identity: seen.get(metadataFile)!.identity, headerDigest })
        return seen
      },
      readRegion
    }
  })
