// SPDX-License-Identifier: Apache-2.0
/**
 * A model on disk under the names of another system, read as the checkpoint: rank files as `RankWriter` and vLLM's
 * `sharded_state` write them, or whole tensors as Megatron-Core's distributed checkpoints hold. What the checkpoint's tensors
 * are called, a checkpoint of the same model says.
 */
import { readdir } from "node:fs/promises"
import * as path from "node:path"
import { equalShapes, formatShape } from "@tensorferry/core/base/Region"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { FamilyChoice } from "../../Cutting.ts"
import type { CheckpointError } from "../../checkpoint/CheckpointError.ts"
import { systemCall } from "../../checkpoint/FileAccess.ts"
import type { SeenFiles } from "../../checkpoint/FileCache.ts"
import type { ModelStructure } from "../../describe/ModelStructure.ts"
import type { InputOptions } from "../../inputs/openInput.ts"
import { type LayoutError, type ModelTensor, type ParallelConfig, worldSizeOf } from "../../layout/ModelLayout.ts"
import type { Model } from "../../Model.ts"
import { type ModelError, modelError } from "../../ModelError.ts"
import { openModel } from "../../openModel.ts"
import { structureOf } from "../../placement/cutModel.ts"
import type { Placement } from "../../placement/Placement.ts"
import { assembledModel } from "../AssembledModel.ts"
import { equalTensors } from "../equalTensors.ts"
import { isMegatronTensor, megatronTemplate } from "../inventory/megatronTemplate.ts"
import { type HeldTensor, parseShardName, type ReturnedTensor, shardName, shardsOf, wayBackOf } from "../inverse.ts"
import { type MappingError, mappingError } from "../MappingError.ts"
import { type MappedModel, mapModel } from "../mapModel.ts"
import type { StoredNames } from "../NamedSide.ts"
import { sideOf } from "../namedLayouts.ts"
import { readNamesFile } from "./NamesFile.ts"

const rankFile = /^model-rank-(\d{1,5})-part-(\d{1,5})\.safetensors$/

/** Files by rank, in the order of their parts; none where the folder has no such files. */
const rankFiles = Effect.fnUntraced(function* (folder: string) {
  const entries = yield* systemCall("Unreadable", folder, "list the folder", () => readdir(folder)).pipe(
    Effect.orElseSucceed((): ReadonlyArray<string> => [])
  )
  const found = new Map<number, Array<string>>()
  for (const name of [...entries].sort()) {
    const match = rankFile.exec(name)
    if (match === null) continue
    const rank = Number(match[1])
    found.set(rank, [...(found.get(rank) ?? []), path.join(folder, name)])
  }
  return found
})

/** How many ranks have files in a folder. */
export const rankCount = (folder: string): Effect.Effect<number> => Effect.map(rankFiles(folder), ({ size }) => size)

/** All ranks' files as one model, whose names say the rank. */
const joinedRanks = Effect.fnUntraced(function* (folder: string, files: ReadonlyMap<number, ReadonlyArray<string>>) {
  const owners = new Map<string, Model>()
  const models: Array<Model> = []
  for (const [rank, parts] of files) {
    for (const part of parts) {
      const model = yield* openModel(part)
      models.push(model)
      for (const { name } of model.tensors) owners.set(shardName(rank, name), model)
    }
  }
  const first = models[0]!
  return {
    ...first,
    path: folder,
    tensors: [...owners].map(([name, model]) => ({
      ...model.tensors.find((tensor) => tensor.name === parseShardName(name).name)!,
      name
    })),
    files: () => new Map(models.flatMap((model) => [...model.files()])),
    readRegion: (name, region, into) =>
      Effect.suspend(() => owners.get(name)!.readRegion(parseShardName(name).name, region, into))
  } satisfies Model
})

/** What each rank must have, by the names under which the files have it. */
const expectedOf = (mapped: MappedModel, isByRank: boolean): Effect.Effect<ReadonlyArray<HeldTensor>, MappingError> =>
  Effect.map(Effect.fromResult(shardsOf(mapped)), (shards) =>
    isByRank ? shards : shards.map((shard) => ({ ...shard, name: parseShardName(shard.name).name }))
  )

const megatronEmbedding = "embedding.word_embeddings.weight"

/** How far Megatron-Core padded the vocabulary, which is its user's choice: by the rows that a rank has. */
const paddingOf = (
  stored: ReadonlyArray<ModelTensor>,
  { numbers: { vocabulary } }: ModelStructure,
  { tp }: ParallelConfig,
  isByRank: boolean
): Placement => {
  const name = isByRank ? shardName(0, megatronEmbedding) : megatronEmbedding
  const rows = stored.find((tensor) => tensor.name === name)?.shape[0]
  return rows !== undefined && vocabulary !== undefined && rows * tp > vocabulary
    ? { vocabulary: { multipleOf: rows, of: "share" } }
    : {}
}

