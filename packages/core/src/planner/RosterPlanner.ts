/**
 * Turns two rosters into one rank's plan. Pure; every rank plans alone and both ends of a transfer get the same task id.
 *
 * Task ids count up over destination ranks ascending, then over that rank's parameters in their order, then over the
 * tiles of one parameter. Ranks appended later therefore leave existing ids alone. (The order of Megatron-LM's
 * resharding planner, so that ids can be compared.)
 *
 * Cost: parameters that are held and wanted in the same way are planned as one group. Ids come from prefix sums over
 * groups and ranks, so a rank pays for its own operations and one look at every (destination rank, group), never for
 * the schedule of the whole job.
 */
import * as Result from "effect/Result"
import { bitsOf, type DType, isCastable, isSubByte, wireDType } from "../base/DType.ts"
import type { Rank } from "../base/Ids.ts"
import { elementCount, formatRegion, type Region, type Shape } from "../base/Region.ts"
import type { PlanTensor, ReshardPlan } from "../ir/ReshardPlan.ts"
import type { TransferOp } from "../ir/TransferOp.ts"
import { type ClassParameter, groupRanks, type Roster, type RosterMember, rosterDigest } from "../layout/Roster.ts"
import { type PlanError, type PlanErrorKind, planError } from "./PlanError.ts"
import { isSharded, type ShardedSide, shardTiles, type Tile } from "./ShardTiles.ts"
import { type Candidate, type CandidateSet, candidateSet, selectSource } from "./SourceSelection.ts"

/** Parameters of one destination class that are held and wanted alike. */
interface ParameterGroup {
  /** Positions in the class. */
  readonly positions: Array<number>
  readonly destination: ClassParameter
  readonly candidates: CandidateSet
  /** Where each candidate class keeps the parameter at `positions[i]`. */
  readonly sourcePosition: Array<ReadonlyMap<number, number>>
  readonly tiles: Map<string, ReadonlyArray<Tile>>
  /** Shards of tensor-parallel groups already looked up, by number of the group's rank list. */
  readonly sourceShards: Map<number, Shards>
  readonly destinationShards: Map<number, Shards>
}

/** The shards of one tensor-parallel group and who owns each. */
interface Shards {
  readonly side: ShardedSide
  readonly ranks: ReadonlyArray<Rank>
  /** Equal for groups whose shards are equal one by one. */
  readonly structure: string
}

/** What one destination rank gets for one group. */
interface Assignment {
  /** The rank that sends each tile. */
  readonly senders: ReadonlyArray<Rank>
  readonly tiles: ReadonlyArray<Tile>
}

/** Everything that plans of all ranks share. Make it once and plan many ranks from it. */
export interface PlanIndex {
  readonly source: Roster
  readonly destination: Roster
  readonly rosterDigest: string
  readonly taskCount: number
  /** First task id of each destination member, by position in the roster. */
  readonly firstTask: ReadonlyArray<number>
  /** Groups of each destination class. */
  readonly groups: ReadonlyArray<ReadonlyArray<ParameterGroup>>
  /** By destination member and group. */
  readonly assignments: ReadonlyArray<ReadonlyArray<Assignment>>
  /** First task id of each parameter, relative to the member's first; by destination member. */
  readonly offsets: ReadonlyArray<ReadonlyArray<number>>
  /** Type in which a parameter leaves its sources, by global name. */
  readonly sourceDTypes: ReadonlyMap<string, DType>
}

/** How one class holds a parameter, without its names. */
const structureKey = (parameter: ClassParameter): string => {
  const {
    name: _name,
    resolvedName: _resolved,
    globalExpertIndex: _expert,
    groupSlot: _slot,
    aliasOf: _alias,
    ...rest
  } = parameter
  return JSON.stringify(rest)
}

interface Holder {
  readonly layoutClass: number
  readonly position: number
}

