// SPDX-License-Identifier: Apache-2.0
/**
 * Finds out in which format a file or folder holds a model, and opens it as one checkpoint.
 *
 * Invariant: a folder that could be read in two ways is refused, and no format needs anything to be executed.
 */
import { readdir, stat } from "node:fs/promises"
import { basename, dirname, join } from "node:path"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { type CheckpointError, checkpointError } from "../checkpoint/CheckpointError.ts"
import {
  type Checkpoint,
  consolidatedIndexName,
  consolidatedName,
  type IndexOptions,
  indexFileName,
  openCheckpoint,
  parseIndex,
  singleFileName
} from "../checkpoint/CheckpointIndex.ts"
import { readSmallFile, systemCall } from "../checkpoint/FileAccess.ts"
import type { ModelConfig } from "../structure/ModelConfig.ts"
import type { openTorchFiles as OpenTorchFiles } from "../torch/TorchCheckpoint.ts"
import { distributedMetadataName, isTorchFile } from "../torch/torchFiles.ts"
import { asPublished, parseMistralParams } from "./Mistral.ts"
import { isShardedState, openShardedState } from "./ShardedState.ts"

/** What a user says about reading a model. */
export interface InputOptions extends IndexOptions {
  /** Only tensors whose names begin so, without that beginning: "model." of a training state. */
  readonly part?: string
}

/** A checkpoint, and the configuration that its format brings in other words than config.json. */
export interface OpenInput {
  readonly checkpoint: Checkpoint
  readonly config?: ModelConfig
  /** The same as a config.json that `transformers` reads. */
  readonly configText?: string
}

const adapterName = "adapter_model.safetensors"
const paramsName = "params.json"
const torchIndexSuffix = ".bin.index.json"
const torchNames = ["pytorch_model.bin", "adapter_model.bin"]

const refuse = (
  tag: "InvalidRequest" | "NotFound" | "InvalidIndex",
  file: string,
  detail: string,
  remedy: string,
  paramName?: string
) => checkpointError(tag, { detail, remedy, file, ...(paramName === undefined ? {} : { paramName }) })

/** The code for files of torch is imported where there are some. */
const openTorchFiles = (...given: Parameters<typeof OpenTorchFiles>) =>
  Effect.flatMap(
    Effect.promise(() => import("../torch/TorchCheckpoint.ts")),
    (torch) => torch.openTorchFiles(...given)
  )

const openDistributed = (folder: string) =>
  Effect.flatMap(
    Effect.promise(() => import("../torch/DistributedCheckpoint.ts")),
    (torch) => torch.openDistributed(folder)
  )

const openTorchIndex = (index: string, { indexOnly = false }: InputOptions) =>
  Effect.gen(function* () {
    const folder = dirname(index)
    const targets = yield* Effect.fromResult(parseIndex(yield* readSmallFile(index), index, ".bin"))
    const present = new Set(yield* systemCall("Unreadable", folder, "list the folder", () => readdir(folder)))
    const names = [...new Set(targets.values())].sort()
    const here = names.filter((name) => present.has(name))
    const gone = names.filter((name) => !present.has(name))
    if (here.length === 0 || (gone.length > 0 && !indexOnly)) {
      return yield* refuse(
        "NotFound",
        join(folder, gone[0] ?? ""),
        `The index names files that do not exist: ${gone.slice(0, 5).join(", ")}. (--index-only leaves their tensors out.)`,
        "Fetch the missing files, or check the path."
      )
    }
    const checkpoint = yield* openTorchFiles(
      index,
      here.map((name) => join(folder, name)),
      (name, file) =>
        targets.get(name) === file
          ? undefined
          : refuse(
              "InvalidIndex",
              join(folder, file),
              "The index places the tensor elsewhere.",
              "Fetch or write the checkpoint again.",
              name
            )
    )
    const absent = [...targets].flatMap(([name, file]) => (present.has(file) ? [] : [name]))
    const missing = [...targets].find(([name, file]) => present.has(file) && !checkpoint.tensors.has(name))
    if (missing !== undefined) {
      return yield* refuse(
        "InvalidIndex",
        join(folder, missing[1]),
        "The file lacks a tensor that the index places in it.",
        "Fetch or write the checkpoint again, index and files together.",
        missing[0]
      )
    }
    return absent.length === 0 ? checkpoint : { ...checkpoint, absent }
  })

