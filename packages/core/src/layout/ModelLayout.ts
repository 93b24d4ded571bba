/**
 * One model in one parallel layout: which rank holds which region of which tensor. Made from names and shapes alone, the
 * same on every rank; planners get it as a roster, loaders and checks ask it for regions.
 *
 * Ranks are numbered with the tensor-parallel position fastest, then the data-parallel replica, then the pipeline stage.
 * Shards follow `chunkInterval`: uneven and empty ones are legal and stated as explicit global intervals.
 */
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { bitsOf, type DType, isSubByte } from "../base/DType.ts"
import type { Rank } from "../base/Ids.ts"
import {
  chunkInterval,
  elementCount,
  formatShape,
  fullRegion,
  type Region,
  regionShape,
  type Shape
} from "../base/Region.ts"
import { type ParameterMetadata, parameterMetadata } from "./ParameterMetadata.ts"
import {
  type ClassParameter,
  classParameter,
  type GroupSet,
  type Roster,
  type RosterMember,
  sealRoster,
  structureInterner
} from "./Roster.ts"
import { findRule, layerNumber, type ShardingRules } from "./ShardingRules.ts"

const Degree = Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 65_536 }))

/** Degrees of parallelism. World size is their product. */
export const ParallelConfig = Schema.Struct({ tp: Degree, pp: Degree, dp: Degree })
export type ParallelConfig = typeof ParallelConfig.Type

export const LayoutErrorKind = Schema.Literals([
  /** Tensors that no rule matches. */
  "NoRule",
  /** A rule names a dimension that its tensor does not have, or a pattern cannot be read. */
  "InvalidRule",
  /** Degrees of parallelism that make no layout. */
  "InvalidConfig",
  /** A shard would begin or end inside a byte. */
  "CutInsideByte",
  /** An alias without owner, or of another alias. */
  "InvalidAlias"
])

export class LayoutError extends Schema.TaggedError<LayoutError>()("LayoutError", {
  kind: LayoutErrorKind,
  paramNames: Schema.Array(Schema.String),
  detail: Schema.String,
  remedy: Schema.String
}) {
  override get message(): string {
    const names = this.paramNames.length === 0 ? "" : ` (${this.paramNames.join(", ")})`
    return `${this.kind}${names}: ${this.detail} ${this.remedy}`
  }
}

const layoutError = (
  kind: typeof LayoutErrorKind.Type,
  paramNames: ReadonlyArray<string>,
  detail: string,
  remedy: string
) => Result.fail(new LayoutError({ kind, paramNames: [...paramNames], detail, remedy }))

/** Reads `tp=2,pp=4`; degrees left out are 1. */
export const parseParallelConfig = (text: string): Result.Result<ParallelConfig, LayoutError> => {
  const degrees = { tp: 1, pp: 1, dp: 1 }
  const seen = new Set<string>()
  for (const part of text.split(",")) {
    const match = /^\s*(tp|pp|dp)\s*=\s*(\d{1,5})\s*$/.exec(part)
    const name = match?.[1] as keyof typeof degrees | undefined
    const value = Number(match?.[2])
    if (name === undefined || value < 1 || value > 65_536 || seen.has(name)) {
      return layoutError(
        "InvalidConfig",
        [],
        `"${part.trim()}" in "${text}" is not a degree of parallelism.`,
        "Write degrees of at least 1, each once, as in tp=2,pp=4."
      )
    }
    seen.add(name)
    degrees[name] = value
  }
  return Result.succeed(degrees)
}

export const formatParallelConfig = (config: ParallelConfig): string => {
  const parts = (["tp", "pp", "dp"] as const)
    .filter((name) => config[name] > 1)
    .map((name) => `${name}=${config[name]}`)
  return parts.length === 0 ? "tp=1" : parts.join(",")
}

export const worldSizeOf = (config: ParallelConfig): number => config.tp * config.pp * config.dp

/** A tensor of the whole model. */
export interface ModelTensor {
  readonly name: string
  readonly dtype: DType
  readonly shape: Shape
}

/** What one rank holds of one tensor. */
export interface Shard {
  readonly name: string
  readonly dtype: DType
  /** Region of the whole tensor. */
  readonly region: Region
  readonly shape: Shape
  /** The tensor whose storage this one shares on this rank. */
  readonly aliasOf: string | undefined
}

export interface ModelLayout {
  readonly config: ParallelConfig
  readonly ranks: ReadonlyArray<Rank>
  readonly tensors: ReadonlyArray<ModelTensor>
  readonly shardsOf: (rank: Rank) => ReadonlyArray<Shard>
  readonly parametersOf: (rank: Rank) => ReadonlyArray<ParameterMetadata>
  readonly roster: Roster
}

export interface ModelLayoutInput {
  readonly tensors: ReadonlyArray<ModelTensor>
  readonly rules: ShardingRules
  readonly config: ParallelConfig
  /** First rank of the layout; ranks follow it without gaps. */
  readonly firstRank?: Rank
}

