// SPDX-License-Identifier: Apache-2.0
/**
 * Opens a checkpoint, be it one safetensors file, a folder with one, or a folder with an index of several.
 *
 * Invariant: an index is believed only where the files agree: it names plain files of its own folder, each tensor lies in
 * the file that the index gives and in no other, and no file holds a tensor that the index lacks.
 */
import { readdir, stat } from "node:fs/promises"
import { basename, dirname, join } from "node:path"
import type { Region, Shape } from "@tensorferry/core/base/Region"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { type CheckpointError, type CheckpointReason, checkpointError } from "./CheckpointError.ts"
import { readSmallFile, systemCall } from "./FileAccess.ts"
import { type FileCache, makeFileCache, type SeenFiles } from "./FileCache.ts"
import type { SafetensorsFile } from "./Safetensors.ts"
import type { TensorInfo } from "./SafetensorsHeader.ts"
import { decodeUtf8, isJsonObject, parseJson } from "./StrictJson.ts"

/** File of a checkpoint that is not cut into several. */
export const singleFileName = "model.safetensors"
/** File that says which file holds which tensor. */
export const indexFileName = "model.safetensors.index.json"
/** How Mistral names the files of its own format. */
export const consolidatedName = "consolidated.safetensors"
/** The index of Mistral's files where there are several. */
export const consolidatedIndexName = "consolidated.safetensors.index.json"
const fileSuffix = ".safetensors"
const indexSuffix = ".safetensors.index.json"

/** Names of files that are one of at least two. */
const partName = /-\d{5}-of-(?!00001)\d{5}\.safetensors$/

/** Files kept open; far below the usual limit of 1024 descriptors. */
const openFileLimit = 64

/** One tensor, and the file that holds it. */
export interface CheckpointTensor extends Pick<TensorInfo, "name" | "dtype" | "shape" | "byteLength"> {
  /** Path of the file that holds it. */
  readonly file: string
}

/** Where a tensor lies: dense in row-major order, from a byte of a file on. */
export interface StoredPlace {
  readonly shape: Shape
  readonly file: string
  readonly start: number
}

/** Tensors that lie in files as they are read. */
export interface StoredTensors<E> {
  /** The reads that the places stand for. What reads otherwise, as a model made of another one, has its tensors elsewhere. */
  readonly readRegion: (name: string, region: Region, into: Uint8Array) => Effect.Effect<void, E>
  /** Where one lies; undefined where there is none of this name. */
  readonly placeOf: (name: string) => StoredPlace | undefined
  /** Fills `into` from a byte of a file on. */
  readonly readBytes: (file: string, start: number, into: Uint8Array) => Effect.Effect<void, E>
}

/** An open checkpoint: its tensors by name, whatever file they are in. */
export interface Checkpoint {
  /** What was opened. */
  readonly path: string
  /** In the order of the files, and of the data in each. */
  readonly tensors: ReadonlyMap<string, CheckpointTensor>
  /** The `__metadata__` of the files. Where files disagree on a key, the first file counts. */
  readonly metadata: ReadonlyMap<string, string>
  /** Names that the index lists in files that are not here. */
  readonly absent?: ReadonlyArray<string>
  /** The files that were read. */
  readonly files: () => SeenFiles
  /** Where tensors lie in files, if they lie there dense and as they are read. */
  readonly stored?: StoredTensors<CheckpointError>
  /** As `SafetensorsFile.readRegion`. */
  readonly readRegion: (name: string, region: Region, into: Uint8Array) => Effect.Effect<void, CheckpointError>
}

const remedies: Partial<Record<CheckpointReason["_tag"], string>> = {
  NotFound: "Fetch the missing files, or check the path.",
  UnsafePath: "Do not use this checkpoint: its index may have been made to read other files.",
  InvalidIndex: "Fetch or write the checkpoint again, index and files together."
}

const fail = (
  tag: "NotFound" | "UnsafePath" | "InvalidIndex" | "InvalidRequest",
  file: string,
  detail: string,
  paramName?: string
) =>
  checkpointError(tag, {
    detail,
    remedy: remedies[tag] ?? "Give the path of the file or of the index.",
    file,
    ...(paramName === undefined ? {} : { paramName })
  })

/** A name that stays in its folder whatever the operating system makes of it. */
export const isPlainName = (name: string): boolean =>
  name.length > 0 && name.length <= 255 && !name.startsWith(".") && !/[/\\:\0]/.test(name)

