// SPDX-License-Identifier: Apache-2.0
/**
 * How an agent gives up what it holds of a batch or a pair, and what it makes of what others give up.
 *
 * Invariant: an agent that gives up a claim that other agents count on leaves a mark under the name of the deal, so that
 * they learn who gave it up and why. The marks of a pair are few: the oldest go first.
 */
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type { Entries, KeyValueStoreShape } from "../store/KeyValueStore.ts"
import type { Fate } from "./Fate.ts"
import type { Claim, Pair } from "./Held.ts"

/** All ends that a user of the batch must know of. */
export const fatesOf = ({ fate, pairs }: Claim): ReadonlyArray<Fate> => [fate, ...pairs.map((pair) => pair.fate)]

const Mark = Schema.fromJsonString(Schema.Struct({ why: Schema.String, batch: Schema.NullOr(Schema.String) }))
const encodeMark = Schema.encodeSync(Mark)

/** Stands for the pair itself where a mark could name a deal. */
const wholePair = "pair"
const mostRetired = 32

export const markPrefix = ({ members }: Pick<Pair, "members">): string => `gone/${members.digest}/`

const put = Effect.fnUntraced(function* (
  pair: Pair,
  what: string,
  mark: { readonly why: string; readonly batch: string | null },
  store: KeyValueStoreShape
) {
  const key = `${markPrefix(pair)}${what}/${pair.members.agents[pair.rank]}`
  yield* Effect.ignore(store.put(key, encodeMark(mark), { isEphemeral: true }))
  yield* retire(pair, key, store)
})

/** Keeps a key of something that is over for those who are late, and removes the oldest of them. */
export const retire = Effect.fnUntraced(function* (pair: Pair, key: string, store: KeyValueStoreShape) {
  keep(pair, key)
  pair.retired.push(key)
  while (pair.retired.length > mostRetired) yield* Effect.ignore(store.remove(pair.retired.shift()!))
})

/** The key is in use again. */
export const keep = (pair: Pair, key: string): void => {
  const at = pair.retired.indexOf(key)
  if (at >= 0) pair.retired.splice(at, 1)
}

/** Tells the other agents that this one gives the claim up, where they count on it and do not know. */
export const markClaim = (claim: Claim, store: KeyValueStoreShape): Effect.Effect<void> =>
  Effect.suspend(() => {
    const { pair, deal, why, batch } = claim
    if (deal === undefined || claim.isMarked) return Effect.void
    claim.isMarked = true
    return pair.fate.loss() === undefined ? put(pair, deal.id, { why, batch }, store) : Effect.void
  })

/** Tells the other agents that this one gives the pair up. */
export const markPair = (pair: Pair, why: string, store: KeyValueStoreShape): Effect.Effect<void> =>
  put(pair, wholePair, { why, batch: null }, store)

/** Ends what the marks of other agents name, among the claims of the pair. */
export const applyMarks = (pair: Pair): void => {
  const own = pair.members.agents[pair.rank]
  for (const [key, text] of pair.marks) {
    const [what, agentText] = key.slice(markPrefix(pair).length).split("/") as [string, string]
    const agent = Number(agentText)
    const mark = Schema.decodeResult(Mark)(text)
    if (agent === own || Result.isFailure(mark)) continue
    const { why } = mark.success
    if (what === wholePair) {
      pair.fate.end({ tag: "PairBroken", peer: agent, detail: `Pair ${pair.name}: agent ${agent} left it: ${why}.` })
    }
    for (const claim of pair.claims) {
      if (claim.deal?.id === what) claim.fate.end(goneBy(claim, agent, why))
    }
  }
}

/** The loss of a batch that an agent dropped. */
export const goneBy = ({ batch, pair }: Claim, agent: number, why: string) =>
  ({
    tag: "BatchGone",
    peer: agent,
    detail: `Batch ${batch}, pair ${pair.name}: agent ${agent} dropped it: ${why}.`
  }) as const

/** Ends the claim for everyone who counts on it. The mark stands first, so that nobody takes the end for a disagreement. */
export const giveUp = Effect.fnUntraced(function* (claim: Claim, rank: number, why: string, store: KeyValueStoreShape) {
  claim.why = why
  yield* markClaim(claim, store)
  claim.fate.end(goneBy(claim, rank, why))
})

/** Whether some agent gave up this deal, by the marks in the entries. */
export const isGone = (pair: Pair, deal: string, marks: Entries): boolean =>
  [...marks.keys()].some((key) => key.startsWith(`${markPrefix(pair)}${deal}/`))
