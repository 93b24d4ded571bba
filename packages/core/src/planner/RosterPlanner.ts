/**
 * Turns two rosters into one rank's plan. Pure; every rank plans alone and both ends of a transfer get the same task id.
 *
 * Task ids count up over destination ranks ascending, then over that rank's parameters in their order, then over the
 * tiles of one parameter. Ranks appended later therefore leave existing ids alone. (The order of Megatron-LM's
 * resharding planner, so that ids can be compared.)
 *
 * Cost: parameters are planned by kind, tensor-parallel groups by pattern, and ids come from prefix sums, so a rank pays
 * for its own operations and for one look at each rank that its own parameters may go to; never for the schedule of the
 * whole job.
 */
import * as Result from "effect/Result"
import { bitsOf, isCastable, isSubByte, wireDType } from "../base/DType.ts"
import type { Rank } from "../base/Ids.ts"
import { elementCount, formatRegion, type Region } from "../base/Region.ts"
import type { PlanTensor, ReshardPlan } from "../ir/ReshardPlan.ts"
import type { TransferOp } from "../ir/TransferOp.ts"
import { type ParameterStructure, type Roster, type RosterMember, rosterDigest } from "../layout/Roster.ts"
import { type ClassKind, type Holding, type ParameterKind, parameterKinds } from "./ParameterKinds.ts"
import { type PlanError, type PlanErrorKind, planError } from "./PlanError.ts"
import { checkRoster, indexRoster, type RosterIndex } from "./RosterIndex.ts"
import { isSharded, type ShardedSide, shardTiles, type Tile } from "./ShardTiles.ts"
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

/** Everything that plans of all ranks share. Make it once and plan many ranks from it. */
export interface PlanIndex {
  readonly source: RosterIndex
  readonly destination: RosterIndex
  readonly rosterDigest: string
  readonly taskCount: number
  /** Kinds of each destination class. */
  readonly kinds: ReadonlyArray<ReadonlyArray<ClassKind>>
  /** First task id of each destination member, by position in the roster. */
  readonly firstTask: ReadonlyArray<number>
  /** First task id of each of a member's parameters, counted from the member's first. */
  readonly offsetsOf: (member: RosterMember) => ReadonlyArray<number>
  readonly assign: (member: RosterMember, kind: ParameterKind) => Assignment
}

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

/** Members of one group must name the same group, else their shards do not belong together. */
const checkList = (
  index: RosterIndex,
  kind: ParameterKind,
  holdings: ReadonlyMap<number, Holding>,
  list: number
): PlanError | undefined => {
  const ranks = index.roster.rankLists[list]!
  for (const rank of ranks) {
    const member = index.memberOf.get(rank)
    const holding = member === undefined ? undefined : holdings.get(member.layoutClass)
    if (member === undefined || holding === undefined) {
      return planError(
        "InconsistentGroup",
        kind.name,
        [rank],
        `Rank ${rank} is in its ${index.side} tensor-parallel group [${ranks.join(",")}] but does not hold it.`,
        "All ranks of the group must list the parameter, empty shards included."
      )
    }
    if (index.listOf(member, holding.groupSlot, "tensorParallel") !== list) {
      return planError(
        "InconsistentGroup",
        kind.name,
        [rank],
        `Rank ${rank} is in the ${index.side} tensor-parallel group [${ranks.join(",")}] but names another one.`,
        "State the same group, in the same order, on every rank of it."
      )
    }
  }
  return undefined
}

/**
 * Checks the tensor-parallel groups of all members of one side, each group once for all kinds whose classes use the same
 * slots for it.
 */