/** Global name to the classes that hold it; aliases of the source lead to the tensor that they share. */
const holdersByName = (roster: Roster): Result.Result<ReadonlyMap<string, ReadonlyArray<Holder>>, PlanError> => {
  const holders = new Map<string, Array<Holder>>()
  const aliases = new Map<string, string>()
  for (const [layoutClass, parameters] of roster.classes.entries()) {
    const seen = new Set<string>()
    for (const [position, parameter] of parameters.entries()) {
      if (seen.has(parameter.resolvedName)) return Result.fail(duplicate(roster, layoutClass, parameter, "source"))
      seen.add(parameter.resolvedName)
      if (parameter.aliasOf !== null) {
        aliases.set(parameter.resolvedName, parameter.aliasOf)
        continue
      }
      const known = holders.get(parameter.resolvedName)
      if (known === undefined) holders.set(parameter.resolvedName, [{ layoutClass, position }])
      else known.push({ layoutClass, position })
    }
  }
  for (const [alias, target] of aliases) {
    const shared = holders.get(target)
    if (shared === undefined) {
      return Result.fail(
        planError(
          "InvalidMetadata",
          alias,
          [],
          `It is declared an alias of ${target}, which no source rank holds.`,
          "Name the tensor that owns the storage."
        )
      )
    }
    if (!holders.has(alias)) holders.set(alias, shared)
  }
  return Result.succeed(holders)
}

const ranksOfClass = (roster: Roster, layoutClass: number): ReadonlyArray<Rank> =>
  roster.members.filter((member) => member.layoutClass === layoutClass).map((member) => member.rank)

const duplicate = (roster: Roster, layoutClass: number, parameter: ClassParameter, side: string): PlanError =>
  planError(
    "DuplicateName",
    parameter.resolvedName,
    ranksOfClass(roster, layoutClass),
    `Two ${side} parameters of one rank have this global name (one is ${parameter.name} locally).`,
    "Give every parameter its own global name; check layer and expert numbers."
  )

interface MembersByClass {
  readonly members: ReadonlyArray<ReadonlyArray<RosterMember>>
  readonly byRank: ReadonlyMap<Rank, RosterMember>
}

const indexMembers = (roster: Roster): MembersByClass => {
  const members: Array<Array<RosterMember>> = roster.classes.map(() => [])
  for (const member of roster.members) members[member.layoutClass]!.push(member)
  return { members, byRank: new Map(roster.members.map((member) => [member.rank, member])) }
}

/** Checks that a rank belongs to the groups that it states for a parameter. */
const checkGroups = (
  roster: Roster,
  member: RosterMember,
  parameter: ClassParameter,
  side: string
): PlanError | undefined => {
  const missing = (group: string) =>
    planError(
      "MissingGroup",
      parameter.resolvedName,
      [member.rank],
      `The ${side} states no ${group} group for it.`,
      `State the ranks of the ${group} group.`
    )
  const outside = (group: string, ranks: ReadonlyArray<Rank>) =>
    planError(
      "NotInGroup",
      parameter.resolvedName,
      [member.rank],
      `The ${side} rank is not in the ${group} group [${ranks.join(",")}] that it states.`,
      "Correct the group, or the rank offset it was shifted by."
    )
  const data = groupRanks(roster, member, parameter, "dataParallel")
  if (data === null) return missing("data-parallel")
  if (!data.includes(member.rank)) return outside("data-parallel", data)
  if (isSharded(parameter)) {
    const tensor = groupRanks(roster, member, parameter, "tensorParallel")
    if (tensor === null) return missing("tensor-parallel")
    if (!tensor.includes(member.rank)) return outside("tensor-parallel", tensor)
    if (new Set(tensor).size !== tensor.length) {
      return planError(
        "InvalidMetadata",
        parameter.resolvedName,
        tensor,
        `Its tensor-parallel group [${tensor.join(",")}] repeats a rank.`,
        "List every rank once."
      )
    }
  }
  if (parameter.isEp) {
    const expert = groupRanks(roster, member, parameter, "expertParallel")
    if (expert === null) return missing("expert-parallel")
    if (!expert.includes(member.rank)) return outside("expert-parallel", expert)
  }
  return undefined
}

