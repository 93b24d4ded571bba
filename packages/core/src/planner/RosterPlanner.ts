// SPDX-License-Identifier: Apache-2.0
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
import { wireDType } from "../base/DType.ts"
import type { Rank } from "../base/Ids.ts"
import type { PlanTensor, ReshardPlan } from "../ir/ReshardPlan.ts"
import type { TransferOp } from "../ir/TransferOp.ts"
import { type ClassParameter, type Roster, type RosterMember, rosterDigest } from "../layout/Roster.ts"
import { type Assignment, assigner, nothing } from "./Assignments.ts"
import { checkGroups } from "./GroupCheck.ts"
import { type ClassKind, type ParameterKind, parameterKinds } from "./ParameterKinds.ts"
import type { PlanError } from "./PlanError.ts"
import { checkRoster, indexRoster, type RosterIndex } from "./RosterIndex.ts"
import { isSharded, segmentsOf } from "./ShardSegments.ts"

/** Everything that plans of all ranks share. Make it once and plan many ranks from it. */
export interface PlanIndex {
  /** Who holds what before. */
  readonly source: RosterIndex
  /** Who holds what after. */
  readonly destination: RosterIndex
  /** Equal on ranks whose rosters are equal. */
  readonly rosterDigest: string
  /** Tasks of the whole job. */
  readonly taskCount: number
  /** Kinds of each destination class. */
  readonly kinds: ReadonlyArray<ReadonlyArray<ClassKind>>
  /** Whether the tensors that a source class serves have their global names there. */
  readonly isPlain: (layoutClass: number | undefined) => boolean
  /** First task id of each destination member, by position in the roster. */
  readonly firstTask: ReadonlyArray<number>
  /** First task id of each of a member's parameters, counted from the member's first. */
  readonly offsetsOf: (member: RosterMember) => ReadonlyArray<number>
  /** Nothing where a sender is stated and is none of the ranks that serve the member. */
  readonly assign: (member: RosterMember, kind: ParameterKind, sender?: Rank) => Assignment
}

