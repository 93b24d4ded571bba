// SPDX-License-Identifier: Apache-2.0
/**
 * Groups the parameters of a job by how both sides hold them. Layers of one stage differ in their names only; planning
 * looks at each kind once.
 */
import * as Result from "effect/Result"
import { bitsOf, type DType } from "../base/DType.ts"
import { type PlanError, planError } from "./PlanError.ts"
import { type RosterIndex, ranksOfClass } from "./RosterIndex.ts"
import { type CandidateSet, candidateSet } from "./SourceSelection.ts"

/** How one layout class holds a kind of parameter. */
export interface Holding {
  readonly layoutClass: number
  /** Index into the roster's structures. */
  readonly structure: number
  readonly groupSlot: number
}

export interface ParameterKind {
  /** Global name of the first parameter of the kind, for errors. */
  readonly name: string
  /** By layout class. */
  readonly sources: ReadonlyMap<number, Holding>
  readonly destinations: ReadonlyMap<number, Holding>
  readonly candidates: CandidateSet
  /** Type in which the parameter leaves its sources. */
  readonly sourceDtype: DType
}

/** The parameters of one kind that one destination class holds. */
export interface ClassKind {
  readonly kind: ParameterKind
  /** Positions in the class, ascending. */
  readonly positions: ReadonlyArray<number>
}

/** Global name to the classes that hold it. */
const holdingsByName = (index: RosterIndex): Map<string, ReadonlyArray<Holding>> => {
  const byName = new Map<string, Array<Holding>>()
  for (const [layoutClass, parameters] of index.roster.classes.entries()) {
    for (const { resolvedName, aliasOf, structure, groupSlot } of parameters) {
      if (aliasOf !== null) continue
      const holding = { layoutClass, structure, groupSlot }
      const known = byName.get(resolvedName)
      if (known === undefined) byName.set(resolvedName, [holding])
      else known.push(holding)
    }
  }
  return byName as Map<string, ReadonlyArray<Holding>>
}

/** Adds the source's aliases under their own names, for destinations that hold such a tensor on its own. */
const addAliases = (source: RosterIndex, byName: Map<string, ReadonlyArray<Holding>>): PlanError | undefined => {
  for (const parameters of source.roster.classes) {
    for (const { resolvedName, aliasOf } of parameters) {
      if (aliasOf === null || byName.has(resolvedName)) continue
      const owner = byName.get(aliasOf)
      if (owner === undefined) {
        return planError(
          "InvalidMetadata",
          resolvedName,
          [],
          `It is declared an alias of ${aliasOf}, which no source rank holds.`,
          "Name the tensor that owns the storage."
        )
      }
      byName.set(resolvedName, owner)
    }
  }
  return undefined
}

/** One type per parameter: replicas agree, except persistent buffers, which travel in the widest of their types. */
const sourceDtype = (
  source: RosterIndex,
  name: string,
  holdings: ReadonlyArray<Holding>
): Result.Result<DType, PlanError> => {
  let widest: DType | undefined
  for (const { layoutClass, structure } of holdings) {
    const { dtype, isPersistentBuffer } = source.roster.structures[structure]!
    if (widest === undefined || widest === dtype) widest = dtype
    else if (!isPersistentBuffer) {
      return Result.fail(
        planError(
          "DTypeMismatch",
          name,
          ranksOfClass(source, layoutClass),
          `Source ranks hold it as ${widest} and as ${dtype}.`,
          "Use one element type for all replicas of a parameter."
        )
      )
    } else if (bitsOf(dtype) > bitsOf(widest)) widest = dtype
  }
  return Result.succeed(widest!)
}

/** Numbers sequences of whole numbers: equal ones have one number, and the empty one is 0. */
const sequences = () => {
  const steps: Array<Map<number, number>> = [new Map()]
  return (sequence: number, value: number): number => {
    const found = steps[sequence]!.get(value) ?? steps.push(new Map()) - 1
    steps[sequence]!.set(value, found)
    return found
  }
}

const byClass = (holdings: ReadonlyArray<Holding>): ReadonlyMap<number, Holding> =>
  new Map(holdings.map((holding) => [holding.layoutClass, holding]))

