// SPDX-License-Identifier: Apache-2.0
/** What one rank holds of the tensors that a mapping makes: parts are cut as the model's structure says, then joined. */
import { chunkInterval, formatShape, type Interval, lengthOf, type Shape } from "@tensorferry/core/base/Region"
import * as Result from "effect/Result"
import type { ModelTensor, ParallelConfig } from "../layout/ModelLayout.ts"
import { expertDegrees, type RankPlace } from "../layout/ParallelConfig.ts"
import { cutDimension } from "../layout/TensorCut.ts"
import type { PlacedTensor } from "../layout/TensorPlacement.ts"
import type { ModelNumbers } from "../structure/ModelNumbers.ts"
import type { Count, Recipe } from "./Mapping.ts"
import { type MappingError, mappingError } from "./MappingError.ts"
import { innerOf, type MadeTensor } from "./matchRules.ts"
import {
  type Assembly,
  boxStrip,
  concat,
  expand,
  interleave,
  merge,
  pad,
  type Scalar,
  type Strip,
  scalarAfter,
  split,
  squeeze,
  take,
  through,
  transpose,
  wholeAssembly,
  zeros
} from "./Strips.ts"

/** Where a rank stands, and where the tensors of the model lie around it. */
export interface AssemblySite {
  readonly place: RankPlace
  readonly config: ParallelConfig
  readonly numbers: ModelNumbers
  readonly placed: ReadonlyMap<string, PlacedTensor>
  /** What scales of blocks are of; undefined for other tensors. */
  readonly blocksOf?: (tensor: string) => BlockRows | undefined
}

/** A weight, and how many of its rows one scale is of. */
export interface BlockRows {
  readonly weight: ModelTensor
  readonly rows: number
}

type Made = Result.Result<Assembly | undefined, MappingError>

/** Experts of a tensor that the rank holds, in its order; undefined for tensors without experts. */
export const heldExperts = (
  { experts }: PlacedTensor,
  { config, place }: AssemblySite
): ReadonlyArray<Interval> | undefined =>
  experts === undefined
    ? undefined
    : (experts.held?.[place.expertEp] ?? [chunkInterval(experts.count, expertDegrees(config).ep, place.expertEp)])

const isHeld = (number: number, runs: ReadonlyArray<Interval>): boolean =>
  runs.some(([from, to]) => number >= from && number < to)

/** Whether the rank's stage holds a tensor, and its expert. */
export const holdsTensor = (tensor: PlacedTensor, site: AssemblySite, anyStage: boolean): boolean => {
  if (!anyStage && tensor.stage !== site.place.stage) return false
  return tensor.experts?._tag !== "Named" || isHeld(tensor.experts.number, heldExperts(tensor, site)!)
}

/** Intervals of a dimension with their places in the rank's own tensor, where they follow each other. */
const placedRuns = (
  runs: ReadonlyArray<Interval>
): ReadonlyArray<{ readonly global: Interval; readonly at: number }> => {
  let start = 0
  return runs.map((global) => {
    start += lengthOf(global)
    return { global, at: start - lengthOf(global) }
  })
}

interface Scope {
  readonly made: MadeTensor
  readonly site: AssemblySite
  readonly key: string
  readonly isWhole: boolean
  readonly allExperts: boolean
}

