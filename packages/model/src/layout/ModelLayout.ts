// SPDX-License-Identifier: Apache-2.0
/**
 * One model in one parallel layout: which rank holds which pieces of which tensor. Made from names and shapes alone, the
 * same on every rank. Loaders and checks ask for local tensors; planners get a roster of parameters, which are views of
 * local tensors.
 *
 * Shards follow `chunkInterval` unless a rule says otherwise: uneven and empty ones are legal and stated as explicit global
 * intervals.
 */

import type { DType } from "@tensorferry/core/base/DType"
import type { Rank } from "@tensorferry/core/base/Ids"
import type { Interval, Shape } from "@tensorferry/core/base/Region"
import {
  type ClassParameter,
  classParameter,
  type GroupSet,
  type Roster,
  type RosterMember,
  sealRoster,
  structureInterner
} from "@tensorferry/core/layout/Roster"
import type { ShardingRules } from "@tensorferry/core/layout/ShardingRules"
import * as Result from "effect/Result"
import { type LayoutError, layoutError } from "./LayoutError.ts"
import {
  type Holding,
  holdingOf,
  type LocalParameter,
  type LocalTensor,
  localParameters,
  localTensor
} from "./LocalTensor.ts"
import {
  checkConfig,
  expertDegrees,
  groupsOf,
  type ParallelConfig,
  placeOf,
  type RankGroups,
  type RankPlace,
  ranksOf,
  worldSizeOf
} from "./ParallelConfig.ts"
import type { Cut } from "./TensorCut.ts"
import { type ModelTensor, type PlacedTensor, placeTensors } from "./TensorPlacement.ts"

export { LayoutError } from "./LayoutError.ts"
export type { LocalParameter, LocalTensor, Piece } from "./LocalTensor.ts"
export { formatParallelConfig, ParallelConfig, parseParallelConfig, worldSizeOf } from "./ParallelConfig.ts"
export type { ModelTensor } from "./TensorPlacement.ts"

/** All tensors of a model over the ranks of one parallel layout: what each rank holds, and under which names. */
export interface ModelLayout {
  /** Degrees of parallelism. */
  readonly config: ParallelConfig
  /** Of this side, in order. */
  readonly ranks: ReadonlyArray<Rank>
  /** Tensors that the model holds; those that it shares under other names are not among them. */
  readonly tensors: ReadonlyArray<ModelTensor>
  /** What a rank holds, with aliases. */
  readonly tensorsOf: (rank: Rank) => ReadonlyArray<LocalTensor>
  /** The same as parameters of a roster. */
  readonly parametersOf: (rank: Rank) => ReadonlyArray<LocalParameter>
  /** What all ranks of this side hold. */
  readonly roster: Roster
}

/** A model and how it is laid out. */
export interface ModelLayoutInput {
  readonly tensors: ReadonlyArray<ModelTensor>
  readonly rules: ShardingRules
  readonly config: ParallelConfig
  /** First rank of the layout; ranks follow it without gaps. */
  readonly firstRank?: Rank
}

/** Lays a model out. The order of tensors is kept; it decides the order of task ids. */
export const modelLayout = (input: ModelLayoutInput): Result.Result<ModelLayout, LayoutError> => {
  const config = checkConfig(input.config)
  if (Result.isFailure(config)) return Result.fail(config.failure)
  return Result.flatMap(placeTensors(input.tensors, input.rules, config.success.pp), (placed) =>
    placedLayout({ ...input, placed })
  )
}

/** A model and where each of its tensors lies. */
export interface PlacedLayoutInput extends Omit<ModelLayoutInput, "rules"> {
  /** The tensors in their order, then those that it shares under other names; made for these degrees. */
  readonly placed: ReadonlyArray<PlacedTensor>
}

/** Tensors by stage, then by the expert-parallel positions that may hold them: most experts are on one of many. */
const tensorsByPlace = (
  placed: ReadonlyArray<PlacedTensor>,
  config: ParallelConfig
): ReadonlyArray<ReadonlyArray<ReadonlyArray<PlacedTensor>>> => {
  const { ep } = expertDegrees(config)
  const all = Array.from({ length: ep }, (_, at) => at)
  const found = Array.from({ length: config.pp }, () => all.map((): Array<PlacedTensor> => []))
  /** Positions by the runs of experts, then by the expert's number. */
  const holders = new Map<ReadonlyArray<ReadonlyArray<Interval>>, Map<number, ReadonlyArray<number>>>()
  const holdersOf = (runs: ReadonlyArray<ReadonlyArray<Interval>>, number: number): ReadonlyArray<number> => {
    const known = holders.get(runs) ?? new Map<number, ReadonlyArray<number>>()
    holders.set(runs, known)
    const positions =
      known.get(number) ?? all.filter((at) => runs[at]?.some(([from, to]) => number >= from && number < to) === true)
    known.set(number, positions)
    return positions
  }
  for (const tensor of placed) {
    const { experts, stage } = tensor
    const positions =
      experts?._tag === "Named" && experts.held !== undefined ? holdersOf(experts.held, experts.number) : all
    for (const at of positions) found[stage]?.[at]?.push(tensor)
  }
  return found
}

