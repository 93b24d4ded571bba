// SPDX-License-Identifier: Apache-2.0
/**
 * Which sharding rules apply to one side: those that a layout file states, then those of a rules file, of a named preset,
 * of the manifest, or of the model family that config.json names.
 */
import { ShardingRules } from "@tensorferry/core/layout/ShardingRules"
import { readModelConfig } from "@tensorferry/model/inputs/ConfigFile"
import type { Model } from "@tensorferry/model/Model"
import { type ModelError, modelError } from "@tensorferry/model/ModelError"
import { findPreset, type KvHeads, type ModelConfig, presetNames } from "@tensorferry/model/ModelFamilies"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { CutChoice } from "./LayoutFile.ts"
import { readYamlFile } from "./YamlFile.ts"

const example = 'Write rules as YAML or JSON: rules: [{match: "l1.weight", shard: 0}, {match: "*", shard: replicate}].'

/** Reads rules from YAML or JSON text. */
export const readRules = (file: string): Effect.Effect<ShardingRules, ModelError> =>
  readYamlFile(file, ShardingRules, (detail, remedy = example) => modelError("InvalidRules", { file, detail, remedy }))

/** The configuration beside the tensors, if there is one; a failure where it cannot be understood. */
const readConfig = (model: Model): Effect.Effect<Result.Result<ModelConfig, ModelError> | undefined> =>
  Effect.map(readModelConfig(model), (read) =>
    read === undefined
      ? undefined
      : Result.mapError(read, ({ detail, file }) =>
          modelError("InvalidRules", {
            file,
            detail: `It is not the configuration of a model: ${detail}`,
            remedy: "Correct it, or say how tensors are cut: --preset, --rules or --layout."
          })
        )
  )

export interface RuleChoice {
  readonly rulesFile: string | undefined
  /** What layout files say, the more particular first. */
  readonly cuts: ReadonlyArray<CutChoice>
  readonly preset: string | undefined
  readonly kvHeads: KvHeads | undefined
  /** Replicate what no rule matches. */
  readonly replicateRest: boolean
}

const noPreset = (name: string) =>
  modelError("InvalidRules", {
    detail: `There is no preset "${name}".`,
    remedy: `Choose one of ${presetNames.join(", ")}, or pass --rules FILE.`
  })

/** Rules from a file, a preset or the manifest; none where nothing says how tensors are cut. */
const baseRules = Effect.fnUntraced(function* (model: Model, choice: RuleChoice) {
  if (choice.rulesFile !== undefined) return yield* readRules(choice.rulesFile)
  const stated = choice.preset ?? choice.cuts.find(({ preset }) => preset !== undefined)?.preset
  if (stated === undefined && model.sharded !== undefined) return model.sharded.rules
  const config = yield* readConfig(model)
  const name = stated ?? (config === undefined ? undefined : (yield* Effect.fromResult(config)).model_type)
  const preset = name === undefined ? undefined : findPreset(name)
  if (preset === undefined) return stated === undefined ? { rules: [] } : yield* noPreset(stated)
  return preset({
    tensors: model.tensors,
    config: config === undefined ? undefined : Result.getOrUndefined(config),
    kvHeads: choice.kvHeads ?? choice.cuts.find(({ kvHeads }) => kvHeads !== undefined)?.kvHeads
  })
})

export const chooseRules = Effect.fn("chooseRules")(function* (
  model: Model,
  choice: RuleChoice
): Effect.fn.Return<ShardingRules, ModelError> {
  const base = yield* baseRules(model, choice)
  let rules: ShardingRules = choice.replicateRest ? { ...base, default: "replicate" } : base
  for (const cut of [...choice.cuts].reverse()) {
    rules = {
      ...rules,
      ...(cut.layers === undefined ? {} : { layers: cut.layers }),
      ...(cut.default === undefined ? {} : { default: cut.default }),
      ...(cut.aliases === undefined ? {} : { aliases: cut.aliases }),
      rules: [...(cut.rules ?? []), ...rules.rules]
    }
  }
  return rules
})