/** The shards of the group that `member` names, each as its owner states it. */
const shardsOf = (
  roster: Roster,
  byRank: ReadonlyMap<Rank, RosterMember>,
  member: RosterMember,
  parameter: ClassParameter,
  find: (layoutClass: number) => ClassParameter | undefined,
  side: string,
  keyOf: (parameter: ClassParameter) => number,
  cache: Map<number, Shards>
): Result.Result<Shards, PlanError> => {
  if (!isSharded(parameter)) {
    return Result.succeed({
      side: { shards: [parameter] },
      ranks: [member.rank],
      structure: String(keyOf(parameter))
    })
  }
  const list = roster.groupSets[member.groups[parameter.groupSlot]!]!.tensorParallel!
  const cached = cache.get(list)
  if (cached !== undefined) return Result.succeed(cached)
  const ranks = roster.rankLists[list]!
  const shards: Array<ClassParameter> = []
  for (const rank of ranks) {
    const owner = byRank.get(rank)
    const shard = owner === undefined ? undefined : find(owner.layoutClass)
    if (owner === undefined || shard === undefined) {
      return Result.fail(
        planError(
          "InconsistentGroup",
          parameter.resolvedName,
          [member.rank, rank],
          `Rank ${rank} is in its ${side} tensor-parallel group [${ranks.join(",")}] but does not hold it.`,
          "All ranks of the group must list the parameter, empty shards included."
        )
      )
    }
    const theirs = groupRanks(roster, owner, shard, "tensorParallel")
    const alike =
      shard.isTp === parameter.isTp &&
      shard.partitionDim === parameter.partitionDim &&
      (shard.partitionOffsets === null) === (parameter.partitionOffsets === null) &&
      (parameter.partitionOffsets !== null || structureKey(shard) === structureKey(parameter)) &&
      shard.dtype === parameter.dtype &&
      theirs !== null &&
      theirs.length === ranks.length &&
      theirs.every((other, at) => other === ranks[at])
    if (!alike) {
      return Result.fail(
        planError(
          "InconsistentGroup",
          parameter.resolvedName,
          [member.rank, rank],
          `Ranks ${member.rank} and ${rank} share a ${side} tensor-parallel group but state different layouts.`,
          "State the same dimension, stride, block sizes, type and group on every rank of it."
        )
      )
    }
    shards.push(shard)
  }
  const found = { side: { shards }, ranks, structure: shards.map(keyOf).join(",") }
  cache.set(list, found)
  return Result.succeed(found)
}

const refuse = (
  name: string,
  ranks: ReadonlyArray<Rank>,
  fault: { readonly kind: PlanErrorKind; readonly detail: string; readonly remedy: string }
): PlanError => planError(fault.kind, name, ranks, fault.detail, fault.remedy)

/** One type per name: replicas must agree, except persistent buffers, which travel in the widest of their types. */
const sourceTypes = (
  source: Roster,
  holders: ReadonlyMap<string, ReadonlyArray<Holder>>
): Result.Result<ReadonlyMap<string, DType>, PlanError> => {
  const types = new Map<string, DType>()
  for (const [name, list] of holders) {
    let widest: DType | undefined
    for (const holder of list) {
      const parameter = source.classes[holder.layoutClass]![holder.position]!
      if (widest === undefined || widest === parameter.dtype) widest = parameter.dtype
      else if (!parameter.isPersistentBuffer) {
        return Result.fail(
          planError(
            "DTypeMismatch",
            name,
            ranksOfClass(source, holder.layoutClass),
            `Source ranks hold it as ${widest} and as ${parameter.dtype}.`,
            "Use one element type for all replicas of a parameter."
          )
        )
      } else if (bitsOf(parameter.dtype) > bitsOf(widest)) widest = parameter.dtype
    }
    types.set(name, widest!)
  }
  return Result.succeed(types)
}

