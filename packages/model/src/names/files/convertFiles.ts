// SPDX-License-Identifier: Apache-2.0
/**
 * Writes a model as a system names and holds it, rank after rank, from the files that have it to files of its ranks: in one
 * process, without memory for any tensor as a whole.
 *
 * Invariant: what each rank holds is known before anything is written, every file is read back, and the output folder has its
 * name only when all files are in it.
 */
import { createHash } from "node:crypto"
import { mkdir, rm } from "node:fs/promises"
import * as path from "node:path"
import { byteLengthOf } from "@tensorferry/core/base/DType"
import { elementCount, fullRegion } from "@tensorferry/core/base/Region"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import { boundedRegions } from "../../BoundedRegions.ts"
import type { FamilyChoice } from "../../Cutting.ts"
import { checkRoom, systemCall } from "../../checkpoint/FileAccess.ts"
import { openSafetensors } from "../../checkpoint/Safetensors.ts"
import { stageSafetensors, type TensorSource } from "../../checkpoint/SafetensorsWriter.ts"
import { makeScratch } from "../../HeldTensors.ts"
import { worldSizeOf } from "../../layout/ModelLayout.ts"
import { placeOf } from "../../layout/ParallelConfig.ts"
import type { Model } from "../../Model.ts"
import { modelError } from "../../ModelError.ts"
import type { Companion } from "../../outputs/companions.ts"
import { readBackFault } from "../../outputs/outputFiles.ts"
import { structureOf } from "../../placement/cutModel.ts"
import { checkFilesUnchanged } from "../../SameFiles.ts"
import { assembledModel } from "../AssembledModel.ts"
import { checkTied } from "../checkTied.ts"
import { type MappedTensor, mapModel } from "../mapModel.ts"
import type { NamedSide } from "../NamedSide.ts"
import { sideOf } from "../namedLayouts.ts"
import type { FileWriter } from "./deviceFiles.ts"
import { isPublished, namedFiles, namedMetadata, publishFolder, writeIndex } from "./NamedFiles.ts"
import { writeNamesFile } from "./NamesFile.ts"

/** Where a conversion writes, and what else belongs there. */
export interface ConversionOutput {
  /** The final folder, and the one that is written first. */
  readonly folder: string
  readonly temporary: string
  /** Most bytes of tensors in one file of a published checkpoint. */
  readonly maxFileBytes?: number
  readonly companions: ReadonlyArray<Companion>
}

/** A file that was written. */
export interface ConvertedFile {
  readonly file: string
  readonly rank: number
  readonly tensors: number
  /** Of its tensors. */
  readonly bytes: number
}

const byteLength = ({ dtype, shape }: MappedTensor): number => byteLengthOf(dtype, elementCount(shape))

/** A tensor's bytes piece by piece, and the digest of what was handed over so far. */
const sourceOf = (model: Model, { name, dtype, shape }: MappedTensor) => {
  const hash = createHash("sha256")
  const pieces = Stream.mapEffect(
    Stream.fromIterable(boundedRegions(dtype, fullRegion(shape))),
    Effect.fnUntraced(function* ({ region, start, end }) {
      const bytes = new Uint8Array(end - start)
      yield* model.readRegion(name, region, bytes)
      hash.update(bytes)
      return bytes
    })
  )
  return { source: { name, dtype, shape, data: pieces }, digest: () => hash.digest("hex") }
}

/** Writes a file and reads it back. */
const writeFile: FileWriter = Effect.fnUntraced(function* (model, rank, file, { tensors }, metadata) {
  const made = tensors.map((tensor) => ({ tensor, ...sourceOf(model, tensor) }))
  const sources: ReadonlyArray<TensorSource<Effect.Error<ReturnType<Model["readRegion"]>>>> = made.map(
    ({ source }) => source
  )
  yield* Effect.scoped(Effect.flatMap(stageSafetensors(file, sources, metadata), (staged) => staged.commit))
  const written = yield* openSafetensors(file)
  const scratch = makeScratch()
  for (const { tensor, digest } of made) {
    const hash = createHash("sha256")
    for (const { region, start, end } of boundedRegions(tensor.dtype, fullRegion(tensor.shape))) {
      const back = scratch(end - start)
      yield* written.readRegion(tensor.name, region, back)
      hash.update(back)
    }
    if (hash.digest("hex") !== digest()) return yield* readBackFault(file, tensor.name, rank)
  }
}, Effect.scoped)

