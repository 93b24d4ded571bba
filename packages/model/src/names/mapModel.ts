// SPDX-License-Identifier: Apache-2.0
/**
 * A model as the other side holds it: what each rank has, under which names and shapes, and of which elements of the
 * checkpoint it is made.
 */
import type { DType } from "@tensorferry/core/base/DType"
import type { Shape } from "@tensorferry/core/base/Region"
import * as Result from "effect/Result"
import type { ModelStructure } from "../describe/ModelStructure.ts"
import { formatParallelConfig, type LayoutError, type ModelTensor, type ParallelConfig } from "../layout/ModelLayout.ts"
import type { RankPlace } from "../layout/ParallelConfig.ts"
import type { PlacedTensor } from "../layout/TensorPlacement.ts"
import type { Placement } from "../placement/Placement.ts"
import { placeStructure } from "../placement/placeStructure.ts"
import { type AssemblySite, assemble, type BlockRows, heldExperts, holdsTensor } from "./assemble.ts"
import { checkLimits, degreeError } from "./degrees.ts"
import { checkInventory } from "./inventory/checkInventory.ts"
import type { Mapping } from "./Mapping.ts"
import { type MappingError, mappingError } from "./MappingError.ts"
import { type Assembled, kindTable, type MadeKind, renamed } from "./madeKinds.ts"
import { type MadeTensor, type MatchedMapping, matchRules, namedBy } from "./matchRules.ts"
import { type Bindings, fillName, matchName, namePattern, skeletonOf } from "./NamePattern.ts"
import type { Strip } from "./Strips.ts"

/** A tensor of the other side on one rank. */
export interface MappedTensor {
  readonly name: string
  readonly dtype: DType
  readonly shape: Shape
  readonly strips: ReadonlyArray<Strip>
  /** The rule by the name that it makes. */
  readonly rule: string
}

/** All that a rank holds. */
export interface MappedRank {
  readonly tensors: ReadonlyArray<MappedTensor>
  /** Other names of the same storage. */
  readonly aliases: ReadonlyMap<string, string>
}

/** A model, the mapping, and the degrees and choices by which it is placed. */
export interface MappedModelInput {
  readonly structure: ModelStructure
  readonly tensors: ReadonlyArray<ModelTensor>
  readonly mapping: Mapping
  readonly config: ParallelConfig
  readonly placement: Placement
}

/** A tensor that all ranks of a stage that have the same experts hold some of. */
export interface StageTensor {
  readonly name: string
  readonly dtype: DType
  /** The rule by the name that it makes. */
  readonly rule: string
  readonly kind: MadeKind
  /** Its own sources, in the order of the kind's. */
  readonly sources: ReadonlyArray<string>
}

/** A model as the other side holds it. Data-parallel positions of places do not matter. */
export interface MappedModel {
  /** The rules with the tensors that each takes. */
  readonly matched: MatchedMapping
  /** Degrees of parallelism. */
  readonly config: ParallelConfig
  /** What a rank at a place holds. */
  readonly rankAt: (place: RankPlace) => Result.Result<MappedRank, MappingError>
  /** Tensors of a rank at a place, without what of them it holds: equal for ranks of one stage and one part of the experts. */
  readonly tensorsAt: (place: RankPlace) => Result.Result<ReadonlyArray<StageTensor>, MappingError>
  /** What a rank at a place holds of the tensors of a kind, in the names of the kind. */
  readonly assemblyAt: (kind: MadeKind, place: RankPlace) => Assembled
}

/**
 * Places a model and finds what a mapping makes of it. The checkpoint is held against its config first; what does not fit the
 * degrees is named as the other side names it.
 */
