// SPDX-License-Identifier: Apache-2.0
/** The config.json beside a model's tensors, wherever the user's path leads to. */
import { join } from "node:path"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { CheckpointError } from "../checkpoint/CheckpointError.ts"
import { readSmallFile } from "../checkpoint/FileAccess.ts"
import { quantizationOf } from "../forms/QuantizationConfig.ts"
import type { Model } from "../Model.ts"
import type { ModelError } from "../ModelError.ts"
import { type ConfigObject, type ModelConfig, parseModelConfig } from "../structure/ModelConfig.ts"
import { readRowLengths } from "../values/rowLengths.ts"
import type { QuantizationHint } from "../values/ValueForm.ts"
import { folderOf } from "./openInput.ts"
import { parsePythonJson } from "./PythonJson.ts"

/** Longest config.json; the largest published one has 200 KB. */
const mostConfigBytes = 16 * 1024 * 1024

/** The configuration that comes with a model; undefined where there is none, and what is wrong with one that is not read. */
export const readModelConfig = (
  model: Pick<Model, "config" | "path">
): Effect.Effect<Result.Result<ModelConfig, { readonly file: string; readonly detail: string }> | undefined> =>
  Effect.gen(function* () {
    if (model.config !== undefined) return Result.succeed(model.config)
    const file = join(folderOf(model.path), "config.json")
    const bytes = yield* Effect.result(readSmallFile(file, mostConfigBytes))
    if (Result.isFailure(bytes)) return undefined
    return Result.mapError(parseModelConfig(new TextDecoder().decode(bytes.success)), (detail) => ({ file, detail }))
  })

/** What a configuration says about quantization; nothing where it says nothing. */
export const quantizationHint = (config: ConfigObject | undefined): QuantizationHint => {
  const stated = quantizationOf(config)
  if (stated === undefined) return {}
  const { bits, block, format, group, isReordered, method } = stated
  return {
    ...(method === "unnamed" ? {} : { method }),
    ...(format === undefined ? {} : { format }),
    ...(bits === undefined ? {} : { bits }),
    ...(group === undefined ? {} : { group }),
    ...(block === undefined ? {} : { block }),
    isReordered
  }
}

/** A config.json beside a model, whatever else it says; undefined where there is none, or it is no object of JSON. */
const readObject = (model: Pick<Model, "path">): Effect.Effect<ConfigObject | undefined> =>
  Effect.map(Effect.result(readSmallFile(join(folderOf(model.path), "config.json"), mostConfigBytes)), (bytes) => {
    const value = Result.isSuccess(bytes) ? parsePythonJson(new TextDecoder().decode(bytes.success)) : undefined
    return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as ConfigObject) : undefined
  })

/** What a model says about its quantization: by the configuration that comes with it, and by what weights state of themselves. */
export const readQuantizationHint = (
  model: Pick<Model, "config" | "path" | "readRegion" | "sharded" | "tensors">
): Effect.Effect<QuantizationHint, CheckpointError | ModelError> =>
  Effect.gen(function* () {
    const config = model.config ?? (yield* readObject(model)) ?? model.sharded?.rules.family?.config
    const lengths = yield* readRowLengths(model)
    return { ...quantizationHint(config), ...(lengths.size === 0 ? {} : { lengths }) }
  })