/** What every rank of a side holds of a model. Fails where the model or the degrees do not fit. */
const ranksOf = Effect.fnUntraced(function* (model: Model, side: NamedSide, family: FamilyChoice) {
  const structure = yield* Effect.fromResult(structureOf(model.tensors, family))
  const stated = yield* Effect.fromResult(sideOf(side, structure, family, 0))
  const mapped = yield* Effect.fromResult(mapModel({ ...stated, tensors: model.tensors }))
  yield* checkTied(model, structure, side)
  return yield* Effect.forEach(Array.from({ length: worldSizeOf(side.config) }), (_, rank) =>
    Effect.fromResult(mapped.rankAt(placeOf(side.config, 0, rank)))
  )
})

/** Other processes may look into the folder when it is removed. */
const removal = { recursive: true, force: true, maxRetries: 20, retryDelay: 50 } as const

/**
 * Writes all ranks' files of a model under the names of a side. `progress` gets the bytes that are written and those that
 * there are. `prepare` gets what each rank is to hold and gives what writes files, where it is not this process from host memory.
 */
export const convertFiles = Effect.fn("convertFiles")(function* <E = never>(
  model: Model,
  side: NamedSide,
  family: FamilyChoice,
  out: ConversionOutput,
  progress: (done: number, total: number) => Effect.Effect<void> = () => Effect.void,
  prepare?: (ranks: ReadonlyArray<ReadonlyArray<MappedTensor>>) => Effect.Effect<FileWriter, E>
) {
  const ranks = yield* ranksOf(model, side, family)
  const total = ranks.flatMap(({ tensors }) => tensors).reduce((sum, tensor) => sum + byteLength(tensor), 0)
  if (ranks.every(({ tensors }) => tensors.length === 0))
    return yield* modelError("InvalidUsage", {
      file: model.path,
      detail: "No rank would hold any tensor.",
      remedy: "Name a checkpoint that has tensors, or correct the rules of --map."
    })
  yield* checkRoom(path.dirname(out.temporary), total)
  const writePart = prepare === undefined ? writeFile : yield* prepare(ranks.map(({ tensors }) => tensors))
  const write = Effect.gen(function* () {
    yield* Effect.acquireRelease(
      systemCall("WriteFailed", out.temporary, "create the output folder", () => mkdir(out.temporary, { mode: 0o755 })),
      () => Effect.ignore(Effect.tryPromise(() => rm(out.temporary, removal)))
    )
    const metadata = namedMetadata(side, model.metadata)
    const files: Array<ConvertedFile> = []
    let done = 0
    yield* progress(done, total)
    for (const [rank, { tensors }] of ranks.entries()) {
      const own = assembledModel(model, tensors)
      const parts = namedFiles(side, rank, tensors, out.maxFileBytes)
      for (const part of parts) {
        yield* writePart(own, rank, path.join(out.temporary, part.fileName), part, metadata)
        const bytes = part.tensors.reduce((sum, tensor) => sum + byteLength(tensor), 0)
        files.push({ file: part.fileName, rank, tensors: part.tensors.length, bytes })
        done += bytes
        yield* progress(done, total)
      }
      yield* writeIndex(out.temporary, parts)
    }
    if (!isPublished(side)) yield* writeNamesFile(out.temporary, side, family, model.tensors)
    // What was written is what the paths name now.
    yield* checkFilesUnchanged(model)
    yield* publishFolder(out, out.companions)
    return files
  })
  return yield* Effect.scoped(write)
})
