// SPDX-License-Identifier: Apache-2.0
/**
 * How a step of a preparation ended on one rank, and the JSON in which ranks report it.
 *
 * Invariant: what a peer says is decoded here before anything uses it. What is damaged is refused in words of one line.
 */
import { CopyDriverReason } from "@tensorferry/core/service/CopyDriver"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"

/** A rank that failed, and why. */
export const Failed = Schema.TaggedStruct("Failed", { reason: CopyDriverReason })

/** A step of one rank: its value, or why there is none. */
export type Outcome<A> = typeof Failed.Type | { readonly _tag: "Done"; readonly value: A }

/** Any value of JSON as bytes. */
export const encodeText = (value: unknown): Uint8Array => new TextEncoder().encode(JSON.stringify(value))

/** Reads bytes of JSON by a schema. */
export const decodeText =
  <A, E>(schema: Schema.Codec<A, E>) =>
  (bytes: Uint8Array): Result.Result<A, string> =>
    Result.mapError(Schema.decodeResult(Schema.fromJsonString(schema))(new TextDecoder().decode(bytes)), (error) =>
      error.message.replaceAll("\n", " ")
    )

/** What a rank reports of a step. */
export const encodeOutcome = (outcome: Outcome<unknown>): Uint8Array => encodeText(outcome)

/** Reads what a rank reported of a step with such a value. */
export const decodeOutcome = <A, E>(value: Schema.Codec<A, E>) =>
  decodeText(Schema.Union([Failed, Schema.TaggedStruct("Done", { value })]))

/** Reads what a rank reported of a step that gives nothing. */
export const decodeDone = decodeOutcome(Schema.Null)