interface Placed extends ModelTensor {
  /** Undefined for tensors that every rank of the stage holds whole. */
  readonly dim: number | undefined
  readonly stage: number
  readonly aliasOf: string | undefined
}

/** Contiguous runs of layers, as even as possible, longer runs first. */
const stageOf = (position: number, layers: number, stages: number): number => {
  const short = Math.floor(layers / stages)
  const longer = layers % stages
  const inLonger = longer * (short + 1)
  return position < inLonger
    ? Math.floor(position / (short + 1))
    : longer + Math.floor((position - inLonger) / Math.max(1, short))
}

const placeTensors = (input: ModelLayoutInput): Result.Result<ReadonlyArray<Placed>, LayoutError> => {
  const { rules, config } = input
  const aliases = new Map((rules.aliases ?? []).map((alias) => [alias.name, alias.of]))
  const known = new Map(input.tensors.map((tensor) => [tensor.name, tensor]))
  const all = [...input.tensors]
  for (const [name, of] of aliases) {
    const owner = known.get(of)
    if (owner === undefined || aliases.has(of)) {
      return layoutError(
        "InvalidAlias",
        [name],
        `It shares the storage of ${of}, which the model does not hold.`,
        "Name the tensor that owns the storage."
      )
    }
    if (!known.has(name)) all.push({ ...owner, name })
  }
  const unmatched = all.filter((tensor) => findRule(rules, tensor.name) === undefined).map((tensor) => tensor.name)
  if (unmatched.length > 0) {
    return layoutError(
      "NoRule",
      unmatched,
      "No rule says how to shard them.",
      "Add rules, choose a preset, or pass --default replicate."
    )
  }
  const numbers = new Map(all.map((tensor) => [tensor.name, layerNumber(rules, tensor.name)]))
  const layers = [...new Set([...numbers.values()].filter((layer) => layer !== undefined))].sort((a, b) => a - b)
  const position = new Map(layers.map((layer, at) => [layer, at]))
  const placed: Array<Placed> = []
  for (const [at, tensor] of all.entries()) {
    const rule = findRule(rules, tensor.name)!
    const dim = rule.shard === "replicate" ? undefined : rule.shard < 0 ? rule.shard + tensor.shape.length : rule.shard
    if (dim !== undefined && (dim < 0 || dim >= tensor.shape.length)) {
      return layoutError(
        "InvalidRule",
        [tensor.name],
        `Rule "${rule.match}" shards dimension ${rule.shard} of shape ${formatShape(tensor.shape)}.`,
        "Name a dimension that the tensor has."
      )
    }
    const layer = numbers.get(tensor.name)
    const stage =
      layers.length === 0
        ? stageOf(at, all.length, config.pp)
        : layer !== undefined
          ? stageOf(position.get(layer)!, layers.length, config.pp)
          : rule.stage === "last"
            ? config.pp - 1
            : 0
    placed.push({ ...tensor, dim, stage, aliasOf: aliases.get(tensor.name) })
  }
  return Result.succeed(placed)
}

