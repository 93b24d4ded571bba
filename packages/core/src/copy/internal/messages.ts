/**
 * Messages that ranks tell each other again and again, as JSON that a schema checks. Runs repeat themselves and so do their
 * messages: one that says what the last one said is neither written nor read anew, which for small transfers would take longer
 * than anything else.
 *
 * Invariant: what is remembered is known by every byte, or by every field; values are never changed.
 */
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type { Rank } from "../../base/Ids.ts"

export interface Messages<A> {
  readonly encode: (value: A) => Uint8Array
  /** What all ranks say; the first rank that cannot be understood, else. */
  readonly decodeAll: (payloads: ReadonlyArray<Uint8Array>) => Result.Result<ReadonlyArray<A>, Rank>
}

/** Messages of one kind, without memory. */
export const makeMessages = <A, I>(schema: Schema.Codec<A, I>): Messages<A> => {
  // Deriving a codec takes milliseconds: the first message pays them, not whoever imports this module.
  const derive = () => {
    const codec = Schema.fromJsonString(Schema.toCodecJson(schema))
    return { write: Schema.encodeResult(codec), read: Schema.decodeResult(codec) }
  }
  let derived: ReturnType<typeof derive> | undefined
  const coder = () => {
    derived ??= derive()
    return derived
  }
  return {
    // Encoding fails only for a value that the type excludes; its receivers then cannot understand it.
    encode: (value) => new TextEncoder().encode(Result.getOrElse(coder().write(value), () => "")),
    decodeAll: (payloads) => {
      const { read } = coder()
      const values: Array<A> = []
      for (const [rank, payload] of payloads.entries()) {
        const decoded = read(new TextDecoder().decode(payload))
        if (Result.isFailure(decoded)) return Result.fail(rank)
        values.push(decoded.success)
      }
      return Result.succeed(values)
    }
  }
}

const isSameRecord = <A extends object>(a: A, b: A): boolean => {
  for (const key in a) if (a[key] !== b[key]) return false
  for (const key in b) if (!(key in a)) return false
  return true
}

const isSameBytes = (a: Uint8Array, b: Uint8Array): boolean =>
  a.byteLength === b.byteLength && Buffer.compare(a, b) === 0

/** Knows the last message told, and what was heard last: the same list of values while all ranks say the same. */
export const remembering = <A extends object>(messages: Messages<A>): Messages<A> => {
  let told: { readonly value: A; readonly bytes: Uint8Array } | undefined
  let heard: { readonly values: ReadonlyArray<A>; readonly payloads: ReadonlyArray<Uint8Array> } | undefined
  return {
    encode: (value) => {
      if (told === undefined || !isSameRecord(told.value, value)) told = { value, bytes: messages.encode(value) }
      return told.bytes
    },
    decodeAll: (payloads) => {
      const known = heard
      if (
        known?.payloads.length === payloads.length &&
        payloads.every((payload, rank) => isSameBytes(known.payloads[rank]!, payload))
      ) {
        return Result.succeed(known.values)
      }
      return Result.map(messages.decodeAll(payloads), (values) => {
        heard = { values, payloads }
        return values
      })
    }
  }
}

/** Remembers what was made of a value for as long as the value is there. */
export const remembered = <K extends object, A>(make: (key: K) => A): ((key: K) => A) => {
  const made = new WeakMap<K, { readonly value: A }>()
  return (key) => {
    const known = made.get(key)
    if (known !== undefined) return known.value
    const value = make(key)
    made.set(key, { value })
    return value
  }
}
