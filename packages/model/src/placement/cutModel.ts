// SPDX-License-Identifier: Apache-2.0
/**
 * Lays a model out as a cutting says: what a user's rules match is cut by them, the rest as the structure of its family
 * says. A tensor that neither knows is refused.
 */
import type { Rank } from "@tensorferry/core/base/Ids"
import { findRule, type ShardingRules } from "@tensorferry/core/layout/ShardingRules"
import * as Result from "effect/Result"
import type { Cutting, FamilyChoice } from "../Cutting.ts"
import { describeModel } from "../describe/describeModel.ts"
import type { ModelStructure } from "../describe/ModelStructure.ts"
import { unknownTensors } from "../describe/unknownTensors.ts"
import { findFamily, modelTypes } from "../families/families.ts"
import { layoutError } from "../layout/LayoutError.ts"
import {
  LayoutError,
  type ModelLayout,
  type ModelTensor,
  modelLayout,
  type ParallelConfig,
  placedLayout
} from "../layout/ModelLayout.ts"
import { type PlacedTensor, placeTensors } from "../layout/TensorPlacement.ts"
import { numberFault } from "../structure/ModelNumbers.ts"
import { placeStructure, stagesByName } from "./placeStructure.ts"
import { emptyStages } from "./stages.ts"

/** A model, what is said of its cut, and for which degrees. */
export interface CutInput {
  readonly tensors: ReadonlyArray<ModelTensor>
  readonly rules: Cutting
  readonly config: ParallelConfig
  readonly firstRank?: Rank
}

/** The structure of a list of tensors, found once for all sides of a job that have it. */
const described = new WeakMap<ReadonlyArray<ModelTensor>, ReadonlyArray<readonly [string, ModelStructure]>>()

/** The structure that a choice of family finds. */
export const structureOf = (
  tensors: ReadonlyArray<ModelTensor>,
  { preset, config }: FamilyChoice
): Result.Result<ModelStructure, LayoutError> => {
  const family = findFamily(preset)
  if (family === undefined) {
    return Result.fail(
      new LayoutError({
        kind: "NoRule",
        paramNames: [],
        detail: `There is no family for model_type "${preset}".`,
        remedy: `Choose one of ${modelTypes.join(", ")}.`
      })
    )
  }
  const wrong = numberFault(config, family.fields)
  if (wrong !== undefined) {
    return Result.fail(
      new LayoutError({
        kind: "InvalidConfig",
        paramNames: [],
        detail: `The config of the model cannot be: ${wrong}.`,
        remedy: "Correct config.json: a whole number above zero and below 2^40."
      })
    )
  }
  const key = `${preset} ${JSON.stringify(config ?? null)}`
  const known = described.get(tensors) ?? []
  const found = known.find(([own]) => own === key)?.[1]
  if (found !== undefined) return Result.succeed(found)
  const structure = describeModel({ tensors, config, family, modelType: preset })
  described.set(tensors, [...known, [key, structure]])
  return Result.succeed(structure)
}

/** Names of tensors that a rule of the user matches. */
const ruledNames = (tensors: ReadonlyArray<ModelTensor>, { rules }: ShardingRules): ReadonlySet<string> => {
  const stated: ShardingRules = { rules }
  return new Set(
    rules.length === 0 ? [] : tensors.flatMap(({ name }) => (findRule(stated, name) === undefined ? [] : [name]))
  )
}

/** Stages that nobody stated all have layers. */
const checkStages = (
  { stacks }: ModelStructure,
  { pp }: ParallelConfig,
  { placement: { stages, virtual } }: FamilyChoice
): Result.Result<void, LayoutError> => {
  const layers = stacks.find(({ kind }) => kind === "language" || kind === "encoder")?.layers.length ?? 0
  const empty = stages === undefined && pp > 1 ? emptyStages(layers, pp, virtual) : undefined
  return empty === undefined
    ? Result.void
    : layoutError("InvalidConfig", [], `${empty}.`, "Choose fewer stages, or state which layers each has.")
}

const cutByFamily = (input: CutInput, choice: FamilyChoice): Result.Result<ModelLayout, LayoutError> => {
  const { tensors, rules, config } = input
  const ruled = ruledNames(tensors, rules)
  return Result.gen(function* () {
    const structure = yield* structureOf(tensors, choice)
    const unknown = structure.unknown.filter(({ tensor }) => !ruled.has(tensor))
    if (unknown.length > 0 && rules.default === undefined) return yield* Result.fail(unknownTensors(structure, unknown))
    const known: ModelStructure =
      ruled.size === 0
        ? structure
        : { ...structure, modules: structure.modules.flatMap((module) => withoutRuled(module, ruled)) }
    yield* checkStages(known, config, choice)
    const placed = yield* placeStructure(known, config, choice.placement)
    const isPlain = ruled.size === 0 && unknown.length === 0
    const others = isPlain ? [] : tensors.filter(({ name }) => !placed.has(name))
    // Tensors that the structure places are shared from where they lie.
    const isPlaced = ({ of }: { readonly of: string }): boolean => placed.has(of)
    const stated = yield* placeTensors(
      others,
      { ...rules, aliases: (rules.aliases ?? []).filter((alias) => !isPlaced(alias)) },
      config.pp
    )
    const held = new Set(rules.aliases === undefined ? [] : tensors.map(({ name }) => name))
    for (const { name, of } of (rules.aliases ?? []).filter(isPlaced)) {
      if (!held.has(name)) placed.set(name, { ...placed.get(of)!, name, stage: config.pp - 1, aliasOf: of })
    }
    const stages = isPlain ? undefined : yield* stagesByName(structure, config.pp, choice.placement)
    const byName = new Map(
      stated.map((tensor) => {
        // A rule that says nothing of a stage leaves the tensor on the structure's.
        const own = "stage" in tensor.rule ? undefined : stages?.get(tensor.name)
        return [tensor.name, own === undefined ? tensor : { ...tensor, stage: own }]
      })
    )
    const ordered = tensors.map(({ name }) => placed.get(name) ?? byName.get(name)!)
    const shared = new Map(
      [...structure.aliases, ...(rules.aliases ?? [])].flatMap(({ name }) => {
        const alias = byName.get(name) ?? placed.get(name)
        return alias?.aliasOf === undefined ? [] : [[name, alias] as const]
      })
    )
    const all: ReadonlyArray<PlacedTensor> = shared.size === 0 ? ordered : [...ordered, ...shared.values()]
    return yield* placedLayout({ ...input, placed: all })
  })
}

/** A module without the tensors that rules cut; nothing where none is left. */
const withoutRuled = (
  module: ModelStructure["modules"][number],
  ruled: ReadonlySet<string>
): ReadonlyArray<ModelStructure["modules"][number]> => {
  const kept = module.tensors.flatMap(({ name }, at) => (ruled.has(name) ? [] : [at]))
  if (kept.length === module.tensors.length) return [module]
  if (kept.length === 0) return []
  const { form } = module.kind
  const kind = { ...module.kind, form: { ...form, parts: kept.map((at) => form.parts[at]!) } }
  return [{ ...module, kind, tensors: kept.map((at) => module.tensors[at]!) }]
}

/** Lays a model out. Fails with what cannot be cut, or is not known. */
export const cutModel = (input: CutInput): Result.Result<ModelLayout, LayoutError> => {
  const { family } = input.rules
  return family === undefined ? modelLayout(input) : cutByFamily(input, family)
}