/** Lays out a model whose tensors are placed already. */
export const placedLayout = (input: PlacedLayoutInput): Result.Result<ModelLayout, LayoutError> => {
  const firstRank = input.firstRank ?? 0
  const config = checkConfig(input.config)
  if (Result.isFailure(config)) return Result.fail(config.failure)
  const { placed } = input
  const shared = placed.filter(({ aliasOf }) => aliasOf !== undefined)
  const owners = new Set(shared.map(({ aliasOf }) => aliasOf))
  const owning = owners.size === 0 ? [] : placed.filter(({ name }) => owners.has(name))
  const stageOfName = new Map(owning.map(({ name, stage }) => [name, stage]))
  const sharesHere = ({ tensor }: Holding): string | undefined =>
    tensor.aliasOf !== undefined && stageOfName.get(tensor.aliasOf) === tensor.stage ? tensor.aliasOf : undefined

  const ranks = Array.from({ length: worldSizeOf(config.success) }, (_, at) => firstRank + at)
  const placeAt = (rank: Rank): RankPlace => placeOf(config.success, firstRank, rank)
  // Ranks at the same position hold the same: what they hold is worked out once.
  const holdings = new Map<string, ReadonlyArray<Holding>>()
  const found = new Set<Holding["tensor"]>()
  const positionKey = ({ stage, tp, expertTp, expertEp }: RankPlace) => `${stage}/${tp}/${expertTp}/${expertEp}`
  const candidates = tensorsByPlace(placed, config.success)
  for (const rank of ranks) {
    const place = placeAt(rank)
    if (holdings.has(positionKey(place))) continue
    const held: Array<Holding> = []
    for (const tensor of candidates[place.stage]![place.expertEp]!) {
      const holding = holdingOf(tensor, config.success, place)
      if (Result.isFailure(holding)) return Result.fail(holding.failure)
      if (holding.success === undefined) continue
      held.push(holding.success)
      found.add(tensor)
    }
    holdings.set(positionKey(place), held)
  }
  const missing = placed.filter((tensor) => !found.has(tensor)).map(({ name }) => name)
  if (missing.length > 0) {
    return layoutError("InvalidConfig", missing, "No rank would hold them.", "Correct the rules or the degrees.")
  }

  const tensorsAt = (place: RankPlace): ReadonlyArray<readonly [Holding, LocalTensor]> =>
    holdings.get(positionKey(place))!.map((holding) => {
      const isPrimary = (holding.tensor.experts === undefined ? place.dp : place.expertDp) === 0
      return [holding, localTensor(holding, sharesHere(holding), isPrimary)]
    })
  const parametersAt = (place: RankPlace): ReadonlyArray<LocalParameter> =>
    tensorsAt(place).flatMap(([holding, local]) => localParameters(holding, local))
  const alike = likeParameters()
  const rosterAt: EachParameter = (place, visit) => {
    for (const holding of holdings.get(positionKey(place))!) {
      const shared = sharesHere(holding)
      const make = () => localParameters(holding, localTensor(holding, shared, true))
      if (shared !== undefined) for (const one of make()) visit(one)
      else alike(holding, make, visit)
    }
  }
  const isHeld = (rank: Rank): boolean => rank >= firstRank && rank < firstRank + ranks.length
  return Result.succeed({
    config: config.success,
    ranks,
    tensors: input.tensors,
    tensorsOf: (rank) => (isHeld(rank) ? tensorsAt(placeAt(rank)).map(([, local]) => local) : []),
    parametersOf: (rank) => (isHeld(rank) ? parametersAt(placeAt(rank)) : []),
    roster: rosterOf(config.success, firstRank, ranks, positionKey, rosterAt)
  })
}

/**
 * Parameters of tensors that are cut alike differ in their names only, and a model has many of one kind. Equal cuts and
 * shapes are told by identity: whoever places tensors one by one shares them.
 */
