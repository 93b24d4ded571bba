/**
 * Which sharding rules apply: those of a file, of a named preset, of the manifest, or of the model family that the
 * checkpoint's config.json names, in this order.
 */
import * as path from "node:path"
import { readSmallFile } from "@tensorferry/core/checkpoint/FileAccess"
import { presets, ShardingRules } from "@tensorferry/core/layout/ShardingRules"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type { Model } from "./Model.ts"
import { type ModelError, modelError } from "./ModelError.ts"

/** Aliases of YAML can make a small file enormous; rules need few. */
const maxAliasCount = 100

/** Reads rules from YAML or JSON text. */
export const readRules = (file: string): Effect.Effect<ShardingRules, ModelError> =>
  Effect.gen(function* () {
    const invalid = (detail: string) =>
      modelError("InvalidRules", {
        file,
        detail,
        remedy: 'Write rules as YAML or JSON: rules: [{match: "l1.weight", shard: 0}, {match: "*", shard: replicate}].'
      })
    const bytes = yield* Effect.mapError(readSmallFile(file), (error) => invalid(error.reason.detail))
    // Loaded only here: most commands need no YAML, and the parser takes long to load.
    const { parse: parseYaml } = yield* Effect.promise(() => import("yaml"))
    const parsed = yield* Effect.try({
      try: (): unknown => parseYaml(new TextDecoder().decode(bytes), { maxAliasCount }),
      catch: (cause) => invalid(cause instanceof Error ? cause.message : String(cause))
    })
    const decoded = Schema.decodeUnknownResult(ShardingRules, { onExcessProperty: "error" })(parsed)
    return Result.isSuccess(decoded) ? decoded.success : yield* invalid(decoded.failure.message)
  })

/** Families of config.json's `model_type` that a preset covers. */
const presetOfModelType: Readonly<Record<string, string>> = { llama: "llama", mistral: "llama" }

const ConfigJson = Schema.fromJsonString(Schema.Struct({ model_type: Schema.String }))

const detectPreset = (model: Model): Effect.Effect<ShardingRules | undefined> =>
  Effect.gen(function* () {
    const bytes = yield* Effect.result(readSmallFile(path.join(model.path, "config.json")))
    if (Result.isFailure(bytes)) return undefined
    const config = Schema.decodeResult(ConfigJson)(new TextDecoder().decode(bytes.success))
    const name = Result.isSuccess(config) ? presetOfModelType[config.success.model_type] : undefined
    return name === undefined ? undefined : presets[name]
  })

export interface RuleChoice {
  readonly rulesFile: string | undefined
  readonly preset: string | undefined
  /** Replicate what no rule matches. */
  readonly replicateRest: boolean
}

export const chooseRules = (model: Model, choice: RuleChoice): Effect.Effect<ShardingRules, ModelError> =>
  Effect.gen(function* () {
    const rules: ShardingRules =
      choice.rulesFile !== undefined
        ? yield* readRules(choice.rulesFile)
        : choice.preset !== undefined
          ? (presets[choice.preset] ??
            (yield* modelError("InvalidRules", {
              detail: `There is no preset "${choice.preset}".`,
              remedy: `Choose one of ${Object.keys(presets).join(", ")}, or pass --rules FILE.`
            })))
          : (model.sharded?.rules ?? (yield* detectPreset(model)) ?? { rules: [] })
    return choice.replicateRest ? { ...rules, default: "replicate" } : rules
  })
