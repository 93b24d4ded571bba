// SPDX-License-Identifier: Apache-2.0
/**
 * What ranks publish before a transfer: where they can be reached, and a digest of what they exchange with whom.
 *
 * Invariant: what a peer says is decoded here before anything uses it. The secret is no password: it only makes the proofs of
 * one endpoint worthless for another. Whoever knows it must still know the token, where there is one.
 */
import { isIP } from "node:net"
import { Natural, Natural32 } from "@tensorferry/core/base/Numbers"
import { decodeOutcome } from "@tensorferry/native/driver/Outcome"
import * as Schema from "effect/Schema"

const Digits = (bytes: number) => Schema.String.check(Schema.isPattern(new RegExp(`^[0-9a-f]{${2 * bytes}}$`)))

const Host = Schema.String.check(
  Schema.isMaxLength(64),
  Schema.makeFilter((text: string) => isIP(text) !== 0 || "must be an address of IPv4 or IPv6")
)

/** One rank on the network. */
export const PublishedEndpoint = Schema.Struct({
  /** Names the endpoint; a rank that builds its driver again has another. */
  id: Digits(16),
  secret: Digits(32),
  addresses: Schema.Array(
    Schema.Struct({
      host: Host,
      port: Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 65_535 }))
    })
  ).check(Schema.isMinLength(1), Schema.isMaxLength(256))
})
export type PublishedEndpoint = typeof PublishedEndpoint.Type

/** What one rank exchanges with another: the digest of what it sends to it and gets from it, empty where that is nothing. */
export const Exchanged = Schema.Struct({
  peer: Natural,
  sends: Schema.String.check(Schema.isMaxLength(64)),
  receives: Schema.String.check(Schema.isMaxLength(64))
})
export type Exchanged = typeof Exchanged.Type

export const Publication = Schema.Struct({
  endpoint: PublishedEndpoint,
  /** How this rank names what it sends with the program. Ranks that were interrupted have counted further than others. */
  program: Natural32,
  exchanges: Schema.Array(Exchanged)
})
export type Publication = typeof Publication.Type

/** Reads what a rank published, or why it failed. */
export const decodePublication = decodeOutcome(Publication)

/** True where two ranks mean different things by what goes from one to the other; all ranks see it alike. */
export const disagrees = (publications: ReadonlyArray<Publication>): boolean => {
  const exchanged = publications.map(({ exchanges }) => new Map(exchanges.map((each) => [each.peer, each])))
  return exchanged.some((own, rank) =>
    [...own.values()].some(({ peer, sends, receives }) => {
      const theirs = exchanged[peer]?.get(rank)
      return sends !== (theirs?.receives ?? "") || receives !== (theirs?.sends ?? "")
    })
  )
}