/** A tensor of the model as the rank holds it. */
const shardOf = (tensor: ModelTensor, { made, site, isWhole, allExperts }: Scope): Made => {
  const placed = site.placed.get(tensor.name)
  if (placed === undefined || isWhole) return Result.succeed(wholeAssembly(tensor.name, tensor.shape))
  const { config, place } = site
  const { experts, dim, rule, shape } = placed
  const [position, degree] = experts === undefined ? [place.tp, config.tp] : [place.expertTp, expertDegrees(config).etp]
  let rows: ReadonlyArray<Interval> | undefined
  let length = 0
  if (dim !== undefined) {
    const cut = cutDimension(tensor.name, shape[dim]!, rule, position, degree)
    if (Result.isFailure(cut))
      return mappingError("not_divisible", tensor.name, made.rule.name, cut.failure.detail, cut.failure.remedy)
    rows = cut.success.intervals
    length = cut.success.length
  }
  const atExperts = experts?._tag === "Fused" && !allExperts ? experts.dim : undefined
  const held = atExperts === undefined ? undefined : heldExperts(placed, site)!
  const local = shape.map((whole, at) =>
    at === dim ? length : at === atExperts ? held!.reduce((sum, run) => sum + lengthOf(run), 0) : whole
  )
  const strips: Array<Strip> = []
  const box = (row: Interval | undefined, rowAt: number, expert: Interval | undefined, expertAt: number): void => {
    const global = shape.map(
      (whole, at): Interval =>
        at === dim ? (row ?? [0, whole]) : at === atExperts ? (expert ?? [0, whole]) : [0, whole]
    )
    if (global.some((interval) => lengthOf(interval) === 0)) return
    strips.push(
      boxStrip(
        tensor.name,
        shape,
        global,
        shape.map((_, at) => (at === dim ? rowAt : at === atExperts ? expertAt : 0))
      )
    )
  }
  for (const expert of held === undefined ? [undefined] : placedRuns(held)) {
    for (const row of rows === undefined ? [undefined] : placedRuns(rows))
      box(row?.global, row?.at ?? 0, expert?.global, expert?.at ?? 0)
  }
  const covered = rows === undefined ? length : rows.reduce((sum, run) => sum + lengthOf(run), 0)
  if (dim !== undefined && covered < length) {
    const padding = zeros(local.map((own, at) => (at === dim ? length - covered : own))).strips
    strips.push(...padding.map((strip) => ({ ...strip, at: strip.at.map((own, at) => (at === dim ? covered : own)) })))
  }
  return Result.succeed({ shape: local, strips })
}

/** A length that a rule states; undefined where the config does not say it. */
const countOf = (count: Count, numbers: ModelNumbers): number | undefined =>
  typeof count === "number" ? count : numbers[count]

const refuse = (scope: Scope, kind: "shape_mismatch" | "not_divisible" | "invalid_rule", detail: string): Made =>
  mappingError(kind, scope.made.name, scope.made.rule.name, detail, "Check the checkpoint's shapes and the rule.")

const several = (
  recipes: ReadonlyArray<Recipe>,
  scope: Scope
): Result.Result<ReadonlyArray<Assembly>, MappingError> => {
  const parts: Array<Assembly> = []
  for (const one of recipes) {
    const part = build(one, scope)
    if (Result.isFailure(part)) return Result.fail(part.failure)
    if (part.success !== undefined) parts.push(part.success)
  }
  return Result.succeed(parts)
}

const differsOff = (parts: ReadonlyArray<Assembly>, dim: number): Shape | undefined => {
  const [first, ...rest] = parts
  return rest.find(
    ({ shape }) =>
      shape.length !== first!.shape.length || shape.some((length, at) => at !== dim && length !== first!.shape[at])
  )?.shape
}

/** Experts, or other numbers, that a stack runs over on this rank, in order. */
const stackKeys = (scope: Scope, recipe: Recipe): ReadonlyArray<string> => {
  const leaf = firstLeaf(recipe)
  const all = scope.made.sources.get(leaf)
  if (all === undefined) return []
  const numbers = [...all.keys()].map(Number).sort((a, b) => a - b)
  const first = scope.site.placed.get(all.get(String(numbers[0]))!.name)
  const runs = first === undefined ? undefined : heldExperts(first, scope.site)
  if (runs === undefined || first?.experts?._tag !== "Named" || scope.isWhole) return numbers.map(String)
  return runs.flatMap(([from, to]) => Array.from({ length: to - from }, (_, at) => String(from + at)))
}

