// SPDX-License-Identifier: Apache-2.0
/**
 * Which tiles one destination rank gets of one kind of parameter, and who sends them. Pure.
 *
 * Invariant: shards are looked up once per kind and pattern, and tiles are made once per combination of shards.
 */
import * as Result from "effect/Result"
import { bitsOf, isCastable, isSubByte } from "../base/DType.ts"
import type { Rank } from "../base/Ids.ts"
import { elementCount, formatRegion, type Region } from "../base/Region.ts"
import type { ParameterStructure, RosterMember } from "../layout/Roster.ts"
import type { Holding, ParameterKind } from "./ParameterKinds.ts"
import { type PlanError, type PlanErrorKind, planError } from "./PlanError.ts"
import type { RosterIndex } from "./RosterIndex.ts"
import { isSharded, type ShardedSide, type Tile } from "./ShardSegments.ts"
import { shardTiles } from "./ShardTiles.ts"
import { type Candidate, selectSource } from "./SourceSelection.ts"

/** The shards of one kind in one tensor-parallel group, or the single shard of a parameter that is not sharded. */
interface Shards {
  readonly side: ShardedSide
  /** Equal for equal shards; part of cache keys. */
  readonly key: string
  readonly ranks: ReadonlyArray<Rank>
}

/** What one destination rank gets of one kind. */
export interface Assignment {
  readonly tiles: ReadonlyArray<Tile>
  /** The rank that sends each tile. */
  readonly senders: ReadonlyArray<Rank>
}

/** What cannot be assigned, or is not looked for. */
export const nothing: Assignment = { tiles: [], senders: [] }

const refuse = (
  name: string,
  ranks: ReadonlyArray<Rank>,
  fault: { readonly kind: PlanErrorKind; readonly detail: string; readonly remedy: string }
): PlanError => planError(fault.kind, name, ranks, fault.detail, fault.remedy)

const cutsInsideByte = ({ dtype, shape }: ParameterStructure, region: Region): boolean => {
  if (!isSubByte(dtype)) return false
  let inner = bitsOf(dtype)
  for (let dim = shape.length - 1; dim >= 0; dim--) {
    const [start, stop] = region[dim]!
    if (start !== 0 || stop !== shape[dim]) {
      const rows = elementCount(shape.slice(0, dim))
      return (start * inner) % 8 !== 0 || (stop * inner) % 8 !== 0 || (rows > 1 && (shape[dim]! * inner) % 8 !== 0)
    }
    inner *= shape[dim]!
  }
  return false
}

/** Looks up shards by group and pattern, each pattern of a kind once. The groups were checked before. */
const shardFinder = (index: RosterIndex) => {
  const patterns = new Map<ParameterKind, Map<number, Result.Result<Omit<Shards, "ranks">, PlanError>>>()

  const shardsOfPattern = (
    kind: ParameterKind,
    holdings: ReadonlyMap<number, Holding>,
    pattern: number
  ): Result.Result<Omit<Shards, "ranks">, PlanError> => {
    const numbers = index.classesOf(pattern).map((layoutClass) => holdings.get(layoutClass)!.structure)
    const shards = numbers.map((number) => index.roster.structures[number]!)
    const [first] = shards
    const isAlike = (shard: ParameterStructure, position: number): boolean =>
      shard.isTp === first!.isTp &&
      shard.dtype === first!.dtype &&
      shard.partitionDim === first!.partitionDim &&
      (shard.partitionOffsets === null) === (first!.partitionOffsets === null) &&
      (first!.partitionOffsets !== null || numbers[position] === numbers[0])
    if (shards.every(isAlike)) return Result.succeed({ side: { shards }, key: numbers.join(",") })
    return Result.fail(
      planError(
        "InconsistentGroup",
        kind.name,
        [],
        `Ranks of one ${index.side} tensor-parallel group state different layouts.`,
        "State the same dimension, stride, block sizes and type on every rank of the group."
      )
    )
  }

  return (
    kind: ParameterKind,
    holdings: ReadonlyMap<number, Holding>,
    member: RosterMember
  ): Result.Result<Shards, PlanError> => {
    const { structure, groupSlot } = holdings.get(member.layoutClass)!
    const shard = index.roster.structures[structure]!
    if (!isSharded(shard)) {
      return Result.succeed({ side: { shards: [shard] }, key: String(structure), ranks: [member.rank] })
    }
    const list = index.listOf(member, groupSlot, "tensorParallel")!
    const pattern = index.patternOf(list)
    const known = patterns.get(kind) ?? new Map<number, Result.Result<Omit<Shards, "ranks">, PlanError>>()
    patterns.set(kind, known)
    const found = known.get(pattern) ?? shardsOfPattern(kind, holdings, pattern)
    known.set(pattern, found)
    return Result.map(found, (shards) => ({ ...shards, ranks: index.roster.rankLists[list]! }))
  }
}