/** Lays a model out. The order of tensors is kept; it decides the order of task ids. */
export const modelLayout = (input: ModelLayoutInput): Result.Result<ModelLayout, LayoutError> => {
  const { config } = input
  const firstRank = input.firstRank ?? 0
  const placed = placeTensors(input)
  if (Result.isFailure(placed)) return Result.fail(placed.failure)
  const stageOfName = new Map(placed.success.map((tensor) => [tensor.name, tensor.stage]))
  for (const tensor of placed.success) {
    if (tensor.dim === undefined || config.tp === 1 || !isSubByte(tensor.dtype)) continue
    const inner = elementCount(tensor.shape.slice(tensor.dim + 1)) * bitsOf(tensor.dtype)
    const rows = elementCount(tensor.shape.slice(0, tensor.dim))
    const length = tensor.shape[tensor.dim]!
    for (let part = 0; part < config.tp; part++) {
      const [start, stop] = chunkInterval(length, config.tp, part)
      if ((start * inner) % 8 === 0 && (stop * inner) % 8 === 0 && (rows === 1 || (length * inner) % 8 === 0)) continue
      return layoutError(
        "CutInsideByte",
        [tensor.name],
        `Shard ${part} of ${config.tp} along dimension ${tensor.dim} of ${tensor.dtype}${formatShape(tensor.shape)} begins or ends inside a byte.`,
        "Replicate it, or choose a degree that cuts whole bytes."
      )
    }
  }
  const coordinate = (rank: Rank) => {
    const at = rank - firstRank
    return {
      tp: at % config.tp,
      dp: Math.floor(at / config.tp) % config.dp,
      pp: Math.floor(at / (config.tp * config.dp))
    }
  }
  const rankAt = (tp: number, dp: number, pp: number): Rank => firstRank + tp + config.tp * (dp + config.dp * pp)
  const range = (count: number): ReadonlyArray<number> => Array.from({ length: count }, (_, at) => at)
  const ranks = range(worldSizeOf(config)).map((at) => firstRank + at)
  const isHeld = (rank: Rank): boolean => rank >= firstRank && rank < firstRank + ranks.length

  const shardsOf = (rank: Rank): ReadonlyArray<Shard> => {
    if (!isHeld(rank)) return []
    const { tp, pp } = coordinate(rank)
    return placed.success
      .filter((tensor) => tensor.stage === pp)
      .map((tensor) => {
        const region = fullRegion(tensor.shape).map((whole, dim) =>
          dim === tensor.dim ? chunkInterval(tensor.shape[dim]!, config.tp, tp) : whole
        )
        const sharesHere = tensor.aliasOf !== undefined && stageOfName.get(tensor.aliasOf) === tensor.stage
        return {
          name: tensor.name,
          dtype: tensor.dtype,
          region,
          shape: regionShape(region),
          aliasOf: sharesHere ? tensor.aliasOf : undefined
        }
      })
  }

  const whole = new Map(placed.success.map((tensor) => [tensor.name, tensor.shape]))
  /** Equal shards need no explicit intervals, so all positions of a group share one description. */
  const isEven = (name: string, dim: number): boolean => whole.get(name)![dim]! % config.tp === 0
  const dims = new Map(placed.success.map((tensor) => [tensor.name, tensor.dim]))
  const parametersOf = (rank: Rank): ReadonlyArray<ParameterMetadata> => {
    const { tp, dp, pp } = coordinate(rank)
    const groups = {
      tensorParallelGroupRanks: range(config.tp).map((at) => rankAt(at, dp, pp)),
      dataParallelGroupRanks: range(config.dp).map((at) => rankAt(tp, at, pp)),
      pipelineParallelGroupRanks: range(config.pp).map((at) => rankAt(tp, dp, at))
    }
    return shardsOf(rank).map((shard) => {
      const dim = dims.get(shard.name)
      const sharded = dim !== undefined && config.tp > 1
      const interval = sharded && !isEven(shard.name, dim) ? shard.region[dim]! : undefined
      return parameterMetadata({
        name: shard.name,
        shape: shard.shape,
        dtype: shard.dtype,
        ownerRank: rank,
        isTp: sharded,
        partitionDim: dim ?? 0,
        partitionOffsets: interval === undefined ? null : interval[0] < interval[1] ? [interval] : [],
        aliasOf: shard.aliasOf ?? null,
        ...groups
      })
    })
  }
  return Result.succeed({
    config,
    ranks,
    tensors: placed.success.map(({ name, dtype, shape }) => ({ name, dtype, shape })),
    shardsOf,
    parametersOf,
    roster: rosterOf({ ranks, coordinate, rankAt, config, parametersOf })
  })
}

/**
 * The roster, class by class: ranks with the same position and stage hold the same parameters, so these are described
 * once and not per rank.
 */
const rosterOf = (layout: {
  readonly ranks: ReadonlyArray<Rank>
  readonly coordinate: (rank: Rank) => { readonly tp: number; readonly dp: number; readonly pp: number }
  readonly rankAt: (tp: number, dp: number, pp: number) => Rank
  readonly config: ParallelConfig
  readonly parametersOf: (rank: Rank) => ReadonlyArray<ParameterMetadata>
}): Roster => {
  const { ranks, coordinate, rankAt, config } = layout
  const range = (count: number): ReadonlyArray<number> => Array.from({ length: count }, (_, at) => at)
  const structures = structureInterner()
  const classes: Array<ReadonlyArray<ClassParameter>> = []
  const classOf = new Map<string, number>()
  const lists: Array<ReadonlyArray<Rank>> = []
  const listOf = new Map<string, number>()
  const list = (key: string, members: () => ReadonlyArray<Rank>): number => {
    const known = listOf.get(key)
    if (known !== undefined) return known
    listOf.set(key, lists.length)
    lists.push(members())
    return lists.length - 1
  }
  const groupSets: Array<GroupSet> = []
  const members = ranks.map((rank): RosterMember => {
    const { tp, dp, pp } = coordinate(rank)
    const key = `${tp}/${pp}`
    let layoutClass = classOf.get(key)
    if (layoutClass === undefined) {
      const parameters = layout
        .parametersOf(rank)
        .map((parameter) => classParameter(parameter, structures.intern(parameter), 0))
      // Positions of a group whose shards are all equal share one class.
      const contents = `${pp} ${parameters.map((parameter) => parameter.structure).join(",")}`
      layoutClass = classOf.get(contents) ?? classes.push(parameters) - 1
      classOf.set(contents, layoutClass).set(key, layoutClass)
    }
    groupSets.push({
      tensorParallel: list(`tp ${dp}/${pp}`, () => range(config.tp).map((at) => rankAt(at, dp, pp))),
      expertParallel: null,
      dataParallel: list(`dp ${tp}/${pp}`, () => range(config.dp).map((at) => rankAt(tp, at, pp))),
      pipelineParallel: list(`pp ${tp}/${dp}`, () => range(config.pp).map((at) => rankAt(tp, dp, at)))
    })
    return { rank, layoutClass, groups: [groupSets.length - 1] }
  })
  return sealRoster({ version: 1, rankLists: lists, groupSets, structures: structures.values, classes, members })
}