/** Groups the parameters of one destination class. */
const groupClass = (
  index: {
    readonly source: Roster
    readonly destination: Roster
    readonly holders: ReadonlyMap<string, ReadonlyArray<Holder>>
  },
  layoutClass: number,
  candidatesOf: (holders: ReadonlyArray<Holder>) => CandidateSet,
  keyOf: (parameter: ClassParameter) => number,
  siblings: ReadonlyMap<string, string>
): Result.Result<ReadonlyArray<ParameterGroup>, PlanError> => {
  const groups = new Map<string, ParameterGroup>()
  const seen = new Set<string>()
  for (const [position, parameter] of index.destination.classes[layoutClass]!.entries()) {
    if (seen.has(parameter.resolvedName))
      return Result.fail(duplicate(index.destination, layoutClass, parameter, "destination"))
    seen.add(parameter.resolvedName)
    if (parameter.aliasOf !== null) {
      const target = index.destination.classes[layoutClass]!.find((other) => other.resolvedName === parameter.aliasOf)
      if (target !== undefined && target.aliasOf === null) continue
      return Result.fail(
        planError(
          "InvalidMetadata",
          parameter.resolvedName,
          ranksOfClass(index.destination, layoutClass),
          `It is declared an alias of ${parameter.aliasOf}, which its own rank does not hold.`,
          "Declare an alias only where the owner of the storage is on the same rank."
        )
      )
    }
    const holders = index.holders.get(parameter.resolvedName)
    if (holders === undefined) {
      return Result.fail(
        planError(
          "MissingSource",
          parameter.resolvedName,
          ranksOfClass(index.destination, layoutClass),
          "No source rank holds it.",
          "Add it to the source, declare it an alias, or leave it out of the destination."
        )
      )
    }
    const held = holders.map((holder) => {
      const source = index.source.classes[holder.layoutClass]![holder.position]!
      return `${holder.layoutClass}:${source.groupSlot}:${keyOf(source)}`
    })
    const key = `${keyOf(parameter)}|${parameter.groupSlot}|${siblings.get(parameter.resolvedName)}|${held.join(",")}`
    const sourcePosition = new Map(holders.map((holder) => [holder.layoutClass, holder.position]))
    const known = groups.get(key)
    if (known !== undefined) {
      known.positions.push(position)
      known.sourcePosition.push(sourcePosition)
      continue
    }
    groups.set(key, {
      positions: [position],
      destination: parameter,
      candidates: candidatesOf(holders),
      sourcePosition: [sourcePosition],
      tiles: new Map(),
      sourceShards: new Map(),
      destinationShards: new Map()
    })
  }
  return Result.succeed([...groups.values()])
}

const cutsInsideByte = (dtype: DType, shape: Shape, region: Region): boolean => {
  if (!isSubByte(dtype)) return false
  const bits = bitsOf(dtype)
  let inner = bits
  for (let dim = shape.length - 1; dim >= 0; dim--) {
    const [start, stop] = region[dim]!
    const whole = start === 0 && stop === shape[dim]
    if (!whole) {
      const rows = elementCount(shape.slice(0, dim))
      return (start * inner) % 8 !== 0 || (stop * inner) % 8 !== 0 || (rows > 1 && (shape[dim]! * inner) % 8 !== 0)
    }
    inner *= shape[dim]!
  }
  return false
}

