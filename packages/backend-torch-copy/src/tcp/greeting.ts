// SPDX-License-Identifier: Apache-2.0
/**
 * What is said on a connection. The receiver opens it and greets with the first half of the sender's secret and its rank;
 * the sender answers with the second half. Then, per transfer: the program's number, one byte of answer, the chunks.
 *
 * Invariant: who does not know the secret gets no byte in answer. It is agreed over the process group, never stored.
 */
import { randomBytes, timingSafeEqual } from "node:crypto"
import * as Schema from "effect/Schema"

export const halfBytes = 16
export const helloBytes = halfBytes + 4
export const requestBytes = 8
export const yes = 1

export const makeSecret = (): Buffer => randomBytes(2 * halfBytes)

export const equalBytes = (a: Uint8Array, b: Uint8Array): boolean => a.length === b.length && timingSafeEqual(a, b)

export const encodeHello = (secret: Uint8Array, rank: number): Uint8Array => {
  const hello = Buffer.alloc(helloBytes)
  hello.set(secret.subarray(0, halfBytes))
  hello.writeUInt32LE(rank, halfBytes)
  return hello
}

export const encodeRequest = (program: number): Uint8Array => {
  const request = Buffer.alloc(requestBytes)
  request.writeBigUInt64LE(BigInt(program))
  return request
}

/** How to reach a sender, and how it calls the program. */
export const Endpoint = Schema.Struct({
  program: Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER })),
  port: Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 65535 })),
  secret: Schema.String.check(Schema.isPattern(/^[0-9a-f]{64}$/))
})
export type Endpoint = typeof Endpoint.Type
