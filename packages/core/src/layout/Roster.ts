// SPDX-License-Identifier: Apache-2.0
/**
 * What all ranks of one side (source or destination) say about their parameters.
 *
 * A roster is interned: ranks with the same list of parameters share one layout class, and rank groups are kept once.
 * What is left per rank is a class number and the numbers of its groups, so a job of thousands of ranks stays small.
 *
 * Invariant: members are in ascending order of rank; the order of parameters is that of the module, and task ids follow
 * it.
 */

import * as Schema from "effect/Schema"
import { type Digest, digestOf, digestOfText } from "../base/Digest.ts"
import { DType } from "../base/DType.ts"
import { Rank } from "../base/Ids.ts"
import { Natural } from "../base/Numbers.ts"
import { Interval, Shape } from "../base/Region.ts"
import type { ParameterMetadata } from "./ParameterMetadata.ts"
import { globalExpertName } from "./ParameterNames.ts"

/** How a shard is shaped and cut, without its names: what planning looks at. */
export const ParameterStructure = Schema.Struct({
  shape: Shape,
  dtype: DType,
  isTp: Schema.Boolean,
  partitionDim: Natural,
  partitionStride: Natural,
  partitionSizes: Schema.NullOr(Schema.Array(Natural)),
  partitionOffsets: Schema.NullOr(Schema.Array(Interval)),
  isEp: Schema.Boolean,
  isPersistentBuffer: Schema.Boolean
})
export type ParameterStructure = typeof ParameterStructure.Type

/** A parameter of a layout class. */
export const ClassParameter = Schema.Struct({
  name: Schema.String,
  resolvedName: Schema.String,
  globalExpertIndex: Schema.NullOr(Natural),
  numExperts: Schema.NullOr(Natural),
  aliasOf: Schema.NullOr(Schema.String),
  /** Index into `Roster.structures`. */
  structure: Natural,
  /** Index into the member's `groups`. */
  groupSlot: Natural
})
export type ClassParameter = typeof ClassParameter.Type

/** Indices into `Roster.rankLists`; null where the parameter is in no such group. */
export const GroupSet = Schema.Struct({
  tensorParallel: Schema.NullOr(Natural),
  expertParallel: Schema.NullOr(Natural),
  dataParallel: Schema.NullOr(Natural),
  pipelineParallel: Schema.NullOr(Natural)
})
export type GroupSet = typeof GroupSet.Type

/** One rank of a roster: its class and its groups. */
export const RosterMember = Schema.Struct({
  rank: Rank,
  /** Index into `Roster.classes`. */
  layoutClass: Natural,
  /** Per group slot of the class, an index into `Roster.groupSets`. */
  groups: Schema.Array(Natural)
})
export type RosterMember = typeof RosterMember.Type

/** What every rank holds on both sides of a transfer. Planners take it and nothing else. */
export const Roster = Schema.Struct({
  version: Schema.Literal(1),
  rankLists: Schema.Array(Schema.Array(Rank)),
  groupSets: Schema.Array(GroupSet),
  structures: Schema.Array(ParameterStructure),
  classes: Schema.Array(Schema.Array(ClassParameter)),
  members: Schema.Array(RosterMember),
  /** Digest of everything else, taken once when the roster is made. */
  digest: Schema.String
})
export type Roster = typeof Roster.Type

/** A class column by column: its names make most of a roster, and columns of them are written at once. */
const columnsOf = (parameters: ReadonlyArray<ClassParameter>): string => {
  const names = parameters.map(({ name }) => name)
  const resolved = parameters.map(({ resolvedName }) => resolvedName)
  const isSame = names.every((name, at) => name === resolved[at])
  return JSON.stringify([
    names,
    isSame ? null : resolved,
    parameters.map(({ globalExpertIndex }) => globalExpertIndex),
    parameters.map(({ numExperts }) => numExperts),
    parameters.map(({ aliasOf }) => aliasOf),
    parameters.map(({ structure }) => structure),
    parameters.map(({ groupSlot }) => groupSlot)
  ])
}

/** Gives a roster its digest. */
export const sealRoster = (roster: Omit<Roster, "digest">): Roster => ({
  ...roster,
  digest: digestOf({ ...roster, classes: roster.classes.map((parameters) => digestOfText(columnsOf(parameters))) })
})