/** Groups members that get the same number of tiles of everything: same class, position and choice of sources. */
const countTasks = (
  destination: RosterIndex,
  kinds: ReadonlyArray<ReadonlyArray<ClassKind>>,
  assign: ReturnType<typeof assigner>,
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

  /** Kinds of a class whose number of tiles depends on more than the member's shape. */
  const varying = kinds.map((own) => own.flatMap(({ kind }, at) => (isUniform(kind) ? [] : [at])))
  const counted = new Map<string, { readonly counts: ReadonlyArray<number>; readonly signature: string }>()
  const firstTask: Array<number> = []
  let taskCount = 0
  for (const member of destination.roster.members) {
    const { layoutClass } = member
    const [own, shape] = [kinds[layoutClass]!, shapeOf(member)]
    const known = counted.get(shape)
    const counts = known === undefined ? [] : [...known.counts]
    for (const at of known === undefined ? own.keys() : varying[layoutClass]!) {
      const assigned = assign(member, own[at]!.kind)
      if (Result.isFailure(assigned)) return Result.fail(assigned.failure)
      counts[at] = assigned.success.tiles.length
    }
    const isKnown = known !== undefined && varying[layoutClass]!.every((at) => counts[at] === known.counts[at])
    const signature = isKnown ? known.signature : `${layoutClass}|${counts.join(",")}`
    if (known === undefined) counted.set(shape, { counts, signature })
    if (!prefixes.has(signature)) {
      const perParameter = new Array<number>(destination.roster.classes[layoutClass]!.length).fill(0)
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
  const assign = assigner(from, to)
  const counted = countTasks(to, kinds.success, assign, uniformity(from, to))
  if (Result.isFailure(counted)) return Result.fail(counted.failure)
  return Result.succeed({
    source: from,
    destination: to,
    rosterDigest: rosterDigest(source, destination),
    kinds: kinds.success,
    isPlain: plainClasses(from),
    ...counted.success,
    // Groups were checked, and every combination was made once while tasks were counted, so none fails here.
    assign: (member, kind, sender) => Result.getOrElse(assign(member, kind, sender), () => nothing)
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
    const judged = known.get(kind) ?? judge(kind)
    known.set(kind, judged)
    return judged
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
  const isPlain = index.isPlain(sourceMember?.layoutClass)
  let byName: ReadonlyMap<string, ClassParameter> | undefined
  /** What this rank calls the tensor that serves a global name; an alias is served from the tensor it shares. */
  const localSource = (resolvedName: string): string => {
    if (isPlain) return resolvedName
    byName ??= new Map(sourceParameters.map((parameter) => [parameter.resolvedName, parameter]))
    const sourceNames = byName
    const own = sourceNames.get(resolvedName)
    if (own !== undefined && own.aliasOf === null) return own.name
    const target = own?.aliasOf ?? aliasTargets(source).get(resolvedName)
    return sourceNames.get(target ?? resolvedName)?.name ?? resolvedName
  }
  const ownClass = sourceMember?.layoutClass ?? -1
  /** By destination class, the kinds that this rank may serve. */
  const served = index.kinds.map((own) => own.filter(({ kind }) => kind.sources.has(ownClass)))
  let pairs = 0
  for (const [at, member] of destination.roster.members.entries()) {
    const receives = member.rank === rank
    const parameters = destination.roster.classes[member.layoutClass]!
    for (const { kind, positions } of (receives ? index.kinds : served)[member.layoutClass]!) {
      pairs += 1
      const { tiles, senders } = index.assign(member, kind, receives ? undefined : rank)
      if (!receives && !senders.includes(rank)) continue
      const { structure } = kind.destinations.get(member.layoutClass)!
      const targetDtype = destination.roster.structures[structure]!.dtype
      const wireDtype = wireDType(kind.sourceDtype, targetDtype)
      const ofSource = kind.sourceDtype === wireDtype ? {} : { peerDtype: kind.sourceDtype }
      const ofTarget = targetDtype === wireDtype ? {} : { peerDtype: targetDtype }
      const offsets = index.offsetsOf(member)
      for (let place = 0; place < positions.length; place++) {
        const position = positions[place]!
        const wanted = parameters[position]!
        for (let tileAt = 0; tileAt < tiles.length; tileAt++) {
          const tile = tiles[tileAt]!
          const sender = senders[tileAt]!
          const taskId = index.firstTask[at]! + offsets[position]! + tileAt
          if (receives) {
            recvOps.push({
              taskId,
              wireDtype,
              ...ofSource,
              paramName: wanted.name,
              peerRank: sender,
              isSend: false,
              mySlice: tile.destinationRegion,
              peerSlice: tile.sourceRegion
            })
          }
          if (sender === rank) {
            sendOps.push({
              taskId,
              wireDtype,
              ...ofTarget,
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
    version: 2,
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

/** Whether all tensors of a source class have one name, here and everywhere, and no name of the source is an alias. */
const plainClasses = ({ roster: { classes } }: RosterIndex): PlanIndex["isPlain"] => {
  const hasAliases = classes.some((parameters) => parameters.some(({ aliasOf }) => aliasOf !== null))
  const plain = classes.map(
    (parameters) => !hasAliases && parameters.every(({ name, resolvedName }) => name === resolvedName)
  )
  return (layoutClass) => layoutClass !== undefined && plain[layoutClass]!
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

/** Places of a rank's shards; tensors that are cut alike share theirs. */
const makePlaces = (index: RosterIndex, rank: Rank) => {
  const known = new Map<number, Map<number | undefined, NonNullable<PlanTensor["place"]>>>()
  const member = index.memberOf.get(rank)!
  return (parameter: ClassParameter): PlanTensor["place"] => {
    const shard = index.structureOf(parameter)
    if (shard.shape.length === 0) return undefined
    const list = isSharded(shard) ? index.listOf(member, parameter.groupSlot, "tensorParallel") : undefined
    const ofStructure =
      known.get(parameter.structure) ?? new Map<number | undefined, NonNullable<PlanTensor["place"]>>()
    known.set(parameter.structure, ofStructure)
    let place = ofStructure.get(list)
    if (place === undefined) {
      const group = list === undefined ? [] : [...index.roster.rankLists[list]!]
      place =
        list === undefined
          ? { dim: 0, intervals: [[0, shard.shape[0]!]], blocks: 0 }
          : {
              dim: shard.partitionDim,
              intervals: segmentsOf(shard, group.indexOf(rank), group.length).map(({ global }) => global),
              blocks: shard.partitionSizes?.length ?? 0
            }
      ofStructure.set(list, place)
    }
    return place
  }
}

const planTensors = (index: RosterIndex, rank: Rank): ReadonlyArray<PlanTensor> => {
  const parameters = parametersAt(index, rank)
  if (parameters.length === 0) return []
  const placeOf = makePlaces(index, rank)
  const tensors: Array<PlanTensor> = []
  for (const parameter of parameters) {
    if (parameter.aliasOf !== null) continue
    const { shape, dtype } = index.structureOf(parameter)
    const { name, resolvedName } = parameter
    const place = placeOf(parameter)
    tensors.push(
      place === undefined ? { name, resolvedName, shape, dtype } : { name, resolvedName, shape, dtype, place }
    )
  }
  return tensors
}

const localAliases = (index: RosterIndex, rank: Rank): ReshardPlan["aliases"] => {
  const parameters = parametersAt(index, rank)
  if (!parameters.some(({ aliasOf }) => aliasOf !== null)) return []
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