export const mapModel = (input: MappedModelInput): Result.Result<MappedModel, MappingError | LayoutError> =>
  Result.gen(function* () {
    const { structure, tensors, mapping, config, placement } = input
    if (mapping.held === "whole" && ((config.ep ?? 1) > 1 || config.etp !== undefined))
      return yield* mappingError(
        "unsupported",
        formatParallelConfig(config),
        undefined,
        "Every rank has its rows of all tensors here, experts or not.",
        "Leave ep and etp out."
      )
    yield* checkInventory(structure, tensors, namedBy(mapping))
    const matched = yield* matchRules(mapping, tensors)
    const degrees: ParallelConfig = mapping.held === "whole" ? { tp: 1, pp: config.pp, dp: 1 } : config
    const placed = yield* Result.mapError(placeStructure(structure, degrees, placement), (error) =>
      degreeError(error, input, matched, degrees)
    )
    yield* checkLimits(mapping, degrees, placement)
    const layers = layersByStage(structure, placed)
    const kindOf = kindTable(placed)
    const known = matched.made.map((made): Known => {
      const sources = [...made.sources.values()].flatMap((of) => [...of.values()])
      return { made, sources, placed: sources.map(({ name }) => placed.get(name)), kind: kindOf(made, sources) }
    })
    const blocksOf = blockRows(structure)
    const siteAt = (place: RankPlace): AssemblySite => ({
      place,
      config,
      numbers: structure.numbers,
      placed,
      ...(blocksOf === undefined ? {} : { blocksOf })
    })
    const byStage = new Map<string, Result.Result<ReadonlyArray<StageTensor>, MappingError>>()
    const tensorsAt: MappedModel["tensorsAt"] = (place) => {
      const key = `${place.stage}/${place.expertEp}`
      const found =
        byStage.get(key) ??
        Result.flatMap(stageTensors(known, siteAt(place), layers), (held) => withoutConflict(mapping, held))
      byStage.set(key, found)
      return found
    }
    return {
      matched,
      config,
      tensorsAt,
      assemblyAt: (kind, place) => assembledAt(kind, siteAt(place)),
      rankAt: (place) => Result.flatMap(tensorsAt(place), (held) => mapRank(mapping, held, siteAt(place)))
    }
  })

/** Scales of blocks of rows, and the weights that they are of; undefined for a model that has none. */
const blockRows = ({ modules, quantization }: ModelStructure): AssemblySite["blocksOf"] => {
  const found = new Map<string, BlockRows>()
  const stated = quantization?.block?.[0]
  for (const { kind, tensors } of modules) {
    const { parts, shape } = kind.form
    const at = parts.findIndex((part) => part.kind === "blockScale" || part.kind === "groupScale")
    const weight = tensors[parts.findIndex((part) => part.kind === "weight")]
    const map = parts[at]?.maps.at(-2)
    if (weight === undefined || map === undefined) continue
    // One scale for all rows is of a block that may be longer than they are.
    const rows = stated ?? (map.dim === undefined ? shape.at(-2) : map.per)
    if (rows !== undefined && rows > 1) found.set(tensors[at]!.name, { weight, rows })
  }
  return found.size === 0 ? undefined : (tensor) => found.get(tensor)
}

/** Numbers of the layers of the language model on each stage. */
const layersByStage = (
  structure: ModelStructure,
  placed: ReadonlyMap<string, PlacedTensor>
): ReadonlyMap<number, ReadonlyArray<number>> => {
  const found = new Map<number, Set<number>>()
  for (const { layer, stack, tensors } of structure.modules) {
    const stage = tensors[0] === undefined ? undefined : placed.get(tensors[0].name)?.stage
    if (layer === undefined || stage === undefined || structure.stacks[stack!]?.kind === "mtp") continue
    found.set(stage, (found.get(stage) ?? new Set()).add(layer))
  }
  return new Map([...found].map(([stage, numbers]) => [stage, [...numbers].sort((a, b) => a - b)]))
}

/** A tensor that a rule makes, and what of it does not depend on the rank. */
interface Known {
  readonly made: MadeTensor
  readonly sources: ReadonlyArray<ModelTensor>
  readonly placed: ReadonlyArray<PlacedTensor | undefined>
  readonly kind: MadeKind
}

/** Whether a rank holds a tensor that a rule makes. */
const isHeldBy = ({ made, placed: all }: Known, site: AssemblySite): boolean => {
  const { place, config } = site
  const { stages } = made.rule
  const isStage =
    stages === undefined ||
    stages === "all" ||
    (stages !== "last" && place.stage === 0) ||
    (stages !== "first" && place.stage === config.pp - 1)
  if (!isStage) return false
  const expert = made.bindings.get("expert")
  return all.some((placed) => {
    if (placed === undefined) return true
    if (!holdsTensor(placed, site, stages !== undefined)) return false
    if (placed.experts?._tag !== "Fused" || expert === undefined) return true
    return heldExperts(placed, site)!.some(([from, to]) => Number(expert) >= from && Number(expert) < to)
  })
}

/** What a rank holds of it; ranks at one place of the groups that cut it hold the same. */
const assembledAt = (kind: MadeKind, site: AssemblySite): Assembled => {
  const { tp, expertTp, expertEp } = site.place
  const key = kind.isExpert ? `${tp}/${expertTp}/${expertEp}` : `${tp}`
  const found = kind.assembled.get(key) ?? assemble(kind.first, site)
  kind.assembled.set(key, found)
  return found
}

