// SPDX-License-Identifier: Apache-2.0
/** What an adapter holds besides its factors: tensors in full, biases that are added, and rows of an embedding. */
import { equalShapes } from "@tensorferry/core/base/Region"
import * as Result from "effect/Result"
import { type MappingError, mappingError } from "../MappingError.ts"
import type { AddedBias, LowRank, NamedShape, TrainedRows, WholeTensor } from "./Adapter.ts"
import type { AdapterConfig } from "./AdapterConfig.ts"
import { wholeName } from "./AdapterNames.ts"
import type { BaseModules } from "./adapterTargets.ts"
import { type AdapterParts, neededPart, shapeFault } from "./lowRank.ts"

type Outcome<A> = Result.Result<A, MappingError>

/** The tensors of an adapter by what they are, those in full too. */
export interface AllParts extends AdapterParts {
  /** A tensor in full, under its plain name. */
  readonly whole: (tensor: string) => NamedShape | undefined
  /** A tensor in full, under the name of a wrapped module. */
  readonly wrapped: (tensor: string) => NamedShape | undefined
  readonly wholes: ReadonlyArray<string>
  /** Modules with rows of their own. */
  readonly rowModules: ReadonlyArray<string>
}

const replaced = (tensor: string, found: NamedShape, base: BaseModules, parts: AllParts): Outcome<WholeTensor> => {
  const shape = base.tensors.get(tensor)
  parts.take(found)
  if (shape !== undefined && !equalShapes(shape, found.shape))
    return shapeFault(found, shape, "it replaces a tensor of the base.")
  return Result.succeed({ _tag: "Whole", target: tensor, tensor: found.name, isNew: shape === undefined })
}

const missing = (name: string, detail: string) =>
  mappingError("missing_source", name, undefined, detail, "Complete the adapter's file, or correct its config.")

/** Modules that the adapter holds in full: those whose path ends as the config says, dot or not. */
export const savedTensors = (
  config: AdapterConfig,
  base: BaseModules,
  parts: AllParts
): Outcome<ReadonlyArray<WholeTensor>> =>
  Result.gen(function* () {
    const found = new Map<string, WholeTensor>()
    const tied = new Set([...base.tied.values()].flat())
    for (const end of config.saved) {
      const named = [...base.paths].filter((path) => path.endsWith(end))
      const modules = named.flatMap((path) => [path, ...(config.ensureTying ? (base.tied.get(path) ?? []) : [])])
      // A head that the base does not have comes with the adapter.
      const brought = parts.wholes.filter(
        (name) => !base.tensors.has(name) && name.slice(0, name.lastIndexOf(".")).endsWith(end)
      )
      if (modules.length === 0 && brought.length === 0 && !config.isClassifier)
        return yield* mappingError(
          "no_target",
          end,
          undefined,
          "The config has it in full, and the base has no module whose path ends so.",
          "Check that the adapter is for this model, or correct its config."
        )
      const names = [...base.tensors.keys()].filter((name) => modules.some((path) => name.startsWith(`${path}.`)))
      for (const name of [...names, ...(modules.length === 0 ? brought : [])]) {
        if (found.has(name)) continue
        const own = parts.whole(name)
        const isTied = config.ensureTying && tied.has(name.slice(0, name.lastIndexOf(".")))
        if (own === undefined && isTied) continue
        if (own === undefined) return yield* missing(wholeName(name, false), `modules_to_save says "${end}".`)
        found.set(name, yield* replaced(name, own, base, parts))
      }
    }
    return [...found.values()]
  })

/** Biases of the base that were trained too, unless they lie in modules that are here in full anyway. */
export const trainedBiases = (
  config: AdapterConfig,
  base: BaseModules,
  adapted: ReadonlySet<string>,
  saved: ReadonlySet<string>,
  parts: AllParts
): Outcome<ReadonlyArray<WholeTensor>> =>
  Result.gen(function* () {
    const found: Array<WholeTensor> = []
    if (config.bias === "none") return found
    for (const name of base.tensors.keys()) {
      if (!name.endsWith(".bias") || saved.has(name)) continue
      const isAdapted = adapted.has(name.slice(0, -".bias".length))
      if (config.bias === "lora_only" && !isAdapted) continue
      const own = isAdapted ? (parts.wrapped(name) ?? parts.whole(name)) : parts.whole(name)
      if (own === undefined) return yield* missing(wholeName(name, isAdapted), `The config's bias is "${config.bias}".`)
      found.push(yield* replaced(name, own, base, parts))
    }
    return found
  })