/** Mistral's files under published names where `params.json` stands beside them. */
const openConsolidated = (folder: string, names: ReadonlyArray<string>, options: InputOptions) =>
  Effect.gen(function* () {
    const checkpoint = yield* openCheckpoint(folder, options)
    if (!names.includes(paramsName)) return { checkpoint }
    const file = join(folder, paramsName)
    const params = parseMistralParams(yield* readSmallFile(file, 1024 * 1024))
    if (Result.isFailure(params)) {
      return yield* refuse(
        "InvalidRequest",
        file,
        `It is not the configuration of a language model of Mistral: ${params.failure}`,
        "Correct it, or name the file of tensors itself to keep its names."
      )
    }
    const published = yield* Effect.fromResult(asPublished(checkpoint, params.success))
    return { ...published, configText: `${JSON.stringify(published.config, null, 2)}\n` }
  })

const openFolder = (folder: string, options: InputOptions): Effect.Effect<OpenInput, CheckpointError, Scope.Scope> =>
  Effect.gen(function* () {
    const names = yield* systemCall("Unreadable", folder, "list the folder", () => readdir(folder))
    const isPublished = names.includes(singleFileName) || names.includes(indexFileName)
    if (names.includes(distributedMetadataName) && names.some((name) => name.endsWith(".distcp"))) {
      if (!isPublished) return { checkpoint: yield* openDistributed(folder) }
      return yield* refuse(
        "InvalidRequest",
        folder,
        "The folder has both a distributed checkpoint and safetensors files.",
        "Name the index or the file of the one that you mean."
      )
    }
    if (isPublished) return { checkpoint: yield* openCheckpoint(folder, options) }
    if (names.includes(adapterName)) return { checkpoint: yield* openCheckpoint(join(folder, adapterName), options) }
    if (names.includes(consolidatedName) || names.includes(consolidatedIndexName)) {
      return yield* openConsolidated(folder, names, options)
    }
    if (names.some(isShardedState)) return { checkpoint: yield* openShardedState(folder) }
    if (names.some((name) => name.endsWith(".safetensors")))
      return { checkpoint: yield* openCheckpoint(folder, options) }
    const index = names.find((name) => name.endsWith(torchIndexSuffix))
    if (index !== undefined) return { checkpoint: yield* openTorchIndex(join(folder, index), options) }
    const single = torchNames.find((name) => names.includes(name))
    if (single !== undefined)
      return { checkpoint: yield* openTorchFiles(folder, [join(folder, single)], () => undefined) }
    return { checkpoint: yield* openCheckpoint(folder, options) }
  })

const onlyPart = (checkpoint: Checkpoint, part: string): Result.Result<Checkpoint, CheckpointError> => {
  const tensors = [...checkpoint.tensors].flatMap(([name, tensor]) =>
    name.startsWith(part) && name.length > part.length
      ? [[name.slice(part.length), { ...tensor, name: name.slice(part.length) }] as const]
      : []
  )
  if (tensors.length === 0) {
    const some = [...new Set([...checkpoint.tensors.keys()].map((name) => name.split(".")[0]))].slice(0, 8)
    return Result.fail(
      refuse(
        "InvalidRequest",
        checkpoint.path,
        `No tensor's name begins with "${part}".`,
        `Names begin with ${some.map((name) => `"${name}."`).join(", ")}.`
      )
    )
  }
  return Result.succeed({
    ...checkpoint,
    tensors: new Map(tensors),
    readRegion: (name, region, into) => checkpoint.readRegion(`${part}${name}`, region, into)
  })
}

/** Opens a file or a folder in any format that is read. */
export const openInput = (
  path: string,
  options: InputOptions = {}
): Effect.Effect<OpenInput, CheckpointError, Scope.Scope> =>
  Effect.gen(function* () {
    const stats = yield* systemCall("Unreadable", path, "examine the path", () => stat(path))
    const name = basename(path)
    const opened: OpenInput = stats.isDirectory()
      ? yield* openFolder(path, options)
      : name === distributedMetadataName
        ? { checkpoint: yield* openDistributed(dirname(path)) }
        : name.endsWith(torchIndexSuffix)
          ? { checkpoint: yield* openTorchIndex(path, options) }
          : isTorchFile(name)
            ? { checkpoint: yield* openTorchFiles(path, [path], () => undefined) }
            : { checkpoint: yield* openCheckpoint(path, options) }
    if (options.part === undefined) return opened
    return { ...opened, checkpoint: yield* Effect.fromResult(onlyPart(opened.checkpoint, options.part)) }
  })

/** The folder that holds the files of a model, whatever of it the user named. */
export const folderOf = (path: string): string =>
  /\.(safetensors|bin|pt|pth|json)$/.test(path) || basename(path) === distributedMetadataName ? dirname(path) : path
