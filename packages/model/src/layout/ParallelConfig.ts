// SPDX-License-Identifier: Apache-2.0
/**
 * Degrees of parallelism, and where a rank stands in them.
 *
 * Ranks are numbered stage by stage. A stage has `tp x dp` ranks, the tensor-parallel position fastest. Experts divide the
 * same ranks again: expert tensor-parallel position fastest, then the expert-parallel one, then the replica.
 */

import type { Rank } from "@tensorferry/core/base/Ids"
import type { GroupSet } from "@tensorferry/core/layout/Roster"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { type LayoutError, layoutError } from "./LayoutError.ts"

const Degree = Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 65_536 }))

/** Degrees of parallelism, as `tp=2,pp=4`, and what goes with them. */
export const ParallelConfig = Schema.Struct({
  /** Tensor-parallel ranks of one replica of a stage. */
  tp: Degree,
  /** Pipeline stages. */
  pp: Degree,
  /** Data-parallel replicas. World size is `tp x pp x dp`. */
  dp: Degree,
  /** Expert-parallel ranks among the `tp x dp` of a stage; 1 by default. */
  ep: Schema.optionalKey(Degree),
  /** Tensor-parallel ranks of one expert; by default `tp` without expert parallelism, else 1. */
  etp: Schema.optionalKey(Degree)
})
export type ParallelConfig = typeof ParallelConfig.Type

const degreeNames = ["tp", "pp", "dp", "ep", "etp"] as const

/** `ep` and `etp` with their defaults filled in. */
export const expertDegrees = (config: ParallelConfig): { readonly ep: number; readonly etp: number } => {
  const ep = config.ep ?? 1
  return { ep, etp: config.etp ?? (ep === 1 ? config.tp : 1) }
}

/** Ranks of a layout: `tp x pp x dp`. */
export const worldSizeOf = (config: ParallelConfig): number => config.tp * config.pp * config.dp

/** Most ranks of one layout. */
const maxRanks = 2 ** 20

/** Refuses layouts that nobody could run, and expert degrees that do not divide the ranks of a stage. */
export const checkConfig = (config: ParallelConfig): Result.Result<ParallelConfig, LayoutError> => {
  const { ep, etp } = expertDegrees(config)
  const stage = config.tp * config.dp
  if (worldSizeOf(config) > maxRanks) {
    return layoutError("InvalidConfig", [], `It has ${worldSizeOf(config)} ranks.`, `Use at most ${maxRanks}.`)
  }
  if (stage % (ep * etp) === 0) return Result.succeed(config)
  return layoutError(
    "InvalidConfig",
    [],
    `ep=${ep} x etp=${etp} do not divide the ${stage} ranks of a stage (tp=${config.tp} x dp=${config.dp}).`,
    "Choose expert degrees whose product divides tp x dp."
  )
}

/** Reads `tp=2,pp=4`; degrees left out have their defaults. */
export const parseParallelConfig = (text: string): Result.Result<ParallelConfig, LayoutError> => {
  const degrees = new Map<string, number>()
  for (const part of text.split(",")) {
    const match = /^\s*(tp|pp|dp|ep|etp)\s*=\s*(\d{1,5})\s*$/.exec(part)
    const name = match?.[1]
    const value = Number(match?.[2])
    if (name === undefined || value < 1 || value > 65_536 || degrees.has(name)) {
      return layoutError(
        "InvalidConfig",
        [],
        `"${part.trim()}" in "${text}" is not a degree of parallelism.`,
        "Write degrees of at least 1, each once, as in tp=2,pp=4; there are tp, pp, dp, ep and etp."
      )
    }
    degrees.set(name, value)
  }
  const [tp = 1, pp = 1, dp = 1, ep, etp] = degreeNames.map((name) => degrees.get(name))
  return checkConfig({ tp, pp, dp, ...(ep === undefined ? {} : { ep }), ...(etp === undefined ? {} : { etp }) })
}

/** The shortest text that `parseParallelConfig` reads back. */
export const formatParallelConfig = (config: ParallelConfig): string => {
  const { etp: _stated, ...rest } = config
  const usual = { tp: 1, pp: 1, dp: 1, ep: 1, etp: expertDegrees(rest).etp }
  const parts = degreeNames.flatMap((name) => {
    const degree = config[name] ?? usual[name]
    return degree === usual[name] ? [] : [`${name}=${degree}`]
  })
  return parts.length === 0 ? "tp=1" : parts.join(",")
}

/** Position of a rank in each of its groups. */
export interface RankPlace {
  readonly stage: number
  readonly tp: number
  readonly dp: number
  readonly expertTp: number
  readonly expertEp: number
  readonly expertDp: number
}

/** Where `rank` stands in a job whose ranks begin at `firstRank`, by the numbering of this module. */
export const placeOf = (config: ParallelConfig, firstRank: Rank, rank: Rank): RankPlace => {
  const { tp, dp } = config
  const { ep, etp } = expertDegrees(config)
  const inStage = (rank - firstRank) % (tp * dp)
  return {
    stage: Math.floor((rank - firstRank) / (tp * dp)),
    tp: inStage % tp,
    dp: Math.floor(inStage / tp),
    expertTp: inStage % etp,
    expertEp: Math.floor(inStage / etp) % ep,
    expertDp: Math.floor(inStage / (etp * ep))
  }
}

/** Ranks `first`, `first + step`, ... in order of their position in a group. */
export interface RankRun {
  readonly first: Rank
  readonly step: number
  readonly count: number
}

/** The run's ranks as a list. */
export const ranksOf = ({ first, step, count }: RankRun): ReadonlyArray<Rank> =>
  Array.from({ length: count }, (_, at) => first + at * step)

/** Groups of a rank as runs; null where it is in no such group. */
export type RankGroups = { readonly [Kind in keyof GroupSet]: RankRun | null }

/** Groups in which a rank holds dense parameters, and those in which it holds experts. */
export const groupsOf = (
  config: ParallelConfig,
  firstRank: Rank,
  rank: Rank
): { readonly dense: RankGroups; readonly expert: RankGroups } => {
  const { tp, dp, pp } = config
  const { ep, etp } = expertDegrees(config)
  const place = placeOf(config, firstRank, rank)
  const stageSize = tp * dp
  const first = firstRank + place.stage * stageSize
  const pipelineParallel: RankRun = {
    first: firstRank + place.tp + tp * place.dp,
    step: stageSize,
    count: pp
  }
  const expertBlock = first + etp * ep * place.expertDp
  return {
    dense: {
      tensorParallel: { first: first + tp * place.dp, step: 1, count: tp },
      expertParallel: null,
      dataParallel: { first: first + place.tp, step: tp, count: dp },
      pipelineParallel
    },
    expert: {
      tensorParallel: { first: expertBlock + etp * place.expertEp, step: 1, count: etp },
      expertParallel: { first: expertBlock + place.expertTp, step: etp, count: ep },
      dataParallel: {
        first: first + place.expertTp + etp * place.expertEp,
        step: etp * ep,
        count: stageSize / (etp * ep)
      },
      pipelineParallel
    }
  }
}
