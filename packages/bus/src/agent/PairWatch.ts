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
import type { BusError } from "../BusError.ts"
import type { Entries, KeyValueError, KeyValueStoreShape } from "../store/KeyValueStore.ts"
import { applyMarks, markPrefix } from "./Claim.ts"
import { lossError } from "./Fate.ts"
import { memberPrefix, type Pair } from "./Held.ts"
import { attemptOf } from "./Registration.ts"

/** A lost connection to the store takes the agent's entries away until it is open again. */
const grace = "500 millis"

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

/**
 * Fails once an agent that had registered for the pair is gone without a word, while others still wait for it or for more.
 * One that gives up says so, and may come again.
 */
export const lostMember = (pair: string, store: KeyValueStoreShape): Effect.Effect<never, KeyValueError | BusError> => {
  const prefix = memberPrefix(pair)
  const seen = new Set<string>()
  return Stream.runForEach(store.watch(prefix), (entries) =>
    Effect.gen(function* () {
      for (const [key, text] of entries) if (attemptOf(text) !== undefined) seen.add(key)
      if ([...seen].every((key) => entries.has(key))) return
      const later = yield* Effect.delay(store.list(prefix), grace)
      const key = [...seen].find((each) => !later.has(each))
      if (key === undefined) return
      const agent = Number(key.slice(prefix.length))
      const detail = `Pair ${pair}: agent ${agent} had registered and is gone: it left, or its process has exited.`
      return yield* lossError("InitPair", { tag: "PairBroken", peer: agent, detail })
    })
  ).pipe(Effect.andThen(Effect.never))
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