/** The shape and cut of a parameter, as rosters keep it. */
export const structureOf = (parameter: ParameterMetadata): ParameterStructure => ({
  shape: parameter.shape,
  dtype: parameter.dtype,
  isTp: parameter.isTp,
  partitionDim: parameter.partitionDim,
  partitionStride: parameter.partitionStride,
  partitionSizes: parameter.partitionSizes,
  partitionOffsets: parameter.partitionOffsets,
  isEp: parameter.isEp,
  isPersistentBuffer: parameter.isPersistentBuffer
})

/** Numbers equal structures alike. */
export const structureInterner = () => {
  const structures = interner<ParameterStructure>()
  /** Parameters that are made from one another share the list of their shape, and with it everything that is cut. */
  const known = new WeakMap<Shape, { readonly parameter: ParameterMetadata; readonly index: number }>()
  const isAlike = (a: ParameterMetadata, b: ParameterMetadata): boolean =>
    a.dtype === b.dtype &&
    a.isTp === b.isTp &&
    a.isEp === b.isEp &&
    a.partitionDim === b.partitionDim &&
    a.partitionStride === b.partitionStride &&
    a.partitionSizes === b.partitionSizes &&
    a.partitionOffsets === b.partitionOffsets &&
    a.isPersistentBuffer === b.isPersistentBuffer
  return {
    values: structures.values,
    intern: (parameter: ParameterMetadata): number => {
      const before = known.get(parameter.shape)
      if (before !== undefined && isAlike(before.parameter, parameter)) return before.index
      const structure = structureOf(parameter)
      const index = structures.intern(JSON.stringify(structure), () => structure)
      known.set(parameter.shape, { parameter, index })
      return index
    }
  }
}

/** A parameter as its class knows it, without what differs from rank to rank. */
export const classParameter = (parameter: ParameterMetadata, structure: number, groupSlot: number): ClassParameter => ({
  name: parameter.name,
  resolvedName: parameter.resolvedName,
  globalExpertIndex: parameter.globalExpertIndex,
  numExperts: parameter.numExperts,
  aliasOf: parameter.aliasOf,
  structure,
  groupSlot
})

const interner = <A>() => {
  const indices = new Map<string, number>()
  const values: Array<A> = []
  return {
    values,
    intern: (key: string, value: () => A): number => {
      const known = indices.get(key)
      if (known !== undefined) return known
      indices.set(key, values.length)
      values.push(value())
      return values.length - 1
    }
  }
}

/**
 * Experts that a module keeps as a list arrive under local numbers; give them the global ones. Names that already carry a
 * global expert number are left alone.
 */
const withGlobalExpert = (parameter: ParameterMetadata): ParameterMetadata => {
  const group = parameter.expertParallelGroupRanks
  if (!parameter.isEp || parameter.globalExpertIndex !== null || group === null || parameter.numExperts === null) {
    return parameter
  }
  const expertParallelRank = group.indexOf(parameter.ownerRank)
  if (expertParallelRank < 0) return parameter
  const resolved = globalExpertName(parameter.resolvedName, {
    numExperts: parameter.numExperts,
    expertParallelRank,
    expertParallelSize: group.length
  })
  return { ...parameter, resolvedName: resolved.name, globalExpertIndex: resolved.expert }
}

/** A list of parameters without their ranks and groups: what members of one layout class have in common. */
export interface ClassContents {
  readonly structures: ReadonlyArray<ParameterStructure>
  /** Their `structure` is an index into `structures`. */
  readonly parameters: ReadonlyArray<ClassParameter>
}

/** What one rank says, interned by itself. */
export interface RosterPart {
  readonly rankLists: ReadonlyArray<ReadonlyArray<Rank>>
  /** By group slot; indices into `rankLists`. */
  readonly groupSets: ReadonlyArray<GroupSet>
  readonly contents: ClassContents
}

/** Interns one rank's parameters. Everything in it is numbered in the order in which it first appears. */
export const rosterPart = (parameters: ReadonlyArray<ParameterMetadata>): RosterPart => {
  const lists = interner<ReadonlyArray<Rank>>()
  const sets = interner<GroupSet>()
  const structures = structureInterner()
  const listIndex = (ranks: ReadonlyArray<Rank> | null): number | null =>
    ranks === null ? null : lists.intern(ranks.join(","), () => ranks)
  const classParameters = parameters.map(withGlobalExpert).map((parameter): ClassParameter => {
    const set: GroupSet = {
      tensorParallel: listIndex(parameter.tensorParallelGroupRanks),
      expertParallel: listIndex(parameter.expertParallelGroupRanks),
      dataParallel: listIndex(parameter.dataParallelGroupRanks),
      pipelineParallel: listIndex(parameter.pipelineParallelGroupRanks)
    }
    return classParameter(
      parameter,
      structures.intern(parameter),
      sets.intern(Object.values(set).join("/"), () => set)
    )
  })
  return {
    rankLists: lists.values,
    groupSets: sets.values,
    contents: { structures: structures.values, parameters: classParameters }
  }
}