/** Makes the tiles of one kind for one position, once per combination of shards. */
const tileMaker = () => {
  const cache = new Map<ParameterKind, Map<string, Result.Result<ReadonlyArray<Tile>, PlanError>>>()
  const make = (
    kind: ParameterKind,
    rank: Rank,
    from: Shards,
    to: Shards,
    position: number,
    preferred: number
  ): Result.Result<ReadonlyArray<Tile>, PlanError> => {
    const wanted = to.side.shards[position]!
    if (!isCastable(kind.sourceDtype, wanted.dtype)) {
      return Result.fail(
        planError(
          "DTypeMismatch",
          kind.name,
          [rank],
          `The source holds ${kind.sourceDtype}, the destination wants ${wanted.dtype}; there is no conversion.`,
          "Use the same element type on both sides."
        )
      )
    }
    const tiles = shardTiles(from.side, to.side, position, preferred)
    if (Result.isFailure(tiles)) return Result.fail(refuse(kind.name, [rank], tiles.failure))
    for (const tile of tiles.success) {
      const cut = [
        [from.side.shards[tile.source]!, tile.sourceRegion] as const,
        [wanted, tile.destinationRegion] as const
      ].find(([shard, region]) => cutsInsideByte(shard, region))
      if (cut === undefined) continue
      return Result.fail(
        planError(
          "CutInsideByte",
          kind.name,
          [rank],
          `Region ${formatRegion(cut[1])} of ${cut[0].dtype} cuts a byte in two.`,
          "Choose a layout whose shards are whole bytes."
        )
      )
    }
    return Result.succeed(tiles.success)
  }
  return (kind: ParameterKind, rank: Rank, from: Shards, to: Shards, position: number, preferred: number) => {
    const key = `${position}|${preferred}|${to.key}|${from.key}`
    const known = cache.get(kind) ?? new Map<string, Result.Result<ReadonlyArray<Tile>, PlanError>>()
    cache.set(kind, known)
    const found = known.get(key) ?? make(kind, rank, from, to, position, preferred)
    known.set(key, found)
    return found
  }
}

/** Assigns kinds to members of the destination; the groups of both sides were checked before. */
export const assigner = (source: RosterIndex, destination: RosterIndex) => {
  const sourceShards = shardFinder(source)
  const destinationShards = shardFinder(destination)
  const tilesOf = tileMaker()

  const choose = (member: RosterMember, kind: ParameterKind): Result.Result<Candidate, PlanError> => {
    const { structure, groupSlot } = kind.destinations.get(member.layoutClass)!
    const isExpert = destination.roster.structures[structure]!.isEp
    const list = isExpert ? destination.listOf(member, groupSlot, "expertParallel") : undefined
    const group = list === undefined ? null : destination.roster.rankLists[list]!
    const chosen = selectSource(kind.candidates, member.rank, group)
    return Result.mapError(chosen, (fault) => refuse(kind.name, [member.rank], fault))
  }

  /** What a member gets of a kind. Nothing where a sender is stated and is none of the ranks that serve the member. */
  return (member: RosterMember, kind: ParameterKind, sender?: Rank): Result.Result<Assignment, PlanError> => {
    const chosen = choose(member, kind)
    if (Result.isFailure(chosen)) return Result.fail(chosen.failure)
    const from = sourceShards(kind, kind.sources, source.memberOf.get(chosen.success.rank)!)
    if (Result.isFailure(from)) return Result.fail(from.failure)
    const { ranks } = from.success
    if (sender !== undefined && !ranks.includes(sender)) return Result.succeed(nothing)
    const to = destinationShards(kind, kind.destinations, member)
    if (Result.isFailure(to)) return Result.fail(to.failure)
    const [position, preferred] = [to.success.ranks.indexOf(member.rank), ranks.indexOf(member.rank)]
    return Result.map(tilesOf(kind, member.rank, from.success, to.success, position, preferred), (tiles) => ({
      tiles,
      senders: tiles.map((tile) => ranks[tile.source]!)
    }))
  }
}