const firstLeaf = (recipe: Recipe): string => {
  if (typeof recipe === "string") return recipe
  if ("concat" in recipe) return firstLeaf(recipe.concat[0]!)
  if ("interleave" in recipe) return firstLeaf(recipe.interleave[0]!)
  if ("either" in recipe) return firstLeaf(recipe.either[0]!)
  return firstLeaf("stack" in recipe ? recipe.stack : innerOf(recipe))
}

/** A recipe on a rank; undefined where the rank holds none of it. */
const build = (recipe: Recipe, scope: Scope): Made => {
  const { made, site } = scope
  if (typeof recipe === "string") {
    const of = made.sources.get(recipe)!
    const tensor = of.get(scope.key) ?? of.get("")
    if (tensor !== undefined) return shardOf(tensor, scope)
    const [known] = of.values()
    return mappingError(
      "missing_source",
      known!.name.replaceAll(/\d+/g, scope.key),
      made.rule.name,
      `${made.name} stacks it with others.`,
      "Complete the checkpoint."
    )
  }
  if ("either" in recipe) {
    const there = recipe.either.find((one) => made.sources.has(firstLeaf(one)))
    return there === undefined ? Result.succeed(undefined) : build(there, scope)
  }
  if ("concat" in recipe || "interleave" in recipe) {
    const parts = several("concat" in recipe ? recipe.concat : recipe.interleave, scope)
    if (Result.isFailure(parts)) return Result.fail(parts.failure)
    const dim = "concat" in recipe ? (recipe.dim ?? 0) : 0
    const other = differsOff(parts.success, dim)
    const first = parts.success[0]!
    if (other !== undefined)
      return refuse(scope, "shape_mismatch", `Parts ${formatShape(first.shape)} and ${formatShape(other)} do not fit.`)
    if (parts.success.some(({ shape }) => shape.length <= dim))
      return refuse(scope, "shape_mismatch", `${formatShape(first.shape)} has no dimension ${dim} to join along.`)
    const parted = dim === 0 ? partedBlock(recipe, scope) : undefined
    if (parted !== undefined) return refuse(scope, "not_divisible", parted)
    if ("concat" in recipe) return Result.succeed(concat(parts.success, dim))
    const groups = countOf(recipe.groups, site.numbers)
    if (groups === undefined) return refuse(scope, "invalid_rule", `The config does not state "${recipe.groups}".`)
    const own = groups * shareOf(scope, recipe.interleave[0]!)
    if (!Number.isInteger(own))
      return refuse(scope, "not_divisible", `${groups} groups do not divide by ${Math.round(groups / own)} ranks.`)
    const uneven = parts.success.find(({ shape }) => !Number.isInteger(own) || shape[0]! % own !== 0)
    if (own === 0 || uneven !== undefined)
      return refuse(scope, "not_divisible", `${uneven?.shape[0] ?? 0} rows do not divide into ${own} groups.`)
    return Result.succeed(interleave(parts.success, own))
  }
  if ("stack" in recipe) {
    const parts: Array<Assembly> = []
    for (const key of stackKeys(scope, recipe.stack)) {
      const part = build(recipe.stack, { ...scope, key })
      if (Result.isFailure(part)) return part
      if (part.success !== undefined) parts.push(expand(part.success, 0))
    }
    if (parts.length === 0) return Result.succeed(undefined)
    const other = differsOff(parts, 0)
    if (other !== undefined)
      return refuse(scope, "shape_mismatch", `${formatShape(other)} is stacked with ${formatShape(parts[0]!.shape)}.`)
    return Result.succeed(concat(parts, 0))
  }
  if ("whole" in recipe) return build(recipe.whole, { ...scope, isWhole: true })
  if ("unstack" in recipe) {
    const part = build(recipe.unstack, { ...scope, allExperts: true })
    if (Result.isFailure(part) || part.success === undefined) return part
    const number = Number(made.bindings.get(recipe.at))
    if (number >= part.success.shape[0]!) return refuse(scope, "shape_mismatch", `There is no ${recipe.at} ${number}.`)
    return Result.succeed(squeeze(take(part.success, 0, [number, number + 1]), 0))
  }
  const inner = build(innerOf(recipe), "cut" in recipe ? { ...scope, isWhole: true } : scope)
  if (Result.isFailure(inner) || inner.success === undefined) return inner
  return reshaped(recipe, inner.success, scope)
}