/** At most five of `names`, for messages. */
const some = (names: ReadonlyArray<string>): string =>
  names.length <= 5 ? names.join(", ") : `${names.slice(0, 5).join(", ")} and ${names.length - 5} more`

/** Tensor name to file name, from the bytes of an index. Pure; `file` names the index for errors. */
export const parseIndex = (
  bytes: Uint8Array,
  file = "<bytes>",
  suffix = fileSuffix
): Result.Result<ReadonlyMap<string, string>, CheckpointError> => {
  const invalid = (detail: string, paramName?: string) => Result.fail(fail("InvalidIndex", file, detail, paramName))
  const text = decodeUtf8(bytes)
  if (text === undefined) return invalid("The index is not valid UTF-8.")
  const parsed = parseJson(text)
  if (Result.isFailure(parsed)) {
    return invalid(`The index is not valid JSON: ${parsed.failure.detail}.`, parsed.failure.path[1])
  }
  if (text.slice(parsed.success.end).trim() !== "") return invalid("Something follows the JSON of the index.")
  const weightMap = isJsonObject(parsed.success.value) ? parsed.success.value.get("weight_map") : undefined
  if (!isJsonObject(weightMap)) return invalid("The index has no object weight_map.")
  const files = new Map<string, string>()
  // Many tensors lie in one file: each target is looked at once.
  const sound = new Set<string>()
  for (const [name, target] of weightMap) {
    if (typeof target !== "string") return invalid("The file name is not a string.", name)
    if (!sound.has(target)) {
      if (!isPlainName(target)) {
        const detail = `The index names ${JSON.stringify(target)}, which is not a plain file name.`
        return Result.fail(fail("UnsafePath", file, detail, name))
      }
      if (!target.endsWith(suffix)) return invalid(`The file ${target} is not a ${suffix.slice(1)} file.`, name)
      sound.add(target)
    }
    files.set(name, target)
  }
  return Result.succeed(files)
}

const sorted = (names: Iterable<string>): ReadonlyArray<string> => [...names].sort()

/** Opens each file once, in turn, and merges what they hold. */
const makeCheckpoint = (
  path: string,
  files: ReadonlyArray<string>,
  cache: FileCache,
  /** What is wrong with a tensor of a file, or that it is left out. */
  claim: (name: string, file: string, earlier: string | undefined) => CheckpointError | "left out" | undefined
): Effect.Effect<Checkpoint, CheckpointError> =>
  Effect.gen(function* () {
    const tensors = new Map<string, CheckpointTensor>()
    const places = new Map<string, StoredPlace>()
    const metadata = new Map<string, string>()
    const add = (file: SafetensorsFile): Effect.Effect<void, CheckpointError> => {
      for (const [key, text] of file.metadata) if (!metadata.has(key)) metadata.set(key, text)
      for (const { name, dtype, shape, byteLength, byteOffset } of file.tensors.values()) {
        const refusal = claim(name, file.path, tensors.get(name)?.file)
        if (refusal === "left out") continue
        if (refusal !== undefined) return Effect.fail(refusal)
        tensors.set(name, { name, dtype, shape, byteLength, file: file.path })
        places.set(name, { shape, file: file.path, start: byteOffset })
      }
      return Effect.void
    }
    for (const file of files) yield* cache.use(file, add)
    const readRegion: Checkpoint["readRegion"] = (name, region, into) => {
      const tensor = tensors.get(name)
      return tensor === undefined
        ? Effect.fail(
            checkpointError("TensorMissing", {
              detail: "The checkpoint has no such tensor.",
              remedy: "Check the name.",
              file: path,
              paramName: name
            })
          )
        : cache.use(tensor.file, (file) => file.readRegion(name, region, into))
    }
    return {
      path,
      tensors,
      metadata,
      files: cache.seen,
      stored: {
        readRegion,
        placeOf: (name) => places.get(name),
        readBytes: (file, start, into) => cache.use(file, (open) => open.readBytes(start, into))
      },
      readRegion
    }
  })

/** How an index is read. */
export interface IndexOptions {
  /** Takes what the index says and is here: neither what lies in files that are not, nor what files hold besides. */
  readonly indexOnly?: boolean
}

