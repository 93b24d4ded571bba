// SPDX-License-Identifier: Apache-2.0
/**
 * Where a rank can be reached, as it publishes it before a transfer.
 *
 * Invariant: what a peer says is decoded here before anything uses it. The secret is no password: it only makes the proofs of
 * one endpoint worthless for another. Whoever knows it must still know the token, where there is one.
 */
import { isIP } from "node:net"
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
