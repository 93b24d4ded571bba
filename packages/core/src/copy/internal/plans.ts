// SPDX-License-Identifier: Apache-2.0
/**
 * Plans that runs belong to: whether all ranks have the same one, and where theirs differ. Pure.
 */
import * as Schema from "effect/Schema"
import type { Rank } from "../../base/Ids.ts"
import { type CopyError, copyError } from "../../service/CopyService.ts"

/** Name and digest of each part of a plan. */
export const PlanContents = Schema.Array(Schema.Tuple([Schema.String, Schema.String]))
export type PlanContents = typeof PlanContents.Type

/** The first rank whose plan is not the commonest one, and one of those that have it. Ranks without a plan have no say. */
export const oddPlan = (
  digests: ReadonlyArray<string | null>
): { readonly rank: Rank; readonly other: Rank } | undefined => {
  const [first] = digests
  if (digests.every((digest) => digest === first)) return undefined
  const counts = new Map<string, number>()
  for (const digest of digests) if (digest !== null) counts.set(digest, (counts.get(digest) ?? 0) + 1)
  const [commonest] = [...counts].reduce((a, b) => (b[1] > a[1] ? b : a), ["", 0] as const)
  const rank = digests.findIndex((digest) => digest !== null && digest !== commonest)
  return rank < 0 ? undefined : { rank, other: digests.indexOf(commonest) }
}

/** Names the first part that a rank plans in another way than another rank. */
export const plansDiffer = (all: ReadonlyArray<PlanContents>, rank: Rank, other: Rank): CopyError => {
  const [theirs, common] = [all[rank] ?? [], all[other] ?? []]
  const length = Math.max(theirs.length, common.length)
  const at = Array.from({ length }, (_, index) => index).find(
    (index) => String(theirs[index]) !== String(common[index])
  )
  const name = at === undefined ? undefined : (theirs[at] ?? common[at])![0]
  return copyError("Mismatch", [rank, other], {
    rank,
    peer: other,
    op: "run",
    ...(name === undefined ? {} : { paramName: name }),
    detail:
      name === undefined
        ? `Ranks ${rank} and ${other} have plans of different layouts, or with buckets of different sizes.`
        : `Ranks ${rank} and ${other} have different plans: tensor ${at}, ${name}, is missing from one of them, or has another layout.`,
    remedy: "Make the plans of all ranks from the same layouts, tensors and bucket size."
  })
}
