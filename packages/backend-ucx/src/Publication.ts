// SPDX-License-Identifier: Apache-2.0
/**
 * How a rank can be reached, as it publishes it before a transfer, and the keyed codes by which ranks know each other.
 *
 * Invariant: what a peer says is decoded here before anything uses it. The secret is no password: whoever knows it must still
 * know the token, where there is one.
 */
import { createHmac, timingSafeEqual } from "node:crypto"
import * as Schema from "effect/Schema"

const Digits = (bytes: number) => Schema.String.check(Schema.isPattern(new RegExp(`^[0-9a-f]{${2 * bytes}}$`)))

/** One rank as UCX knows it. */
export const PublishedEndpoint = Schema.Struct({
  /** Names the endpoint; a rank that builds its driver again has another. */
  id: Digits(16),
  secret: Digits(32),
  /** That the rank has the token of the group. */
  proof: Digits(32),
  /** Major and minor version of UCX: it does not read addresses of others. */
  version: Schema.String.check(Schema.isPattern(/^\d{1,6}\.\d{1,6}$/)),
  /** Buffers of its TCP. UCX ends the process that gets more at once than it has room for. */
  segments: Schema.String.check(Schema.isPattern(/^[\w.]{1,32}\/[\w.]{1,32}$/)),
  /** What UCX reaches the rank by, in base64. */
  address: Schema.String.check(Schema.isPattern(/^[A-Za-z0-9+/]{2,87384}={0,2}$/))
})
export type PublishedEndpoint = typeof PublishedEndpoint.Type

const code = (key: string | Uint8Array, text: string): Buffer => createHmac("sha256", key).update(text).digest()

/** That whoever published the secret has this token. */
export const proofOf = (token: string | undefined, secret: string): string =>
  code(token ?? "", `tensorferry ucx token ${secret}`).toString("hex")

/** Whether a rank has the same token as this one. */
export const provesToken = (token: string | undefined, { secret, proof }: PublishedEndpoint): boolean =>
  timingSafeEqual(Buffer.from(proofOf(token, secret), "hex"), Buffer.from(proof, "hex"))

/** What every message of a sender to a receiver carries: 16 bytes. */
export const ticketOf = (
  token: string | undefined,
  sender: Pick<PublishedEndpoint, "id">,
  receiver: Pick<PublishedEndpoint, "secret">
): Uint8Array => code(code(token ?? "", `tensorferry ucx ${receiver.secret}`), sender.id).subarray(0, 16)
