// SPDX-License-Identifier: Apache-2.0
/**
 * What an agent learns of the other agents of a pair while it does nothing with them: that one is gone, made the pair
 * again, left it, or dropped a batch.
 *
 * Invariant: within a second of an entry's disappearance or change in the store, the pair or the batch has ended, and
 * whoever waits on it knows the agent by rank.
 */
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import type { Entries, KeyValueError, KeyValueStoreShape } from "../store/KeyValueStore.ts"
import { applyMarks, markPrefix } from "./Claim.ts"
import { memberPrefix, type Pair } from "./Held.ts"
import { attemptOf } from "./Registration.ts"

/** A lost connection to the store takes the agent's entries away until it is open again. */
const grace = "700 millis"

/** A member that is not registered as it was. */
const oddMember = ({ name, members }: Pair, entries: Entries) => {
  for (const [at, agent] of members.agents.entries()) {
    const attempt = attemptOf(entries.get(`${memberPrefix(name)}${agent}`))
    if (attempt !== members.attempts[at]) return { agent, isReplaced: attempt !== undefined }
  }
  return undefined
}

const watchMembers = (pair: Pair, store: KeyValueStoreShape): Effect.Effect<void, KeyValueError> => {
  const prefix = memberPrefix(pair.name)
  const end = (agent: number, what: string) =>
    pair.fate.end({ tag: "PairBroken", peer: agent, detail: `Pair ${pair.name}: agent ${agent} ${what}.` })
  return Stream.runForEach(store.watch(prefix), (entries) =>
    Effect.gen(function* () {
      const odd = oddMember(pair, entries)
      if (odd === undefined) return
      if (odd.isReplaced) return end(odd.agent, "was started again or made the pair again")
      const still = oddMember(pair, yield* Effect.delay(store.list(prefix), grace))
      if (still === undefined) return
      end(still.agent, still.isReplaced ? "was started again or made the pair again" : "is gone: the store lost it")
    })
  )
}

const watchMarks = (pair: Pair, store: KeyValueStoreShape): Effect.Effect<void, KeyValueError> =>
  Stream.runForEach(store.watch(markPrefix(pair)), (entries) =>
    Effect.sync(() => {
      pair.marks = entries
      applyMarks(pair)
    })
  )

/** Watches until the pair's scope ends. */
export const watchPair = (pair: Pair, store: KeyValueStoreShape): Effect.Effect<void> =>
  Effect.forEach(
    [watchMembers(pair, store), watchMarks(pair, store)],
    (watching) => Effect.forkIn(Effect.ignore(watching, { log: true }), pair.scope),
    { discard: true }
  )
