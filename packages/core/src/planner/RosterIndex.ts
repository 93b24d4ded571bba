// SPDX-License-Identifier: Apache-2.0
/**
 * Look-ups over one side's roster, and the checks that every rank belongs to the groups it names.
 *
 * Two tensor-parallel groups whose members are in the same layout classes, position by position, hold the same shards of
 * every parameter. Such groups get one number here (`patternOf`), which is what planning works with.
 */
import * as Result from "effect/Result"
import type { Rank } from "../base/Ids.ts"
import { expertNumber } from "../layout/ParameterNames.ts"
import type { ClassParameter, GroupSet, ParameterStructure, Roster, RosterMember } from "../layout/Roster.ts"
import { type PlanError, planError } from "./PlanError.ts"
import { isSharded } from "./ShardSegments.ts"

export type Side = "source" | "destination"

export interface RosterIndex {
  readonly side: Side
  readonly roster: Roster
  readonly memberOf: ReadonlyMap<Rank, RosterMember>
  /** Members of each layout class, ascending. */
  readonly membersOfClass: ReadonlyArray<ReadonlyArray<RosterMember>>
  readonly structureOf: (parameter: ClassParameter) => ParameterStructure
  /** Position of each rank in a rank list. */
  readonly positionsIn: (list: number) => ReadonlyMap<Rank, number>
  /** Number of a rank list's sequence of layout classes. */
  readonly patternOf: (list: number) => number
  /** The layout classes of a pattern, by position. */
  readonly classesOf: (pattern: number) => ReadonlyArray<number>
  /** Number of the rank list of one of a member's groups; undefined where it is in no such group. */
  readonly listOf: (member: RosterMember, groupSlot: number, kind: keyof GroupSet) => number | undefined
}

export const indexRoster = (side: Side, roster: Roster): RosterIndex => {
  const membersOfClass: Array<Array<RosterMember>> = roster.classes.map(() => [])
  for (const member of roster.members) membersOfClass[member.layoutClass]!.push(member)
  const memberOf = new Map(roster.members.map((member) => [member.rank, member]))
  const positions = new Map<number, ReadonlyMap<Rank, number>>()
  const patternNumbers = new Map<string, number>()
  const patternClasses: Array<ReadonlyArray<number>> = []
  const patterns = new Map<number, number>()
  return {
    side,
    roster,
    memberOf,
    membersOfClass,
    structureOf: (parameter) => roster.structures[parameter.structure]!,
    positionsIn: (list) => {
      const known = positions.get(list)
      if (known !== undefined) return known
      const made = new Map(roster.rankLists[list]!.map((rank, position) => [rank, position]))
      positions.set(list, made)
      return made
    },
    patternOf: (list) => {
      const known = patterns.get(list)
      if (known !== undefined) return known
      const classes = roster.rankLists[list]!.map((rank) => memberOf.get(rank)?.layoutClass ?? -1)
      const key = classes.join(",")
      const number = patternNumbers.get(key) ?? patternClasses.push(classes) - 1
      patternNumbers.set(key, number)
      patterns.set(list, number)
      return number
    },
    classesOf: (pattern) => patternClasses[pattern]!,
    listOf: (member, groupSlot, kind) => roster.groupSets[member.groups[groupSlot]!]![kind] ?? undefined
  }
}

/** The ranks of a layout class, for errors. */
export const ranksOfClass = (index: RosterIndex, layoutClass: number): ReadonlyArray<Rank> =>
  index.membersOfClass[layoutClass]!.map((member) => member.rank)

/** Refuses two parameters of one rank under one global name. */
const checkNames = (index: RosterIndex): PlanError | undefined => {
  for (const [layoutClass, parameters] of index.roster.classes.entries()) {
    const seen = new Set<string>()
    for (let at = 0; at < parameters.length; at++) {
      const parameter = parameters[at]!
      if (seen.has(parameter.resolvedName)) {
        return planError(
          "DuplicateName",
          parameter.resolvedName,
          ranksOfClass(index, layoutClass),
          `Two ${index.side} parameters of one rank have this global name (one is ${parameter.name} locally).`,
          "Give every parameter its own global name; check layer and expert numbers."
        )
      }
      seen.add(parameter.resolvedName)
    }
  }
  return undefined
}