/** `find`, computed once per object: parts of many ranks share lists and contents. */
const once = <K extends object, A>(find: (key: K) => A): ((key: K) => A) => {
  const known = new Map<K, A>()
  return (key) => {
    const found = known.get(key)
    if (found !== undefined) return found
    const value = find(key)
    known.set(key, value)
    return value
  }
}

/** Joins what all ranks say; ranks in any order, ranks without parameters may be left out. */
export const rosterFromParts = (byRank: Iterable<readonly [Rank, RosterPart]>): Roster => {
  const lists = interner<ReadonlyArray<Rank>>()
  const sets = interner<GroupSet>()
  const structures = interner<ParameterStructure>()
  const classes = interner<ReadonlyArray<ClassParameter>>()
  const listIndex = once((ranks: ReadonlyArray<Rank>) => lists.intern(ranks.join(","), () => ranks))
  const classIndex = once((contents: ClassContents) => {
    const indices = contents.structures.map((structure) =>
      structures.intern(JSON.stringify(structure), () => structure)
    )
    const parameters = contents.parameters.map((parameter) => ({
      ...parameter,
      structure: indices[parameter.structure]!
    }))
    return classes.intern(JSON.stringify(parameters), () => parameters)
  })
  const members = [...byRank]
    .sort(([a], [b]) => a - b)
    .map(([rank, part]): RosterMember => {
      const indices = part.rankLists.map(listIndex)
      const inRoster = (list: number | null): number | null => (list === null ? null : indices[list]!)
      const groups = part.groupSets.map((own) => {
        const set: GroupSet = {
          tensorParallel: inRoster(own.tensorParallel),
          expertParallel: inRoster(own.expertParallel),
          dataParallel: inRoster(own.dataParallel),
          pipelineParallel: inRoster(own.pipelineParallel)
        }
        return sets.intern(Object.values(set).join("/"), () => set)
      })
      return { rank, layoutClass: classIndex(part.contents), groups }
    })
  return sealRoster({
    version: 1,
    rankLists: lists.values,
    groupSets: sets.values,
    structures: structures.values,
    classes: classes.values,
    members
  })
}

/** Interns what each rank says; ranks in any order, ranks without parameters may be left out. */
export const rosterFromParameters = (byRank: Iterable<readonly [Rank, ReadonlyArray<ParameterMetadata>]>): Roster =>
  rosterFromParts([...byRank].map(([rank, parameters]) => [rank, rosterPart(parameters)] as const))

/** The ranks of one of a parameter's groups; null where it is in no such group. */
export const groupRanks = (
  roster: Roster,
  member: RosterMember,
  parameter: ClassParameter,
  kind: keyof GroupSet
): ReadonlyArray<Rank> | null => {
  const list = roster.groupSets[member.groups[parameter.groupSlot]!]?.[kind] ?? null
  return list === null ? null : roster.rankLists[list]!
}

/** One rank's parameters as that rank stated them (list-style experts under their global names). */
export const parametersOf = (roster: Roster, rank: Rank): ReadonlyArray<ParameterMetadata> => {
  const member = roster.members.find((candidate) => candidate.rank === rank)
  if (member === undefined) return []
  return roster.classes[member.layoutClass]!.map((parameter) => {
    const { structure, groupSlot: _slot, ...names } = parameter
    return {
      ...names,
      ...roster.structures[structure]!,
      ownerRank: rank,
      tensorParallelGroupRanks: groupRanks(roster, member, parameter, "tensorParallel"),
      expertParallelGroupRanks: groupRanks(roster, member, parameter, "expertParallel"),
      dataParallelGroupRanks: groupRanks(roster, member, parameter, "dataParallel"),
      pipelineParallelGroupRanks: groupRanks(roster, member, parameter, "pipelineParallel")
    }
  })
}

/** Digest of both sides, equal on all ranks that hold equal rosters. */
export const rosterDigest = (source: Roster, destination: Roster): Digest =>
  digestOf([source.digest, destination.digest])
