// SPDX-License-Identifier: Apache-2.0
/**
 * The demand of a job, from the index that its plans are made of. Regions are told apart by what they are on the source's
 * side: a shard and a region of it. Ranks of one layout class and place want the same, so they are looked at once.
 *
 * Invariant: what a rank wants here is what its plan receives, whichever replica the plan names as the sender.
 */
import { byteLengthOf, wireDType } from "@tensorferry/core/base/DType"
import type { Rank } from "@tensorferry/core/base/Ids"
import { elementCount, formatRegion, type Region, regionShape } from "@tensorferry/core/base/Region"
import type { ParameterStructure, RosterMember } from "@tensorferry/core/layout/Roster"
import type { PlanIndex } from "@tensorferry/core/planner/RosterPlanner"
import type { Bundle, Demand } from "./Demand.ts"

type Kind = PlanIndex["kinds"][number][number]["kind"]
type SideIndex = PlanIndex["source"]
type Holding = Kind["sources"] extends ReadonlyMap<number, infer H> ? H : never

/** A region of a bundle, in every parameter that it stands for. */
export interface BundleRegion {
  /** Global names of the parameters that have it, in the order of their module. */
  readonly names: ReadonlyArray<string>
  /** Of the shard that holders have. */
  readonly sourceRegion: Region
  /** Of each parameter, as it travels. */
  readonly bytes: number
}

/** A bundle with the regions that make it, in the order of its bytes. */
export interface PlanBundle extends Bundle {
  readonly regions: ReadonlyArray<BundleRegion>
}

/** The demand of a job, with what its bundles are made of. */
export interface PlanDemand extends Demand {
  /** What is wanted, by who wants it. */
  readonly bundles: ReadonlyArray<PlanBundle>
  /** Position of the bundle of a received region, by its global name, the sender that the plan names and the sender's region. */
  readonly bundleOf: (resolvedName: string, sender: Rank, sourceRegion: Region) => number | undefined
}

const isSharded = ({ isTp, partitionOffsets }: ParameterStructure): boolean => isTp || partitionOffsets !== null

/** Which shard of a kind a member has: equal for ranks that have the same. */
const shardOf = (side: SideIndex, member: RosterMember, { structure, groupSlot }: Holding): string => {
  const shard = side.roster.structures[structure]!
  const list = isSharded(shard) ? side.listOf(member, groupSlot, "tensorParallel") : undefined
  if (list === undefined) return `${structure}`
  return `${side.patternOf(list)}:${side.positionsIn(list).get(member.rank) ?? -1}:${structure}`
}

/** The holders of the shards of one kind. */
interface Holders {
  readonly ranksOf: ReadonlyMap<string, ReadonlyArray<Rank>>
  readonly shardOfRank: ReadonlyMap<Rank, string>
  /** Whichever replica serves, a rank gets the same regions of the same shards. */
  readonly isUniform: boolean
}

const holdersOf = (source: SideIndex, kind: Kind): Holders => {
  const ranksOf = new Map<string, Array<Rank>>()
  const shardOfRank = new Map<Rank, string>()
  const cuts = new Set<string>()
  let isOverlapping = false
  for (const [layoutClass, holding] of kind.sources) {
    const shard = source.roster.structures[holding.structure]!
    if (shard.partitionOffsets !== null) isOverlapping = true
    for (const member of source.membersOfClass[layoutClass]!) {
      const key = shardOf(source, member, holding)
      const list = isSharded(shard) ? source.listOf(member, holding.groupSlot, "tensorParallel") : undefined
      cuts.add(list === undefined ? `whole ${holding.structure}` : `${source.patternOf(list)}`)
      shardOfRank.set(member.rank, key)
      const ranks = ranksOf.get(key)
      if (ranks === undefined) ranksOf.set(key, [member.rank])
      else ranks.push(member.rank)
    }
  }
  for (const ranks of ranksOf.values()) ranks.sort((a, b) => a - b)
  return { ranksOf, shardOfRank, isUniform: cuts.size === 1 && !isOverlapping }
}

/** Groups members that get the same of everything that is uniform: same class, same places in their groups. */
const cohorts = (destination: SideIndex): ReadonlyArray<ReadonlyArray<RosterMember>> => {
  const groups = new Map<string, Array<RosterMember>>()
  for (const member of destination.roster.members) {
    const places = member.groups.map((_, slot) =>
      (["tensorParallel", "expertParallel"] as const)
        .map((kind) => {
          const list = destination.listOf(member, slot, kind)
          if (list === undefined) return "-"
          return `${destination.patternOf(list)}:${destination.positionsIn(list).get(member.rank) ?? -1}`
        })
        .join("/")
    )
    const key = `${member.layoutClass} ${places.join(" ")}`
    const group = groups.get(key)
    if (group === undefined) groups.set(key, [member])
    else group.push(member)
  }
  return [...groups.values()]
}