/** Refuses experts whose global number does not follow from the local one: two ranks' experts would get one name. */
const checkExperts = (index: RosterIndex): PlanError | undefined => {
  for (const [layoutClass, parameters] of index.roster.classes.entries()) {
    for (let at = 0; at < parameters.length; at++) {
      const parameter = parameters[at]!
      const { isEp } = index.structureOf(parameter)
      const { resolvedName, numExperts, globalExpertIndex, groupSlot } = parameter
      if (!isEp || numExperts === null || globalExpertIndex !== null || expertNumber(resolvedName) === null) continue
      for (const member of index.membersOfClass[layoutClass]!) {
        const list = index.listOf(member, groupSlot, "expertParallel")
        // A rank outside of its own group has a fault of its own.
        if (list === undefined || !index.positionsIn(list).has(member.rank)) continue
        const size = index.roster.rankLists[list]!.length
        return planError(
          "InvalidMetadata",
          resolvedName,
          [member.rank],
          `The ${index.side} states ${numExperts} experts over ${size} ranks, among which it cannot be the local expert ${expertNumber(resolvedName)}.`,
          "State the number of experts of the whole model, a multiple of the group's size, or global expert numbers."
        )
      }
    }
  }
  return undefined
}

const groupNames = {
  dataParallel: "data-parallel",
  tensorParallel: "tensor-parallel",
  expertParallel: "expert-parallel",
  pipelineParallel: "pipeline-parallel"
} as const

/** Checks that a rank belongs to the groups that a parameter needs. */
const checkMember = (index: RosterIndex, member: RosterMember, parameter: ClassParameter): PlanError | undefined => {
  const structure = index.structureOf(parameter)
  const needed: ReadonlyArray<keyof GroupSet> = [
    "dataParallel",
    ...(isSharded(structure) ? (["tensorParallel"] as const) : []),
    ...(structure.isEp ? (["expertParallel"] as const) : [])
  ]
  for (const kind of needed) {
    const list = index.listOf(member, parameter.groupSlot, kind)
    const group = groupNames[kind]
    const wrong = (tag: "MissingGroup" | "NotInGroup" | "InvalidMetadata", detail: string, remedy: string) =>
      planError(tag, parameter.resolvedName, [member.rank], detail, remedy)
    if (list === undefined) {
      return wrong(
        "MissingGroup",
        `The ${index.side} states no ${group} group for it.`,
        `State the ranks of the ${group} group.`
      )
    }
    const ranks = index.roster.rankLists[list]!
    const positions = index.positionsIn(list)
    if (!positions.has(member.rank)) {
      return wrong(
        "NotInGroup",
        `The ${index.side} rank is not in the ${group} group [${ranks.join(",")}] that it states.`,
        "Correct the group, or the rank offset it was shifted by."
      )
    }
    if (positions.size !== ranks.length) {
      return wrong(
        "InvalidMetadata",
        `Its ${group} group [${ranks.join(",")}] repeats a rank.`,
        "List every rank once."
      )
    }
  }
  return undefined
}

/** Checks names, group membership and expert numbers of a whole side. */
export const checkRoster = (index: RosterIndex): Result.Result<undefined, PlanError> => {
  // Experts first: their unresolved names could pass for duplicates.
  const fault = checkExperts(index) ?? checkNames(index)
  if (fault !== undefined) return Result.fail(fault)
  for (const [layoutClass, parameters] of index.roster.classes.entries()) {
    // Parameters that need the same groups in the same slot are checked once.
    const representatives = new Map<string, ClassParameter>()
    const seen = new Map<number, Set<number>>()
    for (let at = 0; at < parameters.length; at++) {
      const parameter = parameters[at]!
      if (parameter.aliasOf !== null) continue
      const slots = seen.get(parameter.structure) ?? new Set<number>()
      if (slots.has(parameter.groupSlot)) continue
      seen.set(parameter.structure, slots.add(parameter.groupSlot))
      const structure = index.structureOf(parameter)
      const key = `${parameter.groupSlot}/${isSharded(structure)}/${structure.isEp}`
      if (!representatives.has(key)) representatives.set(key, parameter)
    }
    for (const parameter of representatives.values()) {
      for (const member of index.membersOfClass[layoutClass]!) {
        const wrong = checkMember(index, member, parameter)
        if (wrong !== undefined) return Result.fail(wrong)
      }
    }
  }
  return Result.succeed(undefined)
}