/** Indexes two rosters for planning. Fails, equally on every rank, where the layouts do not describe one model. */
export const indexRosters = (source: Roster, destination: Roster): Result.Result<PlanIndex, PlanError> => {
  const holders = holdersByName(source)
  if (Result.isFailure(holders)) return Result.fail(holders.failure)
  const types = sourceTypes(source, holders.success)
  if (Result.isFailure(types)) return Result.fail(types.failure)
  const sources = indexMembers(source)
  const destinations = indexMembers(destination)
  for (const [roster, index, side] of [
    [source, sources, "source"],
    [destination, destinations, "destination"]
  ] as const) {
    for (const [layoutClass, parameters] of roster.classes.entries()) {
      const checked = new Set<string>()
      for (const parameter of parameters) {
        if (parameter.aliasOf !== null) continue
        const key = `${parameter.groupSlot}/${isSharded(parameter)}/${parameter.isEp}`
        if (checked.has(key)) continue
        checked.add(key)
        for (const member of index.members[layoutClass]!) {
          const wrong = checkGroups(roster, member, parameter, side)
          if (wrong !== undefined) return Result.fail(wrong)
        }
      }
    }
  }

  const structures = new Map<string, number>()
  const structureNumbers = new Map<ClassParameter, number>()
  const keyOf = (parameter: ClassParameter): number => {
    const known = structureNumbers.get(parameter)
    if (known !== undefined) return known
    const key = structureKey(parameter)
    const number = structures.get(key) ?? structures.size
    structures.set(key, number)
    structureNumbers.set(parameter, number)
    return number
  }
  const sets = new Map<string, CandidateSet>()
  const candidatesOf = (list: ReadonlyArray<Holder>): CandidateSet => {
    const key = list
      .map((holder) => `${holder.layoutClass}:${source.classes[holder.layoutClass]![holder.position]!.groupSlot}`)
      .join(",")
    const known = sets.get(key)
    if (known !== undefined) return known
    const candidates = list
      .flatMap((holder) =>
        sources.members[holder.layoutClass]!.map((member): Candidate => {
          const parameter = source.classes[holder.layoutClass]![holder.position]!
          return {
            rank: member.rank,
            layoutClass: holder.layoutClass,
            parameter: holder.position,
            tensorParallel: groupRanks(source, member, parameter, "tensorParallel"),
            expertParallel: groupRanks(source, member, parameter, "expertParallel"),
            dataParallel: groupRanks(source, member, parameter, "dataParallel") ?? []
          }
        })
      )
      .sort((a, b) => a.rank - b.rank)
    const set = candidateSet(candidates)
    sets.set(key, set)
    return set
  }

  // How all destination classes hold a name: parameters of one group are alike on every rank, not just on this one.
  const siblings = new Map<string, string>()
  const destinationPositions = new Map<string, Map<number, ClassParameter>>()
  for (const [layoutClass, parameters] of destination.classes.entries()) {
    for (const parameter of parameters) {
      const byClass = destinationPositions.get(parameter.resolvedName) ?? new Map<number, ClassParameter>()
      destinationPositions.set(parameter.resolvedName, byClass.set(layoutClass, parameter))
      const before = siblings.get(parameter.resolvedName) ?? ""
      siblings.set(parameter.resolvedName, `${before}${layoutClass}:${keyOf(parameter)},`)
    }
  }

  const groups: Array<ReadonlyArray<ParameterGroup>> = []
  for (const layoutClass of destination.classes.keys()) {
    const grouped = groupClass(
      { source, destination, holders: holders.success },
      layoutClass,
      candidatesOf,
      keyOf,
      siblings
    )
    if (Result.isFailure(grouped)) return Result.fail(grouped.failure)
    groups.push(grouped.success)
  }

  const assign = (member: RosterMember, group: ParameterGroup): Result.Result<Assignment, PlanError> => {
    const wanted = group.destination
    const name = wanted.resolvedName
    const expertGroup = wanted.isEp ? groupRanks(destination, member, wanted, "expertParallel") : null
    const chosen = selectSource(group.candidates, member.rank, expertGroup)
    if (Result.isFailure(chosen)) return Result.fail(refuse(name, [member.rank], chosen.failure))
    const candidate = chosen.success
    const owner = sources.byRank.get(candidate.rank)!
    const positions = group.sourcePosition[0]!
    const held = source.classes[candidate.layoutClass]![positions.get(candidate.layoutClass)!]!
    const from = shardsOf(
      source,
      sources.byRank,
      owner,
      held,
      (layoutClass) => {
        const position = positions.get(layoutClass)
        return position === undefined ? undefined : source.classes[layoutClass]![position]
      },
      "source",
      keyOf,
      group.sourceShards
    )
    if (Result.isFailure(from)) return Result.fail(from.failure)
    const to = shardsOf(
      destination,
      destinations.byRank,
      member,
      wanted,
      (layoutClass) => destinationPositions.get(name)?.get(layoutClass),
      "destination",
      keyOf,
      group.destinationShards
    )
    if (Result.isFailure(to)) return Result.fail(to.failure)
    const at = to.success.ranks.indexOf(member.rank)
    const preferred = from.success.ranks.indexOf(member.rank)
    const key = `${at}|${preferred}|${to.success.structure}|${from.success.structure}`
    const known = group.tiles.get(key)
    if (known !== undefined) return Result.succeed(assignment(known, from.success.ranks))
    const sourceType = types.success.get(name)!
    if (!isCastable(sourceType, wanted.dtype)) {
      return Result.fail(
        planError(
          "DTypeMismatch",
          name,
          [member.rank],
          `The source holds ${sourceType}, the destination wants ${wanted.dtype}; there is no conversion.`,
          "Use the same element type on both sides."
        )
      )
    }
    const tiles = shardTiles(from.success.side, to.success.side, at, preferred)
    if (Result.isFailure(tiles)) return Result.fail(refuse(name, [member.rank], tiles.failure))
    for (const tile of tiles.success) {
      const shard = from.success.side.shards[tile.source]!
      for (const [shape, region, dtype] of [
        [shard.shape, tile.sourceRegion, shard.dtype],
        [wanted.shape, tile.destinationRegion, wanted.dtype]
      ] as const) {
        if (!cutsInsideByte(dtype, shape, region)) continue
        return Result.fail(
          planError(
            "CutInsideByte",
            name,
            [member.rank],
            `Region ${formatRegion(region)} of ${dtype} cuts a byte in two.`,
            "Choose a layout whose shards are whole bytes."
          )
        )
      }
    }
    group.tiles.set(key, tiles.success)
    return Result.succeed(assignment(tiles.success, from.success.ranks))
  }

  const assignments: Array<ReadonlyArray<Assignment>> = []
  const firstTask: Array<number> = []
  const offsets: Array<ReadonlyArray<number>> = []
  const offsetsByCounts = new Map<string, { readonly offsets: ReadonlyArray<number>; readonly total: number }>()
  let taskCount = 0
  for (const member of destination.members) {
    const own: Array<Assignment> = []
    for (const group of groups[member.layoutClass]!) {
      const assigned = assign(member, group)
      if (Result.isFailure(assigned)) return Result.fail(assigned.failure)
      own.push(assigned.success)
    }
    assignments.push(own)
    firstTask.push(taskCount)
    const key = `${member.layoutClass}|${own.map((assigned) => assigned.tiles.length).join(",")}`
    let prefix = offsetsByCounts.get(key)
    if (prefix === undefined) {
      const counts = new Array<number>(destination.classes[member.layoutClass]!.length).fill(0)
      for (const [at, group] of groups[member.layoutClass]!.entries()) {
        for (const position of group.positions) counts[position] = own[at]!.tiles.length
      }
      let total = 0
      const starts = counts.map((count) => {
        const start = total
        total += count
        return start
      })
      prefix = { offsets: starts, total }
      offsetsByCounts.set(key, prefix)
    }
    offsets.push(prefix.offsets)
    taskCount += prefix.total
  }
  return Result.succeed({
    source,
    destination,
    rosterDigest: rosterDigest(source, destination),
    taskCount,
    firstTask,
    groups,
    assignments,
    offsets,
    sourceDTypes: types.success
  })
}