/** Numbers as the rank counts them: layers of its stage, experts in the order in which it holds them. */
const localNumbers = (
  { made, placed: all }: Known,
  site: AssemblySite,
  layers: ReadonlyMap<number, ReadonlyArray<number>>
): Bindings => {
  const local = new Map<string, string>()
  const layer = made.bindings.get("layer")
  if (layer !== undefined) {
    const own = layers.get(site.place.stage)?.indexOf(Number(layer)) ?? -1
    if (own >= 0) local.set("layer", String(own))
  }
  const expert = made.bindings.get("expert")
  if (expert === undefined) return local
  const [placed] = all
  let before = 0
  for (const [from, to] of (placed === undefined ? undefined : heldExperts(placed, site)) ?? []) {
    if (Number(expert) >= from && Number(expert) < to) local.set("expert", String(before + Number(expert) - from))
    before += to - from
  }
  return local
}

/** Tensors of a rank, and of all others that hold the same experts on its stage. */
const stageTensors = (
  made: ReadonlyArray<Known>,
  site: AssemblySite,
  layers: ReadonlyMap<number, ReadonlyArray<number>>
): Result.Result<ReadonlyArray<StageTensor>, MappingError> => {
  const tensors = new Map<string, StageTensor>()
  for (const one of made) {
    if (!isHeldBy(one, site)) continue
    const { kind, sources } = one
    const { rule, name: stated, bindings } = one.made
    const local = stated.includes(".local}") ? localNumbers(one, site, layers) : undefined
    const name = local === undefined ? stated : fillName(namePattern(stated), bindings, local)
    const known = tensors.get(name)
    if (known !== undefined) {
      return mappingError(
        "written_twice",
        name,
        rule.name,
        `Rule ${known.rule} makes it too.`,
        "Let one rule make each tensor."
      )
    }
    const assembled = assembledAt(kind, site)
    if (Result.isFailure(assembled)) {
      // What is said of it names this tensor, and not the first of its kind.
      const own = assemble(one.made, site)
      return Result.fail(Result.isFailure(own) ? own.failure : assembled.failure)
    }
    if (assembled.success === undefined) continue
    const dtype = rule.dtype ?? sources[0]!.dtype
    tensors.set(name, { name, dtype, rule: rule.name, kind, sources: sources.map((source) => source.name) })
  }
  return Result.succeed([...tensors.values()])
}

const conflict = (alias: string, other: string, name: string): Result.Result<never, MappingError> =>
  mappingError(
    "conflicting_alias",
    other,
    alias,
    `It would be another name of ${name}, and is a tensor of its own.`,
    "Ignore the tensor, or leave the alias out."
  )

/** Refuses aliases that are names of tensors that rules make. Names that differ in numbers only are looked at once. */
const withoutConflict = (
  { rules }: Mapping,
  held: ReadonlyArray<StageTensor>
): Result.Result<ReadonlyArray<StageTensor>, MappingError> => {
  const aliases = rules.filter((rule) => "alias" in rule)
  if (aliases.length === 0) return Result.succeed(held)
  const bySkeleton = new Map<string, Set<string>>()
  for (const { name } of held) {
    const skeleton = skeletonOf(name)
    bySkeleton.set(skeleton, (bySkeleton.get(skeleton) ?? new Set()).add(name))
  }
  for (const { alias, of } of aliases) {
    const [from, to] = [namePattern(of), namePattern(alias)]
    for (const [skeleton, names] of bySkeleton) {
      const likely = matchName(from, skeleton)
      if (likely === undefined || !bySkeleton.has(fillName(to, likely))) continue
      const others = bySkeleton.get(fillName(to, likely))!
      for (const name of names) {
        const bindings = matchName(from, name)
        const other = bindings === undefined ? name : fillName(to, bindings)
        if (bindings !== undefined && others.has(other)) return conflict(alias, other, name)
      }
    }
  }
  return Result.succeed(held)
}

const mapRank = (
  { rules }: Mapping,
  held: ReadonlyArray<StageTensor>,
  site: AssemblySite
): Result.Result<MappedRank, MappingError> => {
  const tensors = new Map<string, MappedTensor>()
  for (const { name, dtype, rule, kind, sources } of held) {
    const assembled = assembledAt(kind, site)
    if (Result.isFailure(assembled)) return Result.fail(assembled.failure)
    if (assembled.success === undefined) continue
    const { shape, strips } = assembled.success
    tensors.set(name, { name, dtype, shape, strips: renamed(strips, kind, sources), rule })
  }
  const aliases = new Map<string, string>()
  for (const rule of rules) {
    if (!("alias" in rule)) continue
    const [from, to] = [namePattern(rule.of), namePattern(rule.alias)]
    for (const name of tensors.keys()) {
      const bindings = matchName(from, name)
      if (bindings === undefined) continue
      const other = fillName(to, bindings)
      if (tensors.has(other)) return conflict(rule.alias, other, name)
      aliases.set(other, name)
    }
  }
  return Result.succeed({ tensors: [...tensors.values()], aliases })
}