/** Heads that the checkpoint stores beside the embedding that they are tied to: systems hold one of the two. */
const storedHeads = (structure: ModelStructure, made: ReadonlyArray<ReturnedTensor>): ReadonlyArray<ReturnedTensor> =>
  equalTensors(structure).flatMap(({ name, of }) =>
    made.some((tensor) => tensor.name === name)
      ? []
      : made.filter((tensor) => tensor.name === of).map((tensor) => ({ ...tensor, name }))
  )

/** What a folder says of the model beside its tensors. */
const fromFolder = (target: string, tensors: ReadonlyArray<ModelTensor>, { config }: FamilyChoice) => ({
  path: target,
  tensors,
  config,
  metadata: new Map<string, string>(),
  files: () => new Map() as SeenFiles
})

/** Names and shapes of the checkpoint: of another one, as a note says, or as follows from a config and what is held. */
const templateOf = Effect.fnUntraced(function* (
  target: string,
  stored: Model,
  { like, convention, family }: StoredNames
) {
  if (like !== undefined) return yield* openModel(like)
  const noted = yield* readNamesFile(target)
  if (noted !== undefined) return fromFolder(target, noted.tensors, noted.family)
  const made = convention.startsWith("megatron") ? megatronTemplate(stored.tensors, family) : undefined
  return made === undefined ? yield* unknownNames(target, convention) : fromFolder(target, made, family)
})

/** A tensor of the model that nothing is made of. */
const unusedOf = (stored: ReadonlyArray<ModelTensor>, expected: ReadonlyArray<HeldTensor>): string | undefined => {
  const used = new Set(expected.map(({ name }) => name))
  return stored.find(({ name }) => isMegatronTensor(name) && !used.has(name))?.name
}

/** Nothing says what the model's own names are. */
export const unknownNames = (file: string, convention: string): ModelError =>
  modelError("InvalidUsage", {
    file,
    detail: `Its tensors have the names of ${convention}, and nothing says what the model's own are.`,
    remedy: "Pass --like with a checkpoint of the same model under its own names, or synthetic:SHAPES.json.gz."
  })

/** Opens a model under the names of a convention as the checkpoint that it is. */
export const openNamed = Effect.fn("openNamed")(function* (
  target: string,
  names: StoredNames,
  options: InputOptions = {}
): Effect.fn.Return<Model, CheckpointError | ModelError | MappingError | LayoutError, Scope.Scope> {
  const { convention, config, mapping, like, family } = names
  const files = yield* rankFiles(target)
  const isByRank = files.size > 0
  const size = worldSizeOf(config)
  if (isByRank ? files.size !== size : size !== 1) {
    return yield* modelError("InvalidUsage", {
      file: target,
      detail: isByRank
        ? `It holds files of ${files.size} ranks, ${size} are stated.`
        : `It holds no files of ranks, and ${size} ranks are stated.`,
      remedy: "State the degrees by which the files were written (--from), as in --from vllm:tp=4."
    })
  }
  const stored = isByRank ? yield* joinedRanks(target, files) : yield* openModel(target, options)
  const template = yield* templateOf(target, stored, names)
  const structure = yield* Effect.fromResult(structureOf(template.tensors, family))
  const stated = { convention, config, ...(mapping === undefined ? {} : { mapping }) }
  const placement = { ...paddingOf(stored.tensors, structure, config, isByRank), ...family.placement }
  const side = yield* Effect.fromResult(sideOf(stated, structure, { ...family, placement }, 0))
  const mapped = yield* Effect.fromResult(mapModel({ ...side, tensors: template.tensors }))
  const expected = yield* expectedOf(mapped, isByRank)
  // A template that was made of the files themselves leaves nothing of them out.
  const left = like === undefined && !isByRank ? unusedOf(stored.tensors, expected) : undefined
  if (left !== undefined)
    return yield* Effect.fromResult(
      mappingError(
        "unmapped_source",
        left,
        undefined,
        "No rule reads it.",
        "Pass --like with a checkpoint of the model."
      )
    )
  const found = new Map(stored.tensors.map((tensor) => [tensor.name, tensor]))
  for (const { name, shape } of expected) {
    const own = found.get(name)
    const fault =
      own === undefined
        ? "The files have no such tensor."
        : equalShapes(own.shape, shape)
          ? undefined
          : `It is ${formatShape(own.shape)} in the files, ${convention} has ${formatShape(shape)} here.`
    if (fault !== undefined)
      return yield* mappingErrorOf(own === undefined ? "missing_source" : "shape_mismatch", name, fault)
  }
  const made = yield* Effect.fromResult(wayBackOf(mapped, expected, template.tensors))
  const model = assembledModel(stored, [...made, ...storedHeads(structure, made)])
  return {
    ...model,
    config: template.config ?? family.config,
    ...("configText" in template && template.configText !== undefined ? { configText: template.configText } : {}),
    like: template.path,
    metadata: template.metadata,
    files: () => new Map([...stored.files(), ...template.files()])
  }
})

const mappingErrorOf = (kind: "missing_source" | "shape_mismatch", name: string, detail: string) =>
  Effect.fromResult(
    mappingError(kind, name, undefined, detail, "Check the degrees, and that --like names the same model.")
  )