const openIndexed = (
  indexPath: string,
  cache: FileCache,
  { indexOnly = false }: IndexOptions
): Effect.Effect<Checkpoint, CheckpointError> =>
  Effect.gen(function* () {
    const folder = dirname(indexPath)
    const index = yield* Effect.fromResult(parseIndex(yield* readSmallFile(indexPath), indexPath))
    const names = sorted(new Set(index.values()))
    const present = new Set(yield* listFolder(folder))
    const absent = names.filter((name) => !present.has(name))
    const here = names.filter((name) => present.has(name))
    if (absent.length > 0 && (!indexOnly || here.length === 0)) {
      return yield* fail(
        "NotFound",
        join(folder, absent[0]!),
        `The index names files that do not exist: ${some(absent)}. (--index-only leaves their tensors out.)`
      )
    }
    const checkpoint = yield* makeCheckpoint(
      indexPath,
      here.map((name) => join(folder, name)),
      cache,
      (name, file, earlier) => {
        const target = index.get(name)
        if (indexOnly && target !== basename(file)) return "left out"
        if (earlier !== undefined) return fail("InvalidIndex", file, `The tensor also lies in ${earlier}.`, name)
        if (target === undefined)
          return fail(
            "InvalidIndex",
            file,
            "The file holds a tensor that the index lacks. (--index-only takes what the index says.)",
            name
          )
        if (target === basename(file)) return undefined
        return fail("InvalidIndex", file, `The tensor lies here, the index says ${target}.`, name)
      }
    )
    const missing: Array<string> = []
    for (const [name, target] of index) {
      if (!present.has(target)) missing.push(name)
      else if (!checkpoint.tensors.has(name)) {
        return yield* fail(
          "InvalidIndex",
          join(folder, target),
          "The file lacks a tensor that the index places in it.",
          name
        )
      }
    }
    return missing.length === 0 ? checkpoint : { ...checkpoint, absent: missing }
  })

const openSingle = (path: string, cache: FileCache): Effect.Effect<Checkpoint, CheckpointError> =>
  makeCheckpoint(path, [path], cache, () => undefined)

const listFolder = (folder: string) => systemCall("Unreadable", folder, "list the folder", () => readdir(folder))

const openFolder = (
  folder: string,
  cache: FileCache,
  options: IndexOptions
): Effect.Effect<Checkpoint, CheckpointError> =>
  Effect.gen(function* () {
    const names = yield* listFolder(folder)
    const hasSingle = names.includes(singleFileName)
    const hasIndex = names.includes(indexFileName)
    if (hasSingle && hasIndex) {
      return yield* fail("InvalidRequest", folder, `The folder has both ${singleFileName} and ${indexFileName}.`)
    }
    if (hasSingle) return yield* openSingle(join(folder, singleFileName), cache)
    if (hasIndex) return yield* openIndexed(join(folder, indexFileName), cache, options)
    if (names.includes(consolidatedIndexName)) {
      return yield* openIndexed(join(folder, consolidatedIndexName), cache, options)
    }
    if (names.includes(consolidatedName)) return yield* openSingle(join(folder, consolidatedName), cache)
    const candidates = sorted(names.filter((name) => name.endsWith(fileSuffix)))
    if (candidates.length === 1) {
      // What an interrupted copy of several files leaves behind must not pass for the whole.
      return yield* partName.test(candidates[0]!)
        ? fail("NotFound", folder, `${candidates[0]} is one file of several, and the folder has no index.`)
        : openSingle(join(folder, candidates[0]!), cache)
    }
    return yield* candidates.length === 0
      ? fail("NotFound", folder, "The folder has no safetensors file.")
      : fail("InvalidRequest", folder, `The folder has no index, and several files: ${some(candidates)}.`)
  })

/**
 * Opens the checkpoint at `path`: a safetensors file, an index, or a folder with `model.safetensors`, with
 * `model.safetensors.index.json` or with one safetensors file. All headers are checked now; files are opened again as
 * they are read, few at a time, and closed by the scope.
 */
export const openCheckpoint = (
  path: string,
  options: IndexOptions = {}
): Effect.Effect<Checkpoint, CheckpointError, Scope.Scope> =>
  Effect.gen(function* () {
    const stats = yield* systemCall("Unreadable", path, "examine the path", () => stat(path))
    const cache = yield* makeFileCache(openFileLimit)
    if (stats.isDirectory()) return yield* openFolder(path, cache, options)
    return yield* path.endsWith(indexSuffix) ? openIndexed(path, cache, options) : openSingle(path, cache)
  })