/** All ranks that hold a kind at the source, with their groups. */
const makeCandidates = (source: RosterIndex, holdings: ReadonlyArray<Holding>): CandidateSet =>
  candidateSet(
    holdings
      .flatMap(({ layoutClass, groupSlot }) =>
        source.membersOfClass[layoutClass]!.map((member) => ({
          member,
          layoutClass,
          expertParallel: source.listOf(member, groupSlot, "expertParallel"),
          dataParallel: source.listOf(member, groupSlot, "dataParallel")!
        }))
      )
      .sort((a, b) => a.member.rank - b.member.rank)
      .map(({ member, layoutClass, expertParallel, dataParallel }) => ({
        rank: member.rank,
        layoutClass,
        expertParallel: expertParallel === undefined ? null : source.roster.rankLists[expertParallel]!,
        dataParallel: source.roster.rankLists[dataParallel]!
      }))
  )

/** The kinds of each destination class, in order of their first parameter. */
export const parameterKinds = (
  source: RosterIndex,
  destination: RosterIndex
): Result.Result<ReadonlyArray<ReadonlyArray<ClassKind>>, PlanError> => {
  const sources = holdingsByName(source)
  const fault = addAliases(source, sources)
  if (fault !== undefined) return Result.fail(fault)
  const destinations = holdingsByName(destination)
  const kinds = new Map<number, ParameterKind>()
  const next = sequences()
  const follow = (key: number, { layoutClass, structure, groupSlot }: Holding): number =>
    next(next(next(key, layoutClass), structure), groupSlot)
  const kindOfName = new Map<string, ParameterKind>()
  const candidateSets = new Map<string, CandidateSet>()
  for (const [name, wanted] of destinations) {
    const held = sources.get(name)
    if (held === undefined) {
      return Result.fail(
        planError(
          "MissingSource",
          name,
          ranksOfClass(destination, wanted[0]!.layoutClass),
          "No source rank holds it.",
          "Add it to the source, declare it an alias, or leave it out of the destination."
        )
      )
    }
    const key = wanted.reduce(follow, next(held.reduce(follow, 0), -1))
    let kind = kinds.get(key)
    if (kind === undefined) {
      const dtype = sourceDtype(source, name, held)
      if (Result.isFailure(dtype)) return Result.fail(dtype.failure)
      const ranksKey = held.map(({ layoutClass, groupSlot }) => `${layoutClass}:${groupSlot}`).join(",")
      const candidates = candidateSets.get(ranksKey) ?? makeCandidates(source, held)
      candidateSets.set(ranksKey, candidates)
      kind = { name, sources: byClass(held), destinations: byClass(wanted), candidates, sourceDtype: dtype.success }
      kinds.set(key, kind)
    }
    kindOfName.set(name, kind)
  }
  return collect(destination, kindOfName)
}

const collect = (
  destination: RosterIndex,
  kindOfName: ReadonlyMap<string, ParameterKind>
): Result.Result<ReadonlyArray<ReadonlyArray<ClassKind>>, PlanError> => {
  const classes: Array<ReadonlyArray<ClassKind>> = []
  for (const [layoutClass, parameters] of destination.roster.classes.entries()) {
    let own: ReadonlySet<string> | undefined
    const positions = new Map<ParameterKind, Array<number>>()
    for (const [position, { resolvedName, aliasOf }] of parameters.entries()) {
      if (aliasOf !== null) {
        own ??= new Set(parameters.flatMap((one) => (one.aliasOf === null ? [one.resolvedName] : [])))
        if (own.has(aliasOf)) continue
        return Result.fail(
          planError(
            "InvalidMetadata",
            resolvedName,
            ranksOfClass(destination, layoutClass),
            `It is declared an alias of ${aliasOf}, which its own rank does not hold.`,
            "Declare an alias only where the owner of the storage is on the same rank."
          )
        )
      }
      const kind = kindOfName.get(resolvedName)!
      const list = positions.get(kind)
      if (list === undefined) positions.set(kind, [position])
      else list.push(position)
    }
    classes.push([...positions].map(([kind, list]) => ({ kind, positions: list })))
  }
  return Result.succeed(classes)
}
