// SPDX-License-Identifier: Apache-2.0
/**
 * Writes a checkpoint into a folder: one file where it fits, else several with an index.
 *
 * Invariant: no file is empty, the index names exactly the files, and it appears last, so that a reader sees the whole
 * checkpoint or none.
 */
import { mkdir, readdir } from "node:fs/promises"
import { join } from "node:path"
import { byteLengthOf } from "@tensorferry/core/base/DType"
import { elementCount } from "@tensorferry/core/base/Region"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { type CheckpointError, checkpointError } from "./CheckpointError.ts"
import { indexFileName, singleFileName } from "./CheckpointIndex.ts"
import { systemCall, writeFully } from "./FileAccess.ts"
import type { TensorDescription } from "./SafetensorsHeader.ts"
import { type StagedFile, stageFile, stageSafetensors, type TensorSource } from "./SafetensorsWriter.ts"

/** How tensors are dealt to files, and what else goes into these. */
export interface CheckpointOptions {
  /** Most bytes of tensor data in one file; a larger tensor has a file of its own. Unlimited by default. */
  readonly maxFileBytes?: number
  /** Goes into every file. */
  readonly metadata?: ReadonlyMap<string, string>
}

/** The tensors of one file. */
export interface FilePart<A> {
  readonly fileName: string
  readonly tensors: ReadonlyArray<A>
}

const dataBytes = (tensor: TensorDescription): number => byteLengthOf(tensor.dtype, elementCount(tensor.shape))

/**
 * Deals tensors to files in the order given. Pure, so that several writers of one checkpoint agree on the names. An empty
 * tensor never opens a file.
 */
export const planFiles = <A extends TensorDescription>(
  tensors: ReadonlyArray<A>,
  maxFileBytes = Number.POSITIVE_INFINITY
): ReadonlyArray<FilePart<A>> => {
  const groups: Array<Array<A>> = [[]]
  let used = 0
  for (const tensor of tensors) {
    const bytes = dataBytes(tensor)
    if (bytes > 0 && used > 0 && used + bytes > maxFileBytes) {
      groups.push([])
      used = 0
    }
    groups.at(-1)!.push(tensor)
    used += bytes
  }
  const number = (value: number): string => String(value).padStart(5, "0")
  return groups.map((group, at) => ({
    fileName: groups.length === 1 ? singleFileName : `model-${number(at + 1)}-of-${number(groups.length)}.safetensors`,
    tensors: group
  }))
}

/** The bytes of the index of several files. */
export const encodeIndex = (parts: ReadonlyArray<FilePart<TensorDescription>>): Uint8Array => {
  const placed = parts.flatMap((part) => part.tensors.map((tensor) => ({ tensor, fileName: part.fileName })))
  const total = placed.reduce((sum, { tensor }) => sum + dataBytes(tensor), 0)
  const lines = placed.map(({ tensor, fileName }) => `    ${JSON.stringify(tensor.name)}: ${JSON.stringify(fileName)}`)
  // Written as text, not from an object: an object would reorder names that look like numbers and lose `__proto__`.
  const text = `{\n  "metadata": {"total_size": ${total}},\n  "weight_map": {\n${lines.join(",\n")}\n  }\n}\n`
  return new TextEncoder().encode(text)
}

/** Refuses a folder with other safetensors files: they would stand beside the new ones as if they belonged to them. */
const prepareFolder = (folder: string): Effect.Effect<void, CheckpointError> =>
  Effect.gen(function* () {
    yield* systemCall("WriteFailed", folder, "create the folder", () => mkdir(folder, { recursive: true }))
    const names = yield* systemCall("WriteFailed", folder, "list the folder", () => readdir(folder))
    const other = names.find((name) => name.endsWith(".safetensors") || name.endsWith(".safetensors.index.json"))
    if (other === undefined) return
    return yield* checkpointError("AlreadyExists", {
      detail: `The folder already holds ${other}.`,
      remedy: "Write to a new folder, or remove the old checkpoint first.",
      file: folder
    })
  })

/** A checkpoint under temporary names, which becomes visible as a whole or not at all. */
export interface StagedCheckpoint {
  /** Complete under temporary names. */
  readonly files: ReadonlyArray<StagedFile>
  /** Names all files, the index last. A failure part of the way leaves a checkpoint without index, which does not open. */
  readonly commit: Effect.Effect<void, CheckpointError>
}

/** Two tensors of one name would be written to two files, where no single header sees both. */
const checkNames = (
  folder: string,
  tensors: ReadonlyArray<TensorDescription>
): Effect.Effect<void, CheckpointError> => {
  const names = new Set<string>()
  for (const { name } of tensors) {
    if (names.has(name)) {
      return Effect.fail(
        checkpointError("TensorInvalid", {
          detail: "Two tensors have this name.",
          remedy: "Correct the list of tensors that is written.",
          file: folder,
          paramName: name
        })
      )
    }
    names.add(name)
  }
  return Effect.void
}

/** Writes all files under temporary names in `folder`, which is created where absent. Fails as `stageSafetensors` does, or with AlreadyExists. */
export const stageCheckpoint = <E = never, R = never>(
  folder: string,
  tensors: ReadonlyArray<TensorSource<E, R>>,
  options: CheckpointOptions = {}
): Effect.Effect<StagedCheckpoint, CheckpointError | E, R | Scope.Scope> =>
  Effect.gen(function* () {
    const limit = options.maxFileBytes ?? Number.POSITIVE_INFINITY
    if (!(limit > 0)) {
      return yield* checkpointError("InvalidRequest", {
        detail: `The limit of ${limit} bytes for one file is not positive.`,
        remedy: "Give a positive number of bytes.",
        file: folder
      })
    }
    yield* checkNames(folder, tensors)
    yield* prepareFolder(folder)
    const parts = planFiles(tensors, limit)
    const files: Array<StagedFile> = []
    for (const part of parts) {
      files.push(yield* stageSafetensors(join(folder, part.fileName), part.tensors, options.metadata))
    }
    if (parts.length > 1) {
      const path = join(folder, indexFileName)
      const bytes = encodeIndex(parts)
      files.push(yield* stageFile(path, bytes.length, (handle) => writeFully(path, handle, bytes, 0)))
    }
    return { files, commit: Effect.uninterruptible(Effect.forEach(files, (file) => file.commit, { discard: true })) }
  })

/** Writes a checkpoint in one step. Names appear only when all bytes are written. */
export const writeCheckpoint = <E = never, R = never>(
  folder: string,
  tensors: ReadonlyArray<TensorSource<E, R>>,
  options?: CheckpointOptions
): Effect.Effect<void, CheckpointError | E, Exclude<R, Scope.Scope>> =>
  Effect.scoped(Effect.flatMap(stageCheckpoint(folder, tensors, options), (staged) => staged.commit))
