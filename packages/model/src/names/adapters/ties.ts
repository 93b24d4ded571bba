// SPDX-License-Identifier: Apache-2.0
/**
 * Adapters of tensors with one storage, as of an embedding and a tied head. While the adapter is apart, each side can have a
 * change of its own. Merged into the one storage, a change of one side would change the other: that is refused, or the two
 * are untied.
 */
import * as Result from "effect/Result"
import { type MappingError, mappingError } from "../MappingError.ts"
import type { AdapterChange, TiedPair } from "./Adapter.ts"

/** What becomes of a storage whose names would differ: it is refused, or each name has its own. */
export type TiedChanges = "refuse" | "untie"

interface Settled {
  readonly changes: ReadonlyArray<AdapterChange>
  readonly tied: ReadonlyArray<TiedPair>
  readonly untied: ReadonlyArray<string>
}

/** Settles what several names of one storage have. `isEnsured`: the adapter has the same change for all of them, once each. */
export const settleTies = (
  changes: ReadonlyArray<AdapterChange>,
  aliases: ReadonlyMap<string, string>,
  isEnsured: boolean,
  choice: TiedChanges
): Result.Result<Settled, MappingError> =>
  Result.gen(function* () {
    let settled = changes
    const tied: Array<TiedPair> = []
    const untied: Array<string> = []
    for (const [alias, source] of aliases) {
      const own = changes.filter(({ target }) => target === alias)
      const other = changes.filter(({ target }) => target === source)
      if (own.length === 0 && other.length === 0) continue
      // Rows of the embedding are rows of whatever is tied to it.
      if (own.length === 0 && other.every(({ _tag }) => _tag === "Rows")) continue
      if (isEnsured) {
        const pairs = own.flatMap((one) => pairsOf(one, other))
        if (pairs.length > 0 || (own.length === 0 && other.every(({ _tag }) => _tag === "Whole"))) {
          tied.push(...pairs)
          settled = settled.filter(({ target }) => target !== alias)
          continue
        }
      }
      if (choice === "refuse") {
        const [first] = [...other, ...own]
        const rest = own.length > 0 && other.length > 0 ? "has another change" : "has none"
        return yield* mappingError(
          "conflicting_alias",
          first!.target,
          undefined,
          `${alias} and ${source} share storage: one is changed, and the other ${rest}.`,
          "Leave the adapter apart, or let the two be untied when it is merged."
        )
      }
      untied.push(alias)
      const rows = other.flatMap((one) => (one._tag === "Rows" ? [{ ...one, target: alias }] : []))
      if (!own.some(({ _tag }) => _tag === "Rows")) settled = [...settled, ...rows]
    }
    return { changes: settled, tied, untied }
  })

/** The factors of a head are those of the embedding, each for the other; tensors in full are equal. */
const pairsOf = (own: AdapterChange, others: ReadonlyArray<AdapterChange>): ReadonlyArray<TiedPair> =>
  others.flatMap((other) => {
    if (own._tag === "Whole" && other._tag === "Whole")
      return [{ tensor: own.tensor, transposed: other.tensor, rows: 1 }]
    if (own._tag !== "LowRank" || other._tag !== "LowRank" || own.scale !== other.scale || own.rank !== other.rank)
      return []
    if (own.isTransposed === other.isTransposed || own.magnitude !== undefined) return []
    return [
      { tensor: own.a, transposed: other.b, rows: own.rank },
      { tensor: own.b, transposed: other.a, rows: own.shape[own.isTransposed ? 1 : 0]! }
    ]
  })
