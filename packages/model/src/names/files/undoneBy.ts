// SPDX-License-Identifier: Apache-2.0
/**
 * What a mapping does not do, though it may: rules that are for no tensor, and elements that rules leave behind. A rule that
 * takes one of several packed parts takes the tensor; the others are in nothing where no rule takes them.
 */
import { elementCount } from "@tensorferry/core/base/Region"
import * as Result from "effect/Result"
import type { ModelStructure } from "../../describe/ModelStructure.ts"
import type { ModelTensor } from "../../layout/ModelLayout.ts"
import { placeOf } from "../../layout/ParallelConfig.ts"
import { type AssemblySite, assembleWhole } from "../assemble.ts"
import type { Mapping, Recipe } from "../Mapping.ts"
import { idleRules, innerOf, type MadeTensor, matchRules } from "../matchRules.ts"
import type { Strip } from "../Strips.ts"

/** Whether a recipe takes parts of what it is made of. */
const takesParts = (recipe: Recipe): boolean => {
  if (typeof recipe === "string") return false
  if ("part" in recipe) return true
  if ("concat" in recipe) return recipe.concat.some(takesParts)
  if ("interleave" in recipe) return recipe.interleave.some(takesParts)
  if ("either" in recipe) return recipe.either.some(takesParts)
  return takesParts("stack" in recipe ? recipe.stack : innerOf(recipe))
}

const sourcesOf = ({ sources }: MadeTensor): ReadonlyArray<ModelTensor> =>
  [...sources.values()].flatMap((of) => [...of.values()])

/** The same elements of a source have the same key; those that are taken twice count once. */
const keyOf = ({ offset, loops }: Strip): string =>
  `${offset} ${JSON.stringify(loops.map(({ count, source }) => [count, source]))}`

const sizeOf = ({ loops }: Strip): number => loops.reduce((product, { count }) => product * count, 1)

const leftBehind = (made: ReadonlyArray<MadeTensor>, { numbers }: ModelStructure): ReadonlyArray<string> => {
  const parted = new Map(
    made.flatMap((one) =>
      takesParts(one.rule.from)
        ? sourcesOf(one).map((tensor) => [tensor.name, { tensor, rule: one.rule.name }] as const)
        : []
    )
  )
  if (parted.size === 0) return []
  const config = { tp: 1, pp: 1, dp: 1 }
  const site: AssemblySite = { place: placeOf(config, 0, 0), config, numbers, placed: new Map() }
  const used = new Map<string, Map<string, number>>()
  for (const one of made) {
    if (!sourcesOf(one).some(({ name }) => parted.has(name))) continue
    const whole = assembleWhole(one, site)
    // What cannot be assembled is said where ranks assemble it.
    if (Result.isFailure(whole)) return []
    for (const strip of whole.success?.strips ?? []) {
      if (strip.source === undefined || !parted.has(strip.source)) continue
      const own = used.get(strip.source) ?? new Map<string, number>()
      used.set(strip.source, own.set(keyOf(strip), sizeOf(strip)))
    }
  }
  const found = new Map<string, string>()
  for (const [name, { tensor, rule }] of parted) {
    const all = elementCount(tensor.shape)
    const count = [...(used.get(name)?.values() ?? [])].reduce((sum, one) => sum + one, 0)
    if (count < all && !found.has(rule))
      found.set(rule, `rule ${rule} leaves ${all - count} of the ${all} elements of ${name} in nothing that is made`)
  }
  return [...found.values()]
}

/** What a mapping leaves undone of a model, a line for each rule; nothing where it cannot be carried out at all. */
export const undoneBy = (mapping: Mapping, structure: ModelStructure): ReadonlyArray<string> => {
  const tensors = structure.modules.flatMap((module) => module.tensors)
  const names = [...tensors.map(({ name }) => name), ...structure.unknown.map(({ tensor }) => tensor)]
  const matched = matchRules({ ...mapping, others: "keep" }, tensors)
  return [
    ...idleRules(mapping, names).map((rule) => `rule ${rule} is for no tensor of the model`),
    ...(Result.isFailure(matched) ? [] : leftBehind(matched.success.made, structure))
  ]
}
