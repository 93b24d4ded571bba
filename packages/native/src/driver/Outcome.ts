/**
 * How a step of a preparation ended on one rank, and how ranks tell each other.
 *
 * Invariant: what a peer says is decoded here before anything uses it. What is damaged is refused, never thrown.
 */
import { CopyDriverReason } from "@tensorferry/core/service/CopyDriver"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"

const Failure = Schema.TaggedStruct("Failed", { reason: CopyDriverReason })

export const encodeText = (value: unknown): Uint8Array => new TextEncoder().encode(JSON.stringify(value))

export const decodeText =
  <A, E>(schema: Schema.Codec<A, E>) =>
  (bytes: Uint8Array): Result.Result<A, string> =>
    Result.mapError(Schema.decodeResult(Schema.fromJsonString(schema))(new TextDecoder().decode(bytes)), (error) =>
      error.message.replaceAll("\n", " ")
    )

/** How a step of a preparation ended on one rank. */
export type Outcome<A> = typeof Failure.Type | { readonly _tag: "Done"; readonly value: A }

export const encodeOutcome = (outcome: Outcome<unknown>): Uint8Array => encodeText(outcome)

export const decodeOutcome = <A, E>(value: Schema.Codec<A, E>) =>
  decodeText(Schema.Union([Failure, Schema.TaggedStruct("Done", { value })]))

/** Of steps that report nothing but how they ended. */
export const decodeDone = decodeOutcome(Schema.Null)