const assignment = (tiles: ReadonlyArray<Tile>, ranks: ReadonlyArray<Rank>): Assignment => ({
  tiles,
  senders: tiles.map((tile) => ranks[tile.source]!)
})

/** Size of what planning one rank looks at, for judging its cost. */
export interface PlanningWork {
  /** (destination rank, parameter group) pairs visited. */
  readonly pairs: number
  /** Operations made. */
  readonly operations: number
}

const planTensor = (parameter: ClassParameter): PlanTensor => ({
  name: parameter.name,
  resolvedName: parameter.resolvedName,
  shape: parameter.shape,
  dtype: parameter.dtype
})

/** One rank's plan. A rank that is on neither side gets an empty one. */
export const planRank = (index: PlanIndex, rank: Rank): ReshardPlan => measuredPlanRank(index, rank).plan

/** `planRank` with the work it took. */
export const measuredPlanRank = (
  index: PlanIndex,
  rank: Rank
): { readonly plan: ReshardPlan; readonly work: PlanningWork } => {
  const sendOps: Array<TransferOp> = []
  const recvOps: Array<TransferOp> = []
  const sourceMember = index.source.members.find((member) => member.rank === rank)
  const destinationMember = index.destination.members.find((member) => member.rank === rank)
  let pairs = 0
  for (const [at, member] of index.destination.members.entries()) {
    const classParameters = index.destination.classes[member.layoutClass]!
    for (const [groupAt, group] of index.groups[member.layoutClass]!.entries()) {
      pairs += 1
      const { senders, tiles } = index.assignments[at]![groupAt]!
      const receives = member.rank === rank
      if (!receives && !senders.includes(rank)) continue
      for (const [nth, position] of group.positions.entries()) {
        const wanted = classParameters[position]!
        const wire = wireDType(index.sourceDTypes.get(wanted.resolvedName)!, wanted.dtype)
        const first = index.firstTask[at]! + index.offsets[at]![position]!
        for (const [tileAt, tile] of tiles.entries()) {
          const sender = senders[tileAt]!
          const common = { taskId: first + tileAt, wireDtype: wire }
          if (receives) {
            recvOps.push({
              ...common,
              paramName: wanted.name,
              peerRank: sender,
              isSend: false,
              mySlice: tile.destinationRegion,
              peerSlice: tile.sourceRegion
            })
          }
          if (sender === rank && sourceMember !== undefined) {
            const held = group.sourcePosition[nth]!.get(sourceMember.layoutClass)!
            sendOps.push({
              ...common,
              paramName: index.source.classes[sourceMember.layoutClass]![held]!.name,
              peerRank: member.rank,
              isSend: true,
              mySlice: tile.sourceRegion,
              peerSlice: tile.destinationRegion
            })
          }
        }
      }
    }
  }
  const byTask = (a: TransferOp, b: TransferOp): number => a.taskId - b.taskId
  const destinationParameters =
    destinationMember === undefined ? [] : index.destination.classes[destinationMember.layoutClass]!
  const localNames = new Map(destinationParameters.map((parameter) => [parameter.resolvedName, parameter.name]))
  const plan: ReshardPlan = {
    format: "tensorferry.reshard-plan",
    version: 1,
    rank,
    sourceTensors:
      sourceMember === undefined
        ? []
        : index.source.classes[sourceMember.layoutClass]!.filter((parameter) => parameter.aliasOf === null).map(
            planTensor
          ),
    destinationTensors: destinationParameters.filter((parameter) => parameter.aliasOf === null).map(planTensor),
    aliases: destinationParameters
      .filter((parameter) => parameter.aliasOf !== null)
      .map((parameter) => [parameter.name, localNames.get(parameter.aliasOf!) ?? parameter.aliasOf!] as const),
    sendOps: sendOps.sort(byTask),
    recvOps: recvOps.sort(byTask),
    taskCount: index.taskCount,
    rosterDigest: index.rosterDigest
  }
  return { plan, work: { pairs, operations: sendOps.length + recvOps.length } }
}

/** Index and plan in one step, for callers that need one rank only. */
export const buildReshardPlan = (
  source: Roster,
  destination: Roster,
  rank: Rank
): Result.Result<ReshardPlan, PlanError> =>
  Result.map(indexRosters(source, destination), (index) => planRank(index, rank))
