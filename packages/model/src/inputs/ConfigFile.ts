// SPDX-License-Identifier: Apache-2.0
/** The config.json beside a model's tensors, wherever the user's path leads to. */
import { join } from "node:path"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { readSmallFile } from "../checkpoint/FileAccess.ts"
import type { Model } from "../Model.ts"
import { type ModelConfig, parseModelConfig } from "../structure/ModelConfig.ts"
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

type JsonRecord = Readonly<Record<string, unknown>>

const recordOf = (value: unknown): JsonRecord | undefined =>
  typeof value === "object" && value !== null && !Array.isArray(value) ? (value as JsonRecord) : undefined

/** Rows and columns, as configs state the size of a block. */
const pairOf = (value: unknown): readonly [number, number] | undefined => {
  if (!Array.isArray(value) || value.length !== 2) return undefined
  const [rows, columns] = value.map((size) => (Number.isSafeInteger(size) && size > 0 ? (size as number) : undefined))
  return rows === undefined || columns === undefined ? undefined : [rows, columns]
}

/** What the text of a config.json says about quantization; nothing where it says nothing, or is no JSON. */
export const parseQuantizationHint = (bytes: Uint8Array): QuantizationHint => {
  const config = recordOf(parsePythonJson(new TextDecoder().decode(bytes)))
  const stated =
    recordOf(config?.quantization_config) ??
    recordOf(recordOf(config?.text_config)?.quantization_config) ??
    recordOf(config?.compression_config)
  if (stated === undefined) return {}
  const groups = recordOf(stated.config_groups) ?? {}
  const weights = recordOf(recordOf(Object.values(groups)[0])?.weights)
  const method = stated.quant_method ?? stated.quant_algo
  const block = pairOf(stated.weight_block_size) ?? pairOf(weights?.block_structure)
  return {
    ...(typeof method === "string" ? { method } : {}),
    ...(block === undefined ? {} : { block })
  }
}

/** What the configuration beside a model says about quantization. */
export const readQuantizationHint = (model: Pick<Model, "path">): Effect.Effect<QuantizationHint> =>
  Effect.map(Effect.result(readSmallFile(join(folderOf(model.path), "config.json"), mostConfigBytes)), (bytes) =>
    Result.isSuccess(bytes) ? parseQuantizationHint(bytes.success) : {}
  )
