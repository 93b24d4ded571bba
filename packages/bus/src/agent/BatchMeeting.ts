// SPDX-License-Identifier: Apache-2.0
/**
 * How the ranks of a pair find each other's registrations of a batch: each offers its own under a name that is used once,
 * and the first rank deals: it says which offers belong together.
 *
 * Invariants
 * - An offer is part of one deal at most, so what a dead client registered never meets what the next one registers.
 * - Whoever goes on by a deal has seen all of its offers stand. A rank that takes an offer back looks for a deal
 *   afterwards; so either nobody goes on by that deal, or the rank marks it as given up.
 */
import { randomUUID } from "node:crypto"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { type BusError, busError } from "../BusError.ts"
import { awaitEntries, type Entries } from "../store/KeyValueStore.ts"
import { type BatchStatement, statementCodec } from "./BatchPlan.ts"
import { applyMarks, fatesOf, goneBy, keep, markClaim, retire } from "./Claim.ts"
import { lossError, whileHeld } from "./Fate.ts"
import { type Claim, Deal } from "./Held.ts"
import { type PairSettings, storeFailed } from "./Pair.ts"

const op = "RegisterTensors"
/** Deals of other names than these are so old that nothing is left of their offers. */
const mostRemembered = 1_000
const dealCodec = Schema.fromJsonString(Deal)

const readDeal = (text: string | undefined): Deal | undefined =>
  text === undefined ? undefined : Result.getOrUndefined(Schema.decodeResult(dealCodec)(text))

/** Tokens of the offers that stand, by rank of the group. */
const offersIn = (prefix: string, entries: Entries): ReadonlyMap<number, ReadonlyArray<string>> => {
  const offers = new Map<number, ReadonlyArray<string>>()
  for (const key of entries.keys()) {
    const [rank, token] = key.slice(prefix.length).split("/")
    if (token !== undefined) offers.set(Number(rank), [...(offers.get(Number(rank)) ?? []), token])
  }
  return offers
}

/** How many registrations a rank had begun before this one, of whatever batch. */
const numberOf = (token: string | undefined): number => (token === undefined ? -1 : Number.parseInt(token, 10))

/** An offer that came after the last deal. */
const isFresh = (token: string, rank: number, last: Deal | undefined): boolean =>
  numberOf(token) > numberOf(last?.tokens[rank])

/** One offer of every rank that came after the last deal; undefined as long as one is missing. */
const freshOffers = (prefix: string, size: number, last: Deal | undefined, entries: Entries) => {
  const offers = offersIn(prefix, entries)
  const tokens = Array.from({ length: size }, (_, rank) =>
    offers.get(rank)?.find((token) => isFresh(token, rank, last))
  )
  return tokens.every((token) => token !== undefined) ? tokens : undefined
}

/** Every rank's statement, by rank of the group. The claim then has its deal. */
export const meetOnBatch = Effect.fnUntraced(
  function* (claim: Claim, own: BatchStatement, settings: PairSettings, wait: Duration.Duration) {
    const { store } = settings
    const { batch: id, pair } = claim
    const { agents, digest } = pair.members
    const prefix = `batch/${digest}/${encodeURIComponent(id)}/`
    const dealKey = `${prefix}deal`
    const token = `${pair.registered++}-${randomUUID()}`
    const keyOf = (rank: number, of: string) => `${prefix}${rank}/${of}`
    const key = keyOf(pair.rank, token)
    const text = yield* Effect.orDie(Schema.encodeEffect(statementCodec)(own))

    const takeBack = Effect.gen(function* () {
      const isDealt = claim.deal !== undefined
      // A deal is there to be read by those who are late, and every offer of it.
      if (isDealt) yield* retire(pair, key, store)
      else yield* Effect.ignore(store.remove(key))
      const deal = claim.deal ?? readDeal(yield* Effect.orElseSucceed(store.get(dealKey), () => undefined))
      if (deal?.tokens[pair.rank] !== token) return
      claim.deal = deal
      // Where another agent gave it up first, all have its mark.
      const loss = claim.fate.loss()
      if (loss === undefined || loss.peer === agents[pair.rank]) yield* markClaim(claim, store)
      if (pair.rank === 0) yield* retire(pair, dealKey, store)
    })
    yield* Effect.acquireRelease(store.put(key, text, { isEphemeral: true }), () => takeBack)

    const deal = Effect.fnUntraced(function* (entries: Entries) {
      const tokens = freshOffers(prefix, agents.length, pair.dealt.get(id), entries)
      if (tokens === undefined || tokens[0] !== token) return
      const made: Deal = { id: randomUUID(), tokens }
      keep(pair, dealKey)
      pair.dealt.delete(id)
      pair.dealt.set(id, made)
      if (pair.dealt.size > mostRemembered) pair.dealt.delete(pair.dealt.keys().next().value!)
      yield* store.put(dealKey, yield* Effect.orDie(Schema.encodeEffect(dealCodec)(made)), { isEphemeral: true })
    })

    const statementsBy = (made: Deal, entries: Entries) =>
      Effect.forEach(made.tokens, (of, rank): Effect.Effect<BatchStatement, BusError> => {
        const offered = entries.get(keyOf(rank, of))
        if (offered === undefined) {
          return Effect.fail(lossError(op, goneBy(claim, agents[rank]!, "it took its registration back")))
        }
        return Effect.mapError(Schema.decodeEffect(statementCodec)(offered), () =>
          busError("BatchMismatch", {
            op,
            peer: agents[rank]!,
            detail: `Batch ${id}: agent ${agents[rank]} registered it in a form of another version.`,
            remedy: "Run the same version on all ranks."
          })
        )
      })

    const met = awaitEntries(
      store,
      prefix,
      (entries) =>
        Effect.gen(function* () {
          const made = readDeal(entries.get(dealKey))
          if (made?.tokens[pair.rank] !== token) {
            if (pair.rank === 0) yield* deal(entries)
            return undefined
          }
          claim.deal = made
          return yield* statementsBy(made, entries)
        }),
      wait,
      (entries) => {
        const offers = offersIn(prefix, entries)
        const last = readDeal(entries.get(dealKey))
        const missing = agents.filter((_, at) => !offers.get(at)?.some((of) => isFresh(of, at, last)))
        return `Batch ${id}: agents ${missing.join(", ")} of pair ${pair.name} did not register it`
      }
    )
    const statements = yield* whileHeld(op, fatesOf(claim), met)
    // A mark may have come before the deal was known here.
    applyMarks(pair)
    return statements
  },
  Effect.mapError((error) => (error._tag === "KeyValueError" ? storeFailed(op, error) : error))
)
