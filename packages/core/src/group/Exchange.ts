// SPDX-License-Identifier: Apache-2.0
/**
 * One exchange among the ranks of a group: every rank states something of the same form, and gets what all of them stated.
 *
 * - `exchange`: values of one schema, as JSON. A rank whose answer does not decode is named on every rank.
 * - `exchangeResults`: what each rank succeeded or failed with; the failure of the lowest rank that failed is everybody's.
 * - `exchangePayloads`: any form of bytes, for paths where JSON is too long or too slow, and for answers that are read
 *   together.
 *
 * All three are collectives: every member calls them under the same label. Failures of the group pass through as they are,
 * beside `UnreadableAnswer`, so that the caller names its own operation in the error that it makes of them.
 *
 * Invariant: what a rank gets, or fails with, follows from the payloads alone, so ranks that run the same version and
 * received the same payloads go on alike.
 */
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type { Rank } from "../base/Ids.ts"
import { remembered } from "../base/remembered.ts"
import type { ProcessGroupError, ProcessGroupShape } from "../service/ProcessGroup.ts"

/** A rank answered in a form that this rank cannot read, as another version would. */
export class UnreadableAnswer extends Schema.TaggedError<UnreadableAnswer>()("UnreadableAnswer", {
  /** Number in the group of the first rank whose answer does not decode. */
  rank: Schema.Int,
  /** What is wrong with it. */
  detail: Schema.String
}) {
  override get message(): string {
    return `The answer of rank ${this.rank} cannot be read: ${this.detail}`
  }
}

/**
 * How a value becomes bytes, and the bytes of all ranks become one thing again. A codec of a caller's own may use any
 * form of bytes and any failure; it reads all answers at once, so it may also compare them or remember them.
 */
export interface Payloads<in Own, out All, out Failure> {
  /** What this rank sends to all. */
  readonly encode: (own: Own) => Uint8Array
  /** From every rank's payload, by rank. */
  readonly decodeAll: (payloads: ReadonlyArray<Uint8Array>) => Result.Result<All, Failure>
}

/**
 * Values of a schema as JSON. A value that the schema excludes becomes an answer that nobody can read, so that the rank
 * takes part all the same and is named.
 */
export const jsonPayloads: <A, I>(schema: Schema.Codec<A, I>) => Payloads<A, ReadonlyArray<A>, UnreadableAnswer> =
  remembered(<A, I>(schema: Schema.Codec<A, I>): Payloads<A, ReadonlyArray<A>, UnreadableAnswer> => {
    // Deriving a codec takes milliseconds: the first message pays them, not whoever imports a module.
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
      encode: (own) => new TextEncoder().encode(Result.getOrElse(coder().write(own), () => "")),
      decodeAll: (payloads) => {
        const { read } = coder()
        const values: Array<A> = []
        for (const [rank, payload] of payloads.entries()) {
          const decoded = read(new TextDecoder().decode(payload))
          if (Result.isFailure(decoded)) {
            return Result.fail(new UnreadableAnswer({ rank, detail: decoded.failure.message }))
          }
          values.push(decoded.success)
        }
        return Result.succeed(values)
      }
    }
  })

/** What all ranks stated, in a form of the caller's own. Fails with what the group or the form fails with. */
export const exchangePayloads = <Own, All, Failure>(
  group: ProcessGroupShape,
  label: string,
  payloads: Payloads<Own, All, Failure>,
  own: Own
): Effect.Effect<All, ProcessGroupError | Failure> =>
  Effect.flatMap(group.allGather(label, payloads.encode(own)), (all) => Effect.fromResult(payloads.decodeAll(all)))

/**
 * Every rank's value, by rank.
 *
 * ```ts
 * const free = yield* exchange(group, "free memory", Schema.Struct({ bytes: Schema.Int }), { bytes: 1024 })
 * ```
 */
export const exchange = <A, I>(
  group: ProcessGroupShape,
  label: string,
  schema: Schema.Codec<A, I>,
  own: A
): Effect.Effect<ReadonlyArray<A>, ProcessGroupError | UnreadableAnswer> =>
  exchangePayloads(group, label, jsonPayloads(schema), own)

/** The values of all ranks, or the failure of the lowest rank that failed. */
export const firstFailure = <A, E>(
  results: ReadonlyArray<Result.Result<A, E>>
): Result.Result<ReadonlyArray<A>, { readonly rank: Rank; readonly failure: E }> => {
  const values: Array<A> = []
  for (const [rank, result] of results.entries()) {
    if (Result.isFailure(result)) return Result.fail({ rank, failure: result.failure })
    values.push(result.success)
  }
  return Result.succeed(values)
}

/** Schemas of what a rank succeeds and fails with. */
export interface ResultSchemas<A, AI, E, EI> {
  readonly success: Schema.Codec<A, AI>
  readonly failure: Schema.Codec<E, EI>
}

/**
 * Every rank's value, by rank, where all succeeded; else every rank fails with the failure of the lowest rank that failed.
 * The schemas are values that stay, as those of a module: what is derived of them is kept with them.
 */
export const exchangeResults = <A, AI, E, EI>(
  group: ProcessGroupShape,
  label: string,
  schemas: ResultSchemas<A, AI, E, EI>,
  own: Result.Result<A, E>
): Effect.Effect<ReadonlyArray<A>, E | ProcessGroupError | UnreadableAnswer> =>
  Effect.flatMap(exchange(group, label, resultSchema(schemas), own), (results) =>
    Effect.fromResult(Result.mapError(firstFailure(results), ({ failure }) => failure))
  )

const resultSchema: <A, AI, E, EI>(schemas: ResultSchemas<A, AI, E, EI>) => Schema.Codec<Result.Result<A, E>, unknown> =
  remembered(
    <A, AI, E, EI>({ success, failure }: ResultSchemas<A, AI, E, EI>): Schema.Codec<Result.Result<A, E>, unknown> =>
      Schema.Result(success, failure)
  )
