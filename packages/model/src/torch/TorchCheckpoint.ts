// SPDX-License-Identifier: Apache-2.0
/**
 * Files of torch.save as a checkpoint: `pytorch_model.bin`, or several with an index. Only tensors are taken from them, by
 * the closed reader, and read where they lie.
 *
 * Invariant: nothing in a file is executed. A name of the pickle that is not that of a tensor is refused.
 */
import { createHash } from "node:crypto"
import { basename } from "node:path"
import { digestOf } from "@tensorferry/core/base/Digest"
import { bitsOf, byteLengthOf } from "@tensorferry/core/base/DType"
import { elementCount, formatRegion, formatShape, isInside, regionShape } from "@tensorferry/core/base/Region"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { type CheckpointError, checkpointError } from "../checkpoint/CheckpointError.ts"
import type { Checkpoint, CheckpointTensor } from "../checkpoint/CheckpointIndex.ts"
import { makeRawCache, type PlacedTensor, placeTensor, readPlaced } from "./RawFiles.ts"
import { openArchive } from "./TorchArchive.ts"
import { readStatePickle } from "./TorchTensors.ts"

/**
 * Opens the files, in the order given, as one checkpoint. `belongs` says what an index says against a tensor in a file,
 * and undefined where it agrees.
 */
export const openTorchFiles = (
  path: string,
  files: ReadonlyArray<string>,
  belongs: (name: string, file: string) => CheckpointError | undefined
): Effect.Effect<Checkpoint, CheckpointError, Scope.Scope> =>
  Effect.gen(function* () {
    const cache = yield* makeRawCache
    const tensors = new Map<string, CheckpointTensor>()
    const placed = new Map<string, PlacedTensor>()
    const digests = new Map<string, string>()
    for (const path of files) {
      yield* cache.use(path, (file) =>
        Effect.gen(function* () {
          const archive = yield* openArchive({ file, offset: 0, length: file.size })
          const pickle = yield* archive.pickle
          digests.set(path, digestOf([file.size, createHash("sha256").update(pickle).digest("hex")]))
          const read = readStatePickle(pickle)
          if (Result.isFailure(read)) {
            return yield* checkpointError("Unsupported", {
              detail: read.failure.detail,
              remedy: "Only files of plain tensors are read. Save the model as safetensors.",
              file: path,
              ...(read.failure.paramName === undefined ? {} : { paramName: read.failure.paramName })
            })
          }
          const storages = new Map<string, { readonly offset: number; readonly length: number }>()
          for (const [name, tensor] of read.success) {
            const earlier = tensors.get(name)
            const refusal =
              earlier === undefined
                ? belongs(name, basename(path))
                : checkpointError("InvalidIndex", {
                    detail: `The tensor also lies in ${earlier.file}.`,
                    remedy: "Fetch or write the checkpoint again.",
                    file: path,
                    paramName: name
                  })
            if (refusal !== undefined) return yield* refusal
            const storage = storages.get(tensor.storage) ?? (yield* archive.storage(tensor.storage))
            storages.set(tensor.storage, storage)
            placed.set(name, yield* Effect.fromResult(placeTensor(path, tensor, storage)))
            const { dtype, shape } = tensor
            tensors.set(name, { name, dtype, shape, byteLength: byteLengthOf(dtype, elementCount(shape)), file: path })
          }
        })
      )
    }
    return {
      path,
      tensors,
      metadata: new Map(),
      files: () =>
        new Map([...cache.seen()].map(([file, seen]) => [file, { ...seen, headerDigest: digests.get(file)! }])),
      readRegion: Effect.fnUntraced(function* (name, region, into) {
        const [found, listed] = [placed.get(name), tensors.get(name)]
        if (found === undefined || listed === undefined) {
          return yield* checkpointError("TensorMissing", {
            detail: "The checkpoint has no such tensor.",
            remedy: "Check the name.",
            file: path,
            paramName: name
          })
        }
        const needed = (elementCount(regionShape(region)) * bitsOf(listed.dtype)) / 8
        if (!isInside(region, listed.shape) || into.length !== needed) {
          return yield* checkpointError("InvalidRequest", {
            detail: `Region ${formatRegion(region)} is not inside shape ${formatShape(listed.shape)}, or the buffer has ${into.length} bytes for ${needed}.`,
            remedy: "Correct the region or the buffer.",
            file: listed.file,
            paramName: name
          })
        }
        yield* cache.use(listed.file, (file) => readPlaced(file, found, region, into))
      })
    }
  })