const likeParameters = () => {
  const known = new WeakMap<Shape, Map<Cut | undefined, readonly [DType, LocalParameter]>>()
  return (holding: Holding, make: () => ReadonlyArray<LocalParameter>, visit: VisitParameter): void => {
    const { tensor, cut } = holding
    if (tensor.experts?._tag === "Fused" || !("cuts" in tensor.rule)) {
      for (const one of make()) visit(one)
      return
    }
    const byCut = known.get(tensor.shape) ?? new Map<Cut | undefined, readonly [DType, LocalParameter]>()
    known.set(tensor.shape, byCut)
    const found = byCut.get(cut)
    if (found === undefined || found[0] !== tensor.dtype || found[1].groups !== groupsOfTensor(tensor)) {
      const made = make()
      byCut.set(cut, [tensor.dtype, made[0]!])
      for (const one of made) visit(one)
      return
    }
    visit(found[1], tensor.name, tensor.experts)
  }
}

const groupsOfTensor = ({ experts }: PlacedTensor): LocalParameter["groups"] =>
  experts === undefined ? "dense" : "expert"

/** Of several that are alike the first is given, with the name and the expert of the one that is visited. */
type VisitParameter = (
  parameter: Pick<LocalParameter, "metadata" | "groups">,
  name?: string,
  experts?: { readonly number: number; readonly count: number }
) => void
/** Visits what a position holds, in order: a list of all would be as long as the model. */
type EachParameter = (place: RankPlace, visit: VisitParameter) => void

const likeParameter = (
  name: string,
  experts: Parameters<VisitParameter>[2],
  aliasOf: string | null,
  structure: number,
  groupSlot: number
): ClassParameter => ({
  name,
  resolvedName: name,
  globalExpertIndex: experts === undefined ? null : experts.number,
  numExperts: experts === undefined ? null : experts.count,
  aliasOf,
  structure,
  groupSlot
})

/**
 * The roster, class by class: ranks at the same position hold the same parameters, so these are described once and not per
 * rank. Positions of one stage list parameters in one order; experts differ by their number.
 */
export const rosterOf = (
  config: ParallelConfig,
  firstRank: Rank,
  ranks: ReadonlyArray<Rank>,
  positionKey: (place: RankPlace) => string,
  eachParameter: EachParameter
): Roster => {
  const structures = structureInterner()
  /** A class and the kinds of groups that its slots stand for. */
  interface LayoutClass {
    readonly index: number
    readonly slots: ReadonlyArray<"dense" | "expert">
  }
  const classes: Array<ReadonlyArray<ClassParameter>> = []
  const classOf = new Map<string, LayoutClass>()
  const classAt = (place: RankPlace): LayoutClass => {
    const key = positionKey(place)
    const known = classOf.get(key)
    if (known !== undefined) return known
    const slots: Array<"dense" | "expert"> = []
    const parameters: Array<ClassParameter> = []
    eachParameter(place, ({ metadata, groups }, name, experts) => {
      if (!slots.includes(groups)) slots.push(groups)
      const [structure, groupSlot] = [structures.intern(metadata), slots.indexOf(groups)]
      parameters.push(
        name === undefined
          ? classParameter(metadata, structure, groupSlot)
          : likeParameter(name, experts, metadata.aliasOf, structure, groupSlot)
      )
    })
    // Positions of a group whose shards are all equal share one class; experts differ by name.
    const contents = `${place.stage} ${parameters.map((one) => `${one.structure}:${one.globalExpertIndex}`).join(",")}`
    const found = classOf.get(contents) ?? { index: classes.push(parameters) - 1, slots }
    classOf.set(contents, found).set(key, found)
    return found
  }
  const lists: Array<ReadonlyArray<Rank>> = []
  const listOf = new Map<string, number>()
  const list = (run: RankGroups[keyof RankGroups]): number | null => {
    if (run === null) return null
    const key = `${run.first}/${run.step}/${run.count}`
    const known = listOf.get(key)
    if (known !== undefined) return known
    listOf.set(key, lists.length)
    return lists.push(ranksOf(run)) - 1
  }
  const groupSets: Array<GroupSet> = []
  const members = ranks.map((rank): RosterMember => {
    const groups = groupsOf(config, firstRank, rank)
    const { index, slots } = classAt(placeOf(config, firstRank, rank))
    return {
      rank,
      layoutClass: index,
      groups: slots.map((kind) => {
        const runs = groups[kind]
        const set: GroupSet = {
          tensorParallel: list(runs.tensorParallel),
          expertParallel: list(runs.expertParallel),
          dataParallel: list(runs.dataParallel),
          pipelineParallel: list(runs.pipelineParallel)
        }
        return groupSets.push(set) - 1
      })
    }
  })
  return sealRoster({ version: 1, rankLists: lists, groupSets, structures: structures.values, classes, members })
}
