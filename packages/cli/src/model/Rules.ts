// SPDX-License-Identifier: Apache-2.0
/**
 * What says how one side is cut: rules that a layout file states, and behind them a rules file, a named family, the
 * manifest, or the family that config.json names.
 */
import { ShardingRules } from "@tensorferry/core/layout/ShardingRules"
import type { Cutting } from "@tensorferry/model/Cutting"
import { unknownModel } from "@tensorferry/model/describe/unknownTensors"
import { findFamily, modelTypes } from "@tensorferry/model/families/families"
import { readModelConfig } from "@tensorferry/model/inputs/ConfigFile"
import type { Model } from "@tensorferry/model/Model"
import { type ModelError, modelError } from "@tensorferry/model/ModelError"
import { mergePlacements, type Placement } from "@tensorferry/model/placement/Placement"
import type { ModelConfig } from "@tensorferry/model/structure/ModelConfig"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type { CutChoice } from "./LayoutFile.ts"
import { readYamlFile } from "./YamlFile.ts"

const example = 'Write rules as YAML or JSON: rules: [{match: "l1.weight", shard: 0}, {match: "*", shard: replicate}].'

/** Reads rules from YAML or JSON text. */
export const readRules = (file: string): Effect.Effect<ShardingRules, ModelError> =>
  readYamlFile(file, ShardingRules, (detail, remedy = example) => modelError("InvalidRules", { file, detail, remedy }))

/** The configuration beside the tensors, if there is one; a failure where it cannot be understood. */
export const readConfig = (model: Model): Effect.Effect<Result.Result<ModelConfig, ModelError> | undefined> =>
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
  readonly placement: Placement
  /** Replicate what no rule matches. */
  readonly replicateRest: boolean
}

const noPreset = (name: string) =>
  modelError("InvalidRules", {
    detail: `There is no preset "${name}".`,
    remedy: `Choose one of ${modelTypes.join(", ")}, or pass --rules FILE.`
  })

/** What is stated of places, by the command line or by layout files. */
const placementOf = ({ placement, cuts }: RuleChoice): Placement =>
  mergePlacements([
    placement,
    ...cuts.map(({ stages, virtual, experts, kvHeads, vocabulary }) => ({
      ...(stages === undefined ? {} : { stages }),
      ...(virtual === undefined ? {} : { virtual }),
      ...(experts === undefined ? {} : { experts }),
      ...(kvHeads === undefined ? {} : { kvHeads }),
      ...(vocabulary === undefined ? {} : { vocabulary })
    }))
  ])

/** The family of a manifest, with the places that are stated now: those that the shards have are the other side's. */
const fromManifest = (cutting: Cutting, placement: Placement): Cutting =>
  cutting.family === undefined
    ? cutting
    : {
        ...cutting,
        family: { ...cutting.family, placement }
      }

/** A cutting from a file, a family or the manifest. */
const baseCutting = Effect.fnUntraced(function* (model: Model, choice: RuleChoice) {
  if (choice.rulesFile !== undefined) return yield* readRules(choice.rulesFile)
  const placement = placementOf(choice)
  const stated = choice.preset ?? choice.cuts.find(({ preset }) => preset !== undefined)?.preset
  if (stated === undefined && model.sharded !== undefined) return fromManifest(model.sharded.rules, placement)
  const read = yield* readConfig(model)
  const ownConfig = read === undefined ? model.sharded?.rules.family?.config : Result.getOrUndefined(read)
  const config = read !== undefined && stated === undefined ? yield* Effect.fromResult(read) : ownConfig
  const preset = stated ?? (config?.model_type as string | undefined)
  if (stated !== undefined && findFamily(stated) === undefined) return yield* noPreset(stated)
  if (preset !== undefined && findFamily(preset) !== undefined) {
    return { rules: [], family: { preset, placement, ...(config === undefined ? {} : { config }) } }
  }
  const hasRules =
    choice.replicateRest || choice.cuts.some((cut) => cut.rules !== undefined || cut.default !== undefined)
  return hasRules ? { rules: [] } : yield* unknownModel(model.tensors, config)
})

/** What says how one side of a job is cut. */
export const chooseRules = Effect.fn("chooseRules")(function* (model: Model, choice: RuleChoice) {
  const base: Cutting = yield* baseCutting(model, choice)
  let rules: Cutting = choice.replicateRest ? { ...base, default: "replicate" } : base
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
