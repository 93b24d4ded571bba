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
  regionShape,
  type Shape
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
import { megatronTensors, type NamedPieces } from "./MegatronNames.ts"
import { makeRawCache, type PlacedTensor, readPlaced, tensorAt } from "./RawFiles.ts"
import { metadataRules } from "./TorchNames.ts"
import { distributedMetadataName } from "./torchFiles.ts"

/** Megatron-Core's note of what wrote a checkpoint. */
const megatronNoteName = "metadata.json"
const mostNoteBytes = 65_536

/** Rows of a tensor of the model, which lie in one of the checkpoint at a place of its first dimensions. */
interface Piece {
  readonly name: string
  readonly tensor: DistributedTensor
  readonly leading: ReadonlyArray<number>
  /** Where its rows begin. */
  readonly start: number
  readonly shape: Shape
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

/** Pieces behind each other; undefined where they do not fit together. */
const piecesOf = (
  { pieces }: NamedPieces,
  tensors: ReadonlyMap<string, DistributedTensor>
): ReadonlyArray<Piece> | undefined => {
  let start = 0
  const found = pieces.map(({ tensor: name, leading }): Piece => {
    const tensor = tensors.get(name)!
    const shape = tensor.shape.slice(leading.length)
    const piece = { name, tensor, leading, start, shape }
    start += shape[0] ?? 0
    return piece
  })
  const [first] = found
  const fits = ({ shape, tensor }: Piece) =>
    tensor.dtype === first!.tensor.dtype && equalShapes(shape.slice(1), first!.shape.slice(1))
  return found.length === 1 || found.every((piece) => piece.shape.length > 0 && fits(piece)) ? found : undefined
}

/** The shape of all pieces together. */
const joinedShape = (pieces: ReadonlyArray<Piece>): Shape => {
  const last = pieces.at(-1)!
  return pieces.length === 1 ? last.shape : [last.start + last.shape[0]!, ...last.shape.slice(1)]
}

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

    const parts = new Map<string, ReadonlyArray<Piece>>()
    const listed = new Map<string, CheckpointTensor>()
    const shapes = new Map([...tensors].map(([name, { shape }]) => [name, shape]))
    const named: ReadonlyArray<NamedPieces> = isMegatron
      ? megatronTensors(shapes)
      : [...shapes.keys()].map((name) => ({ name, pieces: [{ tensor: name, leading: [] }] }))
    for (const one of named) {
      const { name } = one
      const pieces = piecesOf(one, tensors)
      if (pieces === undefined || parts.has(name)) {
        return yield* checkpointError("TensorInvalid", {
          detail: pieces === undefined ? "Its parts do not fit together." : "Two tensors have this name.",
          remedy: "Write the checkpoint again.",
          file: metadataFile,
          paramName: name
        })
      }
      parts.set(name, pieces)
      const { dtype } = pieces[0]!.tensor
      const shape = joinedShape(pieces)
      const byteLength = byteLengthOf(dtype, elementCount(shape))
      listed.set(name, { name, dtype, shape, byteLength, file: metadataFile })
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
      const pieces = parts.get(name)
      if (pieces === undefined) {
        return yield* checkpointError("TensorMissing", {
          detail: "The checkpoint has no such tensor.",
          remedy: "Check the name.",
          file: folder,
          paramName: name
        })
      }
      const { shape, dtype } = listed.get(name)!
      const width = bitsOf(dtype) / 8
      if (!isInside(wanted, shape) || into.length !== elementCount(regionShape(wanted)) * width) {
        return yield* checkpointError("InvalidRequest", {
          detail: `Region ${formatRegion(wanted)} is not inside shape ${formatShape(shape)}, or the buffer has not its ${elementCount(regionShape(wanted)) * width} bytes.`,
          remedy: "Correct the region or the buffer.",
          file: folder,
          paramName: name
        })
      }
      for (const piece of pieces) {
        const { tensor, leading, start } = piece
        const [rows, ...others] = wanted
        // What of the wanted rows is this piece's, and where it lies among them.
        const own: Region = rows === undefined ? [] : [[Math.max(rows[0], start), rows[1]], ...others]
        const shift = rows === undefined ? 0 : own[0]![0] - rows[0]
        const inside = own.map(([from, to], dim) =>
          dim === 0 ? ([from - start, to - start] as const) : ([from, to] as const)
        )
        const region: Region = [...leading.map((at) => [at, at + 1] as const), ...inside]
        const container = [...leading.map(() => 1), ...regionShape(wanted)]
        if (region.some(([from, to]) => from >= to)) continue
        for (const chunk of tensor.chunks) {
          const common = intersect(region, chunk.region)
          if (common === undefined) continue
          const place = moved(common, region).map(([from, to], dim) =>
            dim === leading.length ? ([from + shift, to + shift] as const) : ([from, to] as const)
          )
          const runs = Result.getOrThrow(regionRuns(container, place, width * 8))
          const direct = asOneRun(runs, into)
          const dense = direct ?? new Uint8Array(elementCount(regionShape(common)) * width)
          yield* readChunk(piece.name, tensor, chunk, common, dense)
          if (direct === undefined) scatter(runs, dense, into)
        }
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