/** Where scales of blocks are joined, and rows of the weights that they are of end inside a block; in words. */
const partedBlock = (
  recipe: { readonly concat: ReadonlyArray<Recipe> } | Extract<Recipe, { readonly interleave: unknown }>,
  scope: Scope
): string | undefined => {
  const { made, site } = scope
  if (site.blocksOf === undefined) return undefined
  const isJoined = "concat" in recipe
  const parts = isJoined ? recipe.concat.slice(0, -1) : recipe.interleave
  for (const part of parts) {
    if (typeof part !== "string") continue
    const of = made.sources.get(part)
    const tensor = of?.get(scope.key) ?? of?.get("")
    const blocks = tensor === undefined ? undefined : site.blocksOf(tensor.name)
    const weight = blocks === undefined ? undefined : shardOf(blocks.weight, scope)
    if (blocks === undefined || weight === undefined || Result.isFailure(weight)) continue
    const rows = weight.success!.shape[0]!
    const groups = isJoined ? 1 : (countOf(recipe.groups, site.numbers) ?? 1) * shareOf(scope, part)
    if ((rows / groups) % blocks.rows !== 0)
      return `${rows / groups} rows of ${blocks.weight.name} are no whole number of blocks of ${blocks.rows}, and rows of others follow them.`
  }
  return undefined
}

/** The share of all rows that the rank holds: its share of the groups in them too. */
const shareOf = (scope: Scope, recipe: Recipe): number => {
  const [own, whole] = [build(recipe, scope), build(recipe, { ...scope, isWhole: true })]
  const held = Result.isSuccess(own) ? own.success?.shape[0] : undefined
  const all = Result.isSuccess(whole) ? whole.success?.shape[0] : undefined
  return held === undefined || all === undefined || all === 0 ? 1 : held / all
}

const reshaped = (
  recipe: Exclude<
    Recipe,
    string | { concat: unknown } | { interleave: unknown } | { either: unknown } | { stack: unknown }
  >,
  part: Assembly,
  scope: Scope
): Made => {
  const { site } = scope
  const { shape } = part
  const has = (dim: number): boolean => dim < shape.length
  const noDim = (dim: number): Made =>
    refuse(scope, "shape_mismatch", `${formatShape(shape)} has no dimension ${dim} of that kind.`)
  if ("transpose" in recipe) {
    const sorted = [...recipe.axes].sort((a, b) => a - b)
    if (sorted.length !== shape.length || sorted.some((axis, at) => axis !== at))
      return refuse(scope, "shape_mismatch", `Axes [${recipe.axes.join(",")}] do not fit ${formatShape(shape)}.`)
    return Result.succeed(transpose(part, recipe.axes))
  }
  if ("split" in recipe) {
    const inner = countOf(recipe.inner, site.numbers)
    if (inner === undefined) return refuse(scope, "invalid_rule", `The config does not state "${recipe.inner}".`)
    if (!has(recipe.dim)) return noDim(recipe.dim)
    if (shape[recipe.dim]! % inner !== 0)
      return refuse(scope, "not_divisible", `Length ${shape[recipe.dim]} does not divide by ${inner}.`)
    return Result.succeed(split(part, recipe.dim, inner))
  }
  if ("merge" in recipe) return has(recipe.dim + 1) ? Result.succeed(merge(part, recipe.dim)) : noDim(recipe.dim + 1)
  if ("squeeze" in recipe)
    return shape[recipe.dim] === 1 ? Result.succeed(squeeze(part, recipe.dim)) : noDim(recipe.dim)
  if ("expand" in recipe)
    return recipe.dim <= shape.length ? Result.succeed(expand(part, recipe.dim)) : noDim(recipe.dim)
  if ("pad" in recipe) {
    const dim = recipe.dim ?? 0
    if (!has(dim)) return noDim(dim)
    return Result.succeed(pad(part, dim, Math.ceil(shape[dim]! / recipe.multipleOf) * recipe.multipleOf))
  }
  if ("cut" in recipe) {
    const dim = recipe.dim ?? 0
    if (!has(dim)) return noDim(dim)
    const { tp } = site.config
    if (recipe.uneven === true) return Result.succeed(take(part, dim, chunkInterval(shape[dim]!, tp, site.place.tp)))
    if (shape[dim]! % tp !== 0)
      return refuse(scope, "not_divisible", `Length ${shape[dim]} does not divide by ${tp} ranks.`)
    const share = shape[dim]! / tp
    return Result.succeed(take(part, dim, [site.place.tp * share, (site.place.tp + 1) * share]))
  }
  if ("onFirst" in recipe) {
    const [position] = positionOf(scope)
    return Result.succeed(position === 0 ? part : zeros(shape))
  }
  if ("add" in recipe || "negExp" in recipe) {
    const then: Scalar = "add" in recipe ? { add: recipe.add } : "negExp"
    // One function has a name, most pairs of them have none.
    if (part.strips.some(({ scalar }) => scalarAfter(scalar, then) === null))
      return mappingError(
        "unsupported",
        scope.made.name,
        scope.made.rule.name,
        "Its values go through two functions that are none together.",
        "Let one function change a value."
      )
    return Result.succeed(through(part, then))
  }
  if (!("part" in recipe)) return Result.succeed(part)
  return packedPart(recipe, part, scope)
}