/** Biases of the second factors, which are added to those of the base. */
export const addedBiases = (
  config: AdapterConfig,
  base: BaseModules,
  changes: ReadonlyArray<LowRank>,
  parts: AdapterParts
): Outcome<ReadonlyArray<AddedBias>> =>
  Result.gen(function* () {
    const found: Array<AddedBias> = []
    if (!config.lowRankBias) return found
    for (const { kind, module, scale } of changes) {
      if (kind !== "linear") continue
      const own = yield* neededPart(parts, module, "lora_B.bias")
      const target = `${module}.bias`
      const shape = base.tensors.get(target)
      if (shape === undefined)
        return yield* mappingError(
          "no_target",
          own.name,
          undefined,
          "The module of the base has no bias to which it could be added.",
          "Give the base a bias of zeros, or leave the adapter apart."
        )
      if (!equalShapes(shape, own.shape)) return yield* shapeFault(own, shape, "it is added to a bias.")
      found.push({ _tag: "Added", target, tensor: own.name, scale })
    }
    return found
  })

const embeddingNames = /(^|\.)(embed_tokens|wte|word_embeddings|embed_in|tok_embeddings)$/

/** The input embedding: the only module with rows in the adapter, or the only one with a usual name. */
const inputEmbedding = (base: BaseModules, parts: AllParts): ReadonlyArray<string> => {
  const usual = [...base.paths].filter((path) => embeddingNames.test(path) && base.tensors.has(`${path}.weight`))
  const spoken = parts.rowModules.filter((path) => base.paths.has(path))
  return spoken.length === 1 ? spoken : usual.length === 1 ? usual : []
}

/** Embeddings by the ends of their paths; the unnamed one is the input's. */
const rowTargets = (config: AdapterConfig, base: BaseModules, parts: AllParts, end: string): ReadonlyArray<string> => {
  if (end === "") return inputEmbedding(base, parts)
  const found = [...base.paths].filter((path) => path.endsWith(end) && base.tensors.has(`${path}.weight`))
  const sources = new Map([...base.tied].flatMap(([path, others]) => others.map((other) => [other, path] as const)))
  // Where another embedding of the same storage has the same rows, one of them is written.
  return found.filter((path) => {
    const source = sources.get(path)
    if (source === undefined || parts.rowModules.includes(path)) return true
    return ![...config.tokens].some(
      ([other, rows]) => source.endsWith(other) && rows.join() === config.tokens.get(end)!.join()
    )
  })
}

/** Rows of embeddings. */
export const trainedRows = (
  config: AdapterConfig,
  base: BaseModules,
  parts: AllParts
): Outcome<ReadonlyArray<TrainedRows>> =>
  Result.gen(function* () {
    const found: Array<TrainedRows> = []
    for (const [end, rows] of config.tokens) {
      const isThere = end === "" || [...base.paths].some((path) => path.endsWith(end))
      if (!isThere)
        return yield* mappingError(
          "no_target",
          end,
          undefined,
          "Rows of it are trained, and the base has no module whose path ends so.",
          "Check that the adapter is for this model, or correct its config."
        )
      const modules = rowTargets(config, base, parts, end)
      if (end === "" && modules.length === 0)
        return yield* missing("trainable_tokens_delta", "The config trains rows of the input embedding.")
      for (const module of modules) {
        const own = yield* neededPart(parts, module, "token_adapter.trainable_tokens_delta")
        const target = `${module}.weight`
        const shape = base.tensors.get(target)
        if (shape === undefined || shape.length !== 2)
          return yield* mappingError("unsupported", module, undefined, "It is no embedding.", "Correct the config.")
        const wanted = [rows.length, shape[1]!]
        if (!equalShapes(wanted, own.shape)) return yield* shapeFault(own, wanted, `rows of ${target}.`)
        const outside = rows.find((row) => row >= shape[0]!)
        if (outside !== undefined)
          return yield* mappingError(
            "out_of_bounds",
            target,
            undefined,
            `Row ${outside} is trained, and it has ${shape[0]}.`,
            "Check that the adapter is for this model."
          )
        found.push({ _tag: "Rows", target, tensor: own.name, rows })
      }
    }
    return found
  })