interface Wanted {
  readonly kind: Kind
  readonly shard: string
  readonly sourceRegion: Region
  readonly names: ReadonlyArray<string>
  readonly bytes: number
  /** Numbers of sets of ranks, each once, in the order in which they were met. */
  readonly sets: Array<number>
}

/** Numbers lists by their contents. */
class Interner<A> {
  readonly values: Array<A> = []
  readonly #numbers = new Map<string, number>()
  number(key: string, make: () => A): number {
    const known = this.#numbers.get(key)
    if (known !== undefined) return known
    this.#numbers.set(key, this.values.length)
    return this.values.push(make()) - 1
  }
}

/** Adds up what everybody wants. The same on all ranks that have equal rosters. */
export const planDemand = (index: PlanIndex): PlanDemand => {
  const { source, destination } = index
  const known = new Map<Kind, Holders>()
  const holders = (kind: Kind): Holders => {
    const before = known.get(kind)
    if (before !== undefined) return before
    const found = holdersOf(source, kind)
    known.set(kind, found)
    return found
  }
  const sets: Array<ReadonlyArray<RosterMember>> = []
  const wanted = new Map<Kind, Map<string, Wanted>>()
  const kindOf = new Map<string, Kind>()

  const want = (set: number, kind: Kind, names: ReadonlyArray<string>): void => {
    const [member] = sets[set]!
    const { shardOfRank } = holders(kind)
    const { tiles, senders } = index.assign(member!, kind)
    const dtype = destination.roster.structures[kind.destinations.get(member!.layoutClass)!.structure]!.dtype
    const ofKind = wanted.get(kind) ?? new Map<string, Wanted>()
    wanted.set(kind, ofKind)
    for (const [at, { sourceRegion }] of tiles.entries()) {
      const shard = shardOfRank.get(senders[at]!)!
      const key = `${shard} ${formatRegion(sourceRegion)} ${dtype}`
      const one = byteLengthOf(wireDType(kind.sourceDtype, dtype), elementCount(regionShape(sourceRegion)))
      const entry = ofKind.get(key) ?? { kind, shard, sourceRegion, names, bytes: one, sets: [] }
      ofKind.set(key, entry)
      if (entry.sets.at(-1) !== set) entry.sets.push(set)
    }
  }

  for (const members of cohorts(destination)) {
    const together = sets.push(members) - 1
    let alone: ReadonlyArray<number> | undefined
    const { layoutClass } = members[0]!
    const parameters = destination.roster.classes[layoutClass]!
    for (const { kind, positions } of index.kinds[layoutClass]!) {
      const names = positions.map((position) => parameters[position]!.resolvedName)
      for (const name of names) kindOf.set(name, kind)
      if (holders(kind).isUniform) want(together, kind, names)
      else {
        alone ??= members.map((member) => sets.push([member]) - 1)
        for (const set of alone) want(set, kind, names)
      }
    }
  }

  const holderLists = new Interner<ReadonlyArray<Rank>>()
  const wanterLists = new Interner<ReadonlyArray<Rank>>()
  const numbers = new Map<string, number>()
  /** Sets are told apart by how they were found; lists by the ranks in them. */
  const wanterNumber = (who: ReadonlyArray<number>): number => {
    const key = who.toSorted((a, b) => a - b).join(",")
    const before = numbers.get(key)
    if (before !== undefined) return before
    const ranks = [...new Set(who.flatMap((set) => sets[set]!.map(({ rank }) => rank)))].sort((a, b) => a - b)
    const found = wanterLists.number(ranks.join(","), () => ranks)
    numbers.set(key, found)
    return found
  }
  const bundles = new Interner<{ key: string; holders: number; wanters: number; regions: Array<BundleRegion> }>()
  const places = new Map<Kind, Map<string, number>>()
  for (const [kind, entries] of wanted) {
    const ofKind = new Map<string, number>()
    places.set(kind, ofKind)
    for (const { shard, sourceRegion, names, bytes, sets: who } of entries.values()) {
      const ranks = holders(kind).ranksOf.get(shard)!
      const from = holderLists.number(ranks.join(","), () => ranks)
      const to = wanterNumber(who)
      const key = `bundle ${bundles.values.length}`
      const at = bundles.number(`${from} ${to}`, () => ({ key, holders: from, wanters: to, regions: [] }))
      bundles.values[at]!.regions.push({ names, sourceRegion, bytes })
      ofKind.set(`${shard} ${formatRegion(sourceRegion)}`, at)
    }
  }
  return {
    bundles: bundles.values.map(({ key, holders: from, wanters: to, regions }) => ({
      key,
      bytes: regions.reduce((sum, { bytes, names }) => sum + bytes * names.length, 0),
      holders: holderLists.values[from]!,
      wanters: wanterLists.values[to]!,
      regions
    })),
    bundleOf: (resolvedName, sender, sourceRegion) => {
      const kind = kindOf.get(resolvedName)
      const shard = kind === undefined ? undefined : holders(kind).shardOfRank.get(sender)
      return places.get(kind!)?.get(`${shard} ${formatRegion(sourceRegion)}`)
    }
  }
}