const positionOf = ({ made, site }: Scope): readonly [position: number, degree: number] => {
  const [of] = made.sources.values()
  const [tensor] = of!.values()
  const isExpert = site.placed.get(tensor!.name)?.experts !== undefined
  const { config, place } = site
  return isExpert ? [place.expertTp, expertDegrees(config).etp] : [place.tp, config.tp]
}

/** One of several parts that are packed behind each other, or so in each group. */
const packedPart = (recipe: Extract<Recipe, { readonly part: Recipe }>, part: Assembly, scope: Scope): Made => {
  const dim = recipe.dim ?? 0
  const length = part.shape[dim]
  const lengths = recipe.lengths.map((count) => countOf(count, scope.site.numbers))
  const total = lengths.reduce<number>((sum, one) => sum + (one ?? Number.NaN), 0)
  const stated = recipe.groups === undefined ? 1 : countOf(recipe.groups, scope.site.numbers)
  const groups = stated === undefined || stated === 1 ? stated : stated * shareOf(scope, recipe.part)
  if (recipe.index >= lengths.length)
    return refuse(
      scope,
      "invalid_rule",
      `It has ${lengths.length} parts, numbered from 0, and no part ${recipe.index}.`
    )
  if (Number.isNaN(total) || groups === undefined || lengths[recipe.index] === undefined)
    return refuse(scope, "invalid_rule", "The config does not state the lengths of its parts.")
  const unit = (length ?? 0) / (total * groups)
  if (length === undefined || !Number.isInteger(unit))
    return refuse(scope, "not_divisible", `Length ${length} does not divide into ${groups} times ${total}.`)
  const from = lengths.slice(0, recipe.index).reduce<number>((sum, one) => sum + one!, 0) * unit
  const own: Interval = [from, from + lengths[recipe.index]! * unit]
  if (groups === 1) return Result.succeed(take(part, dim, own))
  return Result.succeed(merge(take(split(part, dim, total * unit), dim + 1, own), dim))
}

/** A tensor that a rule makes as one rank that holds everything has it. */
export const assembleWhole = (made: MadeTensor, site: AssemblySite): Made =>
  build(made.rule.from, { made, site, key: "", isWhole: true, allExperts: true })

/** What a rank holds of a tensor that a rule makes. The rank is one that holds it. */
export const assemble = (made: MadeTensor, site: AssemblySite): Made =>
  build(made.rule.from, { made, site, key: "", isWhole: false, allExperts: false })
