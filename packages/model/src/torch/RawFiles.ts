// SPDX-License-Identifier: Apache-2.0
/** Files of PyTorch, opened a bounded number at a time, and the archives in them. */
import { digestOf } from "@tensorferry/core/base/Digest"
import { bitsOf } from "@tensorferry/core/base/DType"
import type { Region } from "@tensorferry/core/base/Region"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { type CheckpointError, checkpointError } from "../checkpoint/CheckpointError.ts"
import { checkUnchanged, type OpenFile, openForReading } from "../checkpoint/FileAccess.ts"
import { type FileCache, makeCacheOf } from "../checkpoint/FileCache.ts"
import { readStrided } from "./StridedRead.ts"
import { openArchive } from "./TorchArchive.ts"
import { readTensorPickle, type StoredTensor } from "./TorchTensors.ts"

/** An open file, whatever is in it. */
export interface RawFile extends OpenFile {
  /** Of its size: what is in it, its reader knows. */
  readonly headerDigest: string
}

const openFileLimit = 64

export const makeRawCache: Effect.Effect<FileCache<RawFile>, never, Scope.Scope> = makeCacheOf(openFileLimit, (path) =>
  Effect.map(openForReading(path), (file) => ({ ...file, headerDigest: digestOf([file.size]) }))
)

/** A tensor, and where the bytes of its storage begin in the file. */
export interface PlacedTensor {
  readonly tensor: StoredTensor
  readonly base: number
}

/** The tensor with the place of its storage; fails where the storage is shorter than the tensor needs. */
export const placeTensor = (
  file: string,
  tensor: StoredTensor,
  storage: { readonly offset: number; readonly length: number }
): Result.Result<PlacedTensor, CheckpointError> => {
  const { dtype, offset, shape, strides } = tensor
  const last = shape.reduce((sum, length, dim) => sum + Math.max(0, length - 1) * strides[dim]!, offset)
  const needed = shape.includes(0) ? 0 : ((last + 1) * bitsOf(dtype)) / 8
  return needed <= storage.length
    ? Result.succeed({ tensor, base: storage.offset })
    : Result.fail(
        checkpointError("Truncated", {
          detail: `A tensor needs ${needed} bytes of its storage, which has ${storage.length}.`,
          remedy: "Fetch or write the file again.",
          file
        })
      )
}

/** The one tensor that a stretch of a file holds. */
export const tensorAt = (file: RawFile, offset: number, length: number): Effect.Effect<PlacedTensor, CheckpointError> =>
  Effect.gen(function* () {
    const invalid = (detail: string) =>
      checkpointError("InvalidHeader", {
        detail: `At byte ${offset}: ${detail}.`,
        remedy: "The file is damaged or of another kind; fetch or write it again.",
        file: file.path
      })
    if (!(offset + length <= file.size)) return yield* invalid(`${length} bytes are needed, the file has ${file.size}`)
    const archive = yield* openArchive({ file, offset, length })
    const tensor = readTensorPickle(yield* archive.pickle)
    if (Result.isFailure(tensor)) return yield* invalid(tensor.failure)
    return yield* Effect.fromResult(
      placeTensor(file.path, tensor.success, yield* archive.storage(tensor.success.storage))
    )
  })

/** Reads a region of a placed tensor, dense and row-major, from a file that is still what it was. */
export const readPlaced = (
  file: RawFile,
  { base, tensor }: PlacedTensor,
  region: Region,
  into: Uint8Array
): Effect.Effect<void, CheckpointError> =>
  Effect.andThen(checkUnchanged(file), readStrided(file, base, tensor, region, into))
