// SPDX-License-Identifier: Apache-2.0
/**
 * Where agents meet: small texts under names that all agents of a job see.
 *
 * Contract
 * - An ephemeral entry goes away soon after the process that put it is gone, however it went.
 * - `watch` emits what stands under a prefix, whole, first at once and then after changes; several changes may come as one.
 *   It goes on over a lost connection: what was missed shows in the next state.
 * - Keys have up to 1024 bytes, values up to 1 MiB.
 */
import { ReasonError, type ReasonInput, reason, reasonOf } from "@tensorferry/core/base/Reason"
import { inSeconds, sayWaiting, untilWords } from "@tensorferry/core/service/sayWaiting"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"

/** What kept a store from doing what was asked. */
export const KeyValueReason = Schema.Union([
  /** The store cannot be reached, or went away. */
  reason("Unreachable"),
  /** The other end does not know the token, or is no store. */
  reason("Refused"),
  /** No answer, or not what was waited for, before the deadline. */
  reason("DeadlineExceeded"),
  /** A key, a value or the whole store exceeds its limit. */
  reason("TooLarge"),
  /** An address or setting that cannot be. */
  reason("InvalidOptions")
])
export type KeyValueReason = typeof KeyValueReason.Type

/** The error of every operation of a store. */
export class KeyValueError extends ReasonError<KeyValueError>()("KeyValueError", KeyValueReason) {}

/** Makes the error of this reason; `input` has at least `detail` and `remedy`. */
export const keyValueError = (tag: KeyValueReason["_tag"], input: ReasonInput): KeyValueError =>
  new KeyValueError({ reason: reasonOf(tag, input) })

/** Values by key, as they stood at one moment. */
export type Entries = ReadonlyMap<string, string>

/** How long an entry stays. */
export interface PutOptions {
  /** The entry goes away with the process that put it. False by default. */
  readonly isEphemeral?: boolean
}

/** What every kind of store does. Prefixes are compared as text; answers have whole keys. */
export interface KeyValueStoreShape {
  /** Adds or replaces an entry. Fails with TooLarge beyond the limits. */
  readonly put: (key: string, value: string, options?: PutOptions) => Effect.Effect<void, KeyValueError>
  /**
   * Adds an entry unless its key stands; answers what stands then. Of all who create one key, one adds it, and all get the
   * same answer. Fails with TooLarge beyond the limits.
   */
  readonly create: (key: string, value: string) => Effect.Effect<string, KeyValueError>
  /** Undefined where there is no such key. */
  readonly get: (key: string) => Effect.Effect<string | undefined, KeyValueError>
  /** Does nothing where there is no such key. */
  readonly remove: (key: string) => Effect.Effect<void, KeyValueError>
  /** What stands under the prefix now, by key. */
  readonly list: (prefix: string) => Effect.Effect<Entries, KeyValueError>
  /** What stands under the prefix: now, and again after every change. */
  readonly watch: (prefix: string) => Stream.Stream<Entries, KeyValueError>
}

/** The service by which agents find each other: keys, values and watches, embedded or over the network. */
export class KeyValueStore extends Context.Service<KeyValueStore, KeyValueStoreShape>()(
  "@tensorferry/bus/store/KeyValueStore"
) {}

const longestKey = 1024
const longestValue = 2 ** 20

/** Why the entry exceeds a limit, where it does. */
export const entryFault = (key: string, value: string): string | undefined => {
  const [keyBytes, valueBytes] = [Buffer.byteLength(key), Buffer.byteLength(value)]
  if (keyBytes > 0 && keyBytes <= longestKey && valueBytes <= longestValue) return undefined
  return `The key ${JSON.stringify(key.slice(0, 80))} has ${keyBytes} bytes, its value ${valueBytes}.`
}

/** Fails with TooLarge, naming the key. */
export const checkEntry = (key: string, value: string): Effect.Effect<void, KeyValueError> => {
  const detail = entryFault(key, value)
  if (detail === undefined) return Effect.void
  const remedy = `Use keys of 1 to ${longestKey} bytes and values of up to ${longestValue}.`
  return Effect.fail(keyValueError("TooLarge", { op: "put", detail, remedy }))
}

/**
 * Waits until what stands under the prefix satisfies `ready`, and answers what `ready` does. Fails with DeadlineExceeded;
 * `describe` says in words what is missing, then and in the log of a long wait.
 */
export const awaitEntries = <A, E = never>(
  store: KeyValueStoreShape,
  prefix: string,
  ready: (entries: Entries) => Effect.Effect<A | undefined, E>,
  deadline: Duration.Input,
  describe: (entries: Entries) => string
): Effect.Effect<A, KeyValueError | E> =>
  Effect.suspend(() => {
    let last: Entries = new Map()
    const found = store.watch(prefix).pipe(
      Stream.mapEffect((entries) => {
        last = entries
        return ready(entries)
      }),
      Stream.filter((found) => found !== undefined),
      Stream.runHead,
      Effect.flatMap(
        Option.match({
          onSome: (found) => Effect.succeed(found as A),
          onNone: () =>
            Effect.fail(keyValueError("Unreachable", { op: "watch", detail: "The watch ended.", remedy: "" }))
        })
      ),
      Effect.timeoutOrElse({
        duration: deadline,
        orElse: () =>
          Effect.fail(
            keyValueError("DeadlineExceeded", {
              op: "watch",
              detail: `${describe(last)} within ${Duration.format(Duration.fromInputUnsafe(deadline))}.`,
              remedy: "See whether those processes run and use the same store, or wait longer.",
              isRetryable: true
            })
          )
      })
    )
    return sayWaiting(
      found,
      (millis) => `${describe(last)} so far, after ${inSeconds(millis)}${untilWords(deadline, millis)}.`
    )
  })
