// SPDX-License-Identifier: Apache-2.0
/** Degrees that do not fit a model: what does not divide, named as the other side names it. */

import * as Result from "effect/Result"
import type { ModelStructure, Module } from "../describe/ModelStructure.ts"
import type { LayoutError, ParallelConfig } from "../layout/ModelLayout.ts"
import { expertDegrees } from "../layout/ParallelConfig.ts"
import { moduleCuts, paddedRows } from "../placement/cuts.ts"
import { kindsOf } from "../placement/legalDegrees.ts"
import type { Placement } from "../placement/Placement.ts"
import type { Mapping } from "./Mapping.ts"
import { MappingError, mappingError } from "./MappingError.ts"
import type { MatchedMapping } from "./matchRules.ts"
import { fillName, namePattern } from "./NamePattern.ts"

const isExpert = ({ kind, expert }: Module): boolean => expert !== undefined || kind.expertDim !== undefined

/** Heads are what people choose degrees by: they come before widths. */
const order: { readonly [structure: string]: number } = { attention: 0, mixer: 1 }

/** Modules that the degrees do not divide, with what does not fit. */
const misfits = (
  structure: ModelStructure,
  config: ParallelConfig,
  placement: Placement
): ReadonlyArray<readonly [module: Module, detail: string]> => {
  const { etp } = expertDegrees(config)
  const found: Array<readonly [Module, string]> = []
  for (const module of kindsOf(structure.modules).values()) {
    const shapes = module.tensors.map(({ shape }) => shape)
    const cuts = moduleCuts(module.kind, shapes, isExpert(module) ? etp : config.tp, placement)
    if (Result.isFailure(cuts)) found.push([module, cuts.failure])
  }
  // Then as the family lists them: what leads out of the hidden state before what leads back.
  const specs = structure.family.stacks.flatMap(({ modules }) => modules)
  const placeOf = ({ kind: { spec } }: Module): number =>
    (order[spec.structure] ?? 2) * specs.length + specs.indexOf(spec)
  return found.sort(([a], [b]) => placeOf(a) - placeOf(b))
}

/** What the other side makes of a tensor; its own name where nothing is made of it. */
const madeName = (tensor: string, { made }: MatchedMapping): readonly [name: string, rule: string | undefined] => {
  for (const { sources, bindings, name, rule } of made) {
    for (const of of sources.values()) {
      for (const source of of.values()) {
        if (source.name !== tensor) continue
        return [name.includes(".local}") ? fillName(namePattern(name), bindings, bindings) : name, rule.name]
      }
    }
  }
  return [tensor, undefined]
}

/** An error of a placement as one of the mapping, where degrees do not divide what tensors have. */
export const degreeError = (
  error: LayoutError,
  { structure, placement }: { readonly structure: ModelStructure; readonly placement: Placement },
  matched: MatchedMapping,
  config: ParallelConfig
): MappingError | LayoutError => {
  const [misfit] = misfits(structure, config, placement)
  if (misfit === undefined) return error
  const [module, detail] = misfit
  const weight = module.tensors.find(({ name }) => !/[._]bias$/.test(name)) ?? module.tensors[0]!
  const [subject, rule] = madeName(weight.name, matched)
  return new MappingError({
    kind: "not_divisible",
    subject,
    ...(rule === undefined ? {} : { rule }),
    detail: `${detail}.`,
    remedy: error.remedy
  })
}

const remedyOf = (by: string, unless: keyof Placement | undefined): string =>
  unless === undefined ? `Choose another ${by}.` : `Choose another ${by}, or state ${unless} in the placement.`

/** Limits of the other side that no cut of a tensor says. */
export const checkLimits = (
  { limits = [] }: Mapping,
  config: ParallelConfig,
  placement: Placement
): Result.Result<void, MappingError> => {
  const { ep, etp } = expertDegrees(config)
  const degrees = { tp: config.tp, pp: config.pp, ep, etp }
  for (const { subject, what, count: stated, by, rule, unless, isPadded, kind = "not_divisible" } of limits) {
    const degree = degrees[by]
    const count = isPadded === true ? paddedRows(stated, degree, placement) : stated
    if (unless !== undefined && placement[unless] !== undefined) continue
    const fits =
      rule === "at most" ? degree <= count : count % degree === 0 || (rule === "divides or one" && count === 1)
    if (fits) continue
    const detail =
      rule === "at most"
        ? `${by}=${degree} is more than ${count}, its number of ${what}.`
        : `${by}=${degree} does not divide ${count}, its number of ${what}.`
    return mappingError(kind, subject, undefined, detail, remedyOf(by, unless))
  }
  return Result.succeed(undefined)
}
