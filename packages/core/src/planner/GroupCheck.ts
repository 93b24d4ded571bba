// SPDX-License-Identifier: Apache-2.0
/**
 * Whether the tensor-parallel groups that a roster names belong together. Pure.
 */
import type { Holding, ParameterKind } from "./ParameterKinds.ts"
import { type PlanError, planError } from "./PlanError.ts"
import type { RosterIndex } from "./RosterIndex.ts"
import { isSharded } from "./ShardSegments.ts"

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
export const checkGroups = (
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
