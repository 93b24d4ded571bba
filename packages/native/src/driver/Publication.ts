// SPDX-License-Identifier: Apache-2.0
/**
 * What ranks of a driver over a wire say of themselves and of a transfer before it: how each is reached, and what it means to
 * exchange with whom.
 *
 * Invariant: what a peer says is decoded here before anything uses it.
 */
import { Natural, Natural32 } from "@tensorferry/core/base/Numbers"
import type { Message } from "@tensorferry/core/ir/Message"
import * as Schema from "effect/Schema"
import type { DecodeOutcome } from "./DriverAgreement.ts"
import { decodeOutcome } from "./Outcome.ts"
import { messagesWith, streamDigest } from "./streamTable.ts"

/** What one rank exchanges with another: the digest of what it sends to it and gets from it, empty where that is nothing. */
export const Exchanged = Schema.Struct({
  peer: Natural,
  sends: Schema.String.check(Schema.isMaxLength(64)),
  receives: Schema.String.check(Schema.isMaxLength(64))
})
export type Exchanged = typeof Exchanged.Type

/** What a rank publishes before a transfer. */
export interface Publication<Published> {
  readonly endpoint: Published
  /** How this rank names what it sends with the program. Ranks that were interrupted have counted further than others. */
  readonly program: number
  readonly exchanges: ReadonlyArray<Exchanged>
}

/** Reads what a rank published, whose endpoint has this form. */
export const publicationOf = <Published>(
  endpoint: Schema.Codec<Published, unknown>
): DecodeOutcome<Publication<Published>> =>
  decodeOutcome(Schema.Struct({ endpoint, program: Natural32, exchanges: Schema.Array(Exchanged) }))

/** What a rank exchanges, by peer. */
export const exchangesOf = (messages: ReadonlyArray<Message>): ReadonlyArray<Exchanged> =>
  [...new Set(messages.map(({ peer }) => peer))].map((peer) => {
    const digest = (direction: Message["direction"]) => {
      const some = messagesWith(messages, peer, direction)
      return some.length === 0 ? "" : streamDigest(some)
    }
    return { peer, sends: digest("send"), receives: digest("recv") }
  })

/** True where two ranks mean different things by what goes from one to the other; all ranks see it alike. */
export const disagrees = (publications: ReadonlyArray<Publication<unknown>>): boolean => {
  const exchanged = publications.map(({ exchanges }) => new Map(exchanges.map((each) => [each.peer, each])))
  return exchanged.some((own, rank) =>
    [...own.values()].some(({ peer, sends, receives }) => {
      const theirs = exchanged[peer]?.get(rank)
      return sends !== (theirs?.receives ?? "") || receives !== (theirs?.sends ?? "")
    })
  )
}