const checkGroups = (
  index: RosterIndex,
  kinds: Iterable<ParameterKind>,
  holdingsOf: (kind: ParameterKind) => ReadonlyMap<number, Holding>
): PlanError | undefined => {
  const checked = new Set<string>()
  for (const kind of kinds) {
    const holdings = holdingsOf(kind)
    const slots = [...holdings.values()].map((holding) => `${holding.layoutClass}:${holding.groupSlot}`).join()
    for (const { layoutClass, groupSlot, structure } of holdings.values()) {
      const key = `${layoutClass}/${slots}`
      if (!isSharded(index.roster.structures[structure]!) || checked.has(key)) continue
      checked.add(key)
      const lists = new Set(
        index.membersOfClass[layoutClass]!.map((member) => index.listOf(member, groupSlot, "tensorParallel")!)
      )
      for (const list of lists) {
        const fault = checkList(index, kind, holdings, list)
        if (fault !== undefined) return fault
      }
    }
  }
  return undefined
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

const assigner = (source: RosterIndex, destination: RosterIndex) => {
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

  /** Where the destination's shard lies and what its shards and the source's are. */
  const locate = (member: RosterMember, kind: ParameterKind) => {
    const chosen = choose(member, kind)
    if (Result.isFailure(chosen)) return Result.fail(chosen.failure)
    const from = sourceShards(kind, kind.sources, source.memberOf.get(chosen.success.rank)!)
    if (Result.isFailure(from)) return Result.fail(from.failure)
    const to = destinationShards(kind, kind.destinations, member)
    if (Result.isFailure(to)) return Result.fail(to.failure)
    return Result.succeed({ from: from.success, to: to.success, position: to.success.ranks.indexOf(member.rank) })
  }

  const assign = (member: RosterMember, kind: ParameterKind): Result.Result<Assignment, PlanError> => {
    const located = locate(member, kind)
    if (Result.isFailure(located)) return Result.fail(located.failure)
    const { from, to, position } = located.success
    const preferred = from.ranks.indexOf(member.rank)
    return Result.map(tilesOf(kind, member.rank, from, to, position, preferred), (tiles) => ({
      tiles,
      senders: tiles.map((tile) => from.ranks[tile.source]!)
    }))
  }
  return { assign }
}

/** Groups members that get the same number of tiles of everything: same class, position and choice of sources. */
const countTasks = (
  destination: RosterIndex,
  kinds: ReadonlyArray<ReadonlyArray<ClassKind>>,
  assign: (member: RosterMember, kind: ParameterKind) => Result.Result<Assignment, PlanError>,
  isUniform: (kind: ParameterKind) => boolean
) => {
  const prefixes = new Map<string, { readonly offsets: ReadonlyArray<number>; readonly total: number }>()
  const signatures = new Map<number, string>()

  /** What decides the number of tiles, as far as a member's class and groups do. */
  const shapeOf = (member: RosterMember): string => {
    const slots = member.groups.map((_, slot) => {
      const list = destination.listOf(member, slot, "tensorParallel")
      if (list === undefined) return "-"
      return `${destination.patternOf(list)}:${destination.positionsIn(list).get(member.rank) ?? -1}`
    })
    return `${member.layoutClass}/${slots.join(",")}`
  }

  const counted = new Map<string, ReadonlyArray<number>>()
  const firstTask: Array<number> = []
  let taskCount = 0
  for (const member of destination.roster.members) {
    const shape = shapeOf(member)
    const own = kinds[member.layoutClass]!
    const known = counted.get(shape)
    const counts: Array<number> = []
    for (const [at, { kind }] of own.entries()) {
      if (known !== undefined && isUniform(kind)) {
        counts.push(known[at]!)
        continue
      }
      const assigned = assign(member, kind)
      if (Result.isFailure(assigned)) return Result.fail(assigned.failure)
      counts.push(assigned.success.tiles.length)
    }
    if (known === undefined) counted.set(shape, counts)
    const signature = known === counts ? shape : `${member.layoutClass}|${counts.join(",")}`
    if (!prefixes.has(signature)) {
      const perParameter = new Array<number>(destination.roster.classes[member.layoutClass]!.length).fill(0)
      for (const [at, { positions }] of own.entries())
        for (const position of positions) perParameter[position] = counts[at]!
      let total = 0
      const offsets = perParameter.map((count) => {
        total += count
        return total - count
      })
      prefixes.set(signature, { offsets, total })
    }
    signatures.set(member.rank, signature)
    firstTask.push(taskCount)
    taskCount += prefixes.get(signature)!.total
  }
  return Result.succeed({
    firstTask,
    taskCount,
    offsetsOf: (member: RosterMember) => prefixes.get(signatures.get(member.rank)!)!.offsets
  })
}

/**
 * Indexes two rosters for planning. Fails, equally on every rank, where the layouts do not describe one model.
 */
export const indexRosters = (source: Roster, destination: Roster): Result.Result<PlanIndex, PlanError> => {
  const from = indexRoster("source", source)
  const to = indexRoster("destination", destination)
  for (const side of [from, to]) {
    const checked = checkRoster(side)
    if (Result.isFailure(checked)) return Result.fail(checked.failure)
  }
  const kinds = parameterKinds(from, to)
  if (Result.isFailure(kinds)) return Result.fail(kinds.failure)
  const distinct = new Set(kinds.success.flatMap((own) => own.map(({ kind }) => kind)))
  const fault =
    checkGroups(to, distinct, (kind) => kind.destinations) ?? checkGroups(from, distinct, (kind) => kind.sources)
  if (fault !== undefined) return Result.fail(fault)
  const { assign } = assigner(from, to)
  const counted = countTasks(to, kinds.success, assign, uniformity(from, to))
  if (Result.isFailure(counted)) return Result.fail(counted.failure)
  return Result.succeed({
    source: from,
    destination: to,
    rosterDigest: rosterDigest(source, destination),
    kinds: kinds.success,
    ...counted.success,
    // Groups were checked, and every combination was made once while tasks were counted, so none fails here.
    assign: (member, kind) => Result.getOrElse(assign(member, kind), () => ({ tiles: [], senders: [] }))
  })
}

/**
 * True for kinds whose number of tiles does not depend on the replica that serves them: no experts on either side, and
 * all replicas cut alike in shards that do not overlap.
 */
const uniformity = (source: RosterIndex, destination: RosterIndex) => {
  const known = new Map<ParameterKind, boolean>()
  const judge = (kind: ParameterKind): boolean => {
    const keys = new Set<string>()
    for (const { structure } of kind.destinations.values()) {
      if (destination.roster.structures[structure]!.isEp) return false
    }
    for (const { layoutClass, structure, groupSlot } of kind.sources.values()) {
      const shard = source.roster.structures[structure]!
      if (shard.isEp || shard.partitionOffsets !== null) return false
      for (const member of source.membersOfClass[layoutClass]!) {
        const list = isSharded(shard) ? source.listOf(member, groupSlot, "tensorParallel")! : undefined
        keys.add(list === undefined ? `${structure}` : `${structure}x${source.roster.rankLists[list]!.length}`)
        if (keys.size > 1) return false
      }
    }
    return true
  }
  return (kind: ParameterKind): boolean => {
    const before = known.get(kind)
    if (before !== undefined) return before
    const now = judge(kind)
    known.set(kind, now)
    return now
  }
}

/** Size of what planning one rank looks at, for judging its cost. */
export interface PlanningWork {
  /** (destination rank, kind) pairs visited. */
  readonly pairs: number
  /** Operations made. */
  readonly operations: number
}

/** One rank's plan. A rank that is on neither side gets an empty one. */
export const planRank = (index: PlanIndex, rank: Rank): ReshardPlan => measuredPlanRank(index, rank).plan

/** `planRank` with the work it took. */
export const measuredPlanRank = (
  index: PlanIndex,
  rank: Rank
): { readonly plan: ReshardPlan; readonly work: PlanningWork } => {
  const { source, destination } = index
  const sendOps: Array<TransferOp> = []
  const recvOps: Array<TransferOp> = []
  const sourceMember = source.memberOf.get(rank)
  const sourceParameters = sourceMember === undefined ? [] : source.roster.classes[sourceMember.layoutClass]!
  const sourceNames = new Map(sourceParameters.map((parameter) => [parameter.resolvedName, parameter]))
  /** What this rank calls the tensor that serves a global name; an alias is served from the tensor it shares. */
  const localSource = (resolvedName: string): string => {
    const own = sourceNames.get(resolvedName)
    if (own !== undefined && own.aliasOf === null) return own.name
    const target = own?.aliasOf ?? aliasTargets(source).get(resolvedName)
    return sourceNames.get(target ?? resolvedName)?.name ?? resolvedName
  }
  let pairs = 0
  for (const [at, member] of destination.roster.members.entries()) {
    const receives = member.rank === rank
    const parameters = destination.roster.classes[member.layoutClass]!
    for (const { kind, positions } of index.kinds[member.layoutClass]!) {
      const mayServe = sourceMember !== undefined && kind.sources.has(sourceMember.layoutClass)
      if (!receives && !mayServe) continue
      pairs += 1
      const { tiles, senders } = index.assign(member, kind)
      if (!receives && !senders.includes(rank)) continue
      const { structure } = kind.destinations.get(member.layoutClass)!
      const wireDtype = wireDType(kind.sourceDtype, destination.roster.structures[structure]!.dtype)
      const offsets = index.offsetsOf(member)
      for (const position of positions) {
        const wanted = parameters[position]!
        for (const [tileAt, tile] of tiles.entries()) {
          const sender = senders[tileAt]!
          const common = { taskId: index.firstTask[at]! + offsets[position]! + tileAt, wireDtype }
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
          if (sender === rank) {
            sendOps.push({
              ...common,
              paramName: localSource(wanted.resolvedName),
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
  const plan: ReshardPlan = {
    format: "tensorferry.reshard-plan",
    version: 1,
    rank,
    sourceTensors: planTensors(source, rank),
    destinationTensors: planTensors(destination, rank),
    aliases: localAliases(destination, rank),
    sendOps: sendOps.sort(byTask),
    recvOps: recvOps.sort(byTask),
    taskCount: index.taskCount,
    rosterDigest: index.rosterDigest
  }
  return { plan, work: { pairs, operations: sendOps.length + recvOps.length } }
}

/** Alias to the name that owns its storage, as any source rank declares it. */
const aliasTargets = (source: RosterIndex): ReadonlyMap<string, string> =>
  new Map(
    source.roster.classes.flatMap((parameters) =>
      parameters.flatMap(({ resolvedName, aliasOf }) => (aliasOf === null ? [] : [[resolvedName, aliasOf] as const]))
    )
  )

const parametersAt = (index: RosterIndex, rank: Rank) => {
  const member = index.memberOf.get(rank)
  return member === undefined ? [] : index.roster.classes[member.layoutClass]!
}

const planTensors = (index: RosterIndex, rank: Rank): ReadonlyArray<PlanTensor> =>
  parametersAt(index, rank).flatMap((parameter) => {
    if (parameter.aliasOf !== null) return []
    const { shape, dtype } = index.structureOf(parameter)
    return [{ name: parameter.name, resolvedName: parameter.resolvedName, shape, dtype }]
  })

const localAliases = (index: RosterIndex, rank: Rank): ReshardPlan["aliases"] => {
  const parameters = parametersAt(index, rank)
  const names = new Map(parameters.map((parameter) => [parameter.resolvedName, parameter.name]))
  return parameters.flatMap(({ name, aliasOf }) =>
    aliasOf === null ? [] : [[name, names.get(aliasOf) ?? aliasOf] as const]
  )
}

/** Index and plan in one step, for callers that need one rank only. */
export const buildReshardPlan = (
  source: Roster,
  destination: Roster,
  rank: Rank
): Result.Result<ReshardPlan, PlanError> =>
  Result.map(indexRosters(source, destination), (index) => planRank(index, rank))
