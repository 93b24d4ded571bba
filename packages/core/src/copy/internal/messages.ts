// SPDX-License-Identifier: Apache-2.0
/**
 * Messages that ranks send each other again and again, as JSON that a schema checks. Runs repeat themselves and so do their
 * messages: one that says what the last one said is neither written nor read again, which for small transfers would take longer
 * than anything else.
 *
 * Invariant: what is remembered is known by every byte, or by every field; values are never changed.
 */
import * as Result from "effect/Result"
import type * as Schema from "effect/Schema"
import type { Rank } from "../../base/Ids.ts"
import { jsonPayloads, type Payloads } from "../../group/Exchange.ts"

export { remembered } from "../../base/remembered.ts"

/** What all ranks say; the first rank that cannot be understood, else. */
export type Messages<A> = Payloads<A, ReadonlyArray<A>, Rank>

/** Messages of one kind, without memory. */
export const makeMessages = <A, I>(schema: Schema.Codec<A, I>): Messages<A> => {
  const { encode, decodeAll } = jsonPayloads(schema)
  return { encode, decodeAll: (payloads) => Result.mapError(decodeAll(payloads), ({ rank }) => rank) }
}

const isSameRecord = <A extends object>(a: A, b: A): boolean => {
  for (const key in a) if (a[key] !== b[key]) return false
  for (const key in b) if (!(key in a)) return false
  return true
}

const isSameBytes = (a: Uint8Array, b: Uint8Array): boolean =>
  a.byteLength === b.byteLength && Buffer.compare(a, b) === 0

/** Knows the last message sent, and what was received last: the same list of values while all ranks say the same. */
export const remembering = <A extends object>(messages: Messages<A>): Messages<A> => {
  let sent: { readonly value: A; readonly bytes: Uint8Array } | undefined
  let received: { readonly values: ReadonlyArray<A>; readonly payloads: ReadonlyArray<Uint8Array> } | undefined
  return {
    encode: (value) => {
      if (sent === undefined || !isSameRecord(sent.value, value)) sent = { value, bytes: messages.encode(value) }
      return sent.bytes
    },
    decodeAll: (payloads) => {
      const known = received
      if (
        known?.payloads.length === payloads.length &&
        payloads.every((payload, rank) => isSameBytes(known.payloads[rank]!, payload))
      ) {
        return Result.succeed(known.values)
      }
      return Result.map(messages.decodeAll(payloads), (values) => {
        received = { values, payloads }
        return values
      })
    }
  }
}
