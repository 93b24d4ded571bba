// SPDX-License-Identifier: Apache-2.0
/** The config.json beside a model's tensors, wherever the user's path leads to. */
import { join } from "node:path"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { readSmallFile } from "../checkpoint/FileAccess.ts"
import type { Model } from "../Model.ts"
import { ModelConfig } from "../ModelFamilies.ts"
import { folderOf } from "./openInput.ts"

/** Longest config.json; the largest published one has 200 KB. */
const mostConfigBytes = 16 * 1024 * 1024

const ConfigJson = Schema.fromJsonString(ModelConfig)

/** The bytes of a config.json as its fields, or what is wrong with them. */
export const parseModelConfig = (bytes: Uint8Array): Result.Result<ModelConfig, string> =>
  Result.mapError(Schema.decodeResult(ConfigJson)(new TextDecoder().decode(bytes)), ({ message }) => message)

/** The configuration that comes with a model; undefined where there is none, and what is wrong with one that is not read. */
export const readModelConfig = (
  model: Pick<Model, "config" | "path">
): Effect.Effect<Result.Result<ModelConfig, { readonly file: string; readonly detail: string }> | undefined> =>
  Effect.gen(function* () {
    if (model.config !== undefined) return Result.succeed(model.config)
    const file = join(folderOf(model.path), "config.json")
    const bytes = yield* Effect.result(readSmallFile(file, mostConfigBytes))
    if (Result.isFailure(bytes)) return undefined
    return Result.mapError(parseModelConfig(bytes.success), (detail) => ({ file, detail }))
  })
