// SPDX-License-Identifier: Apache-2.0
/**
 * How an agent reports to a client how a command ended: well, or with which error. Stands in the agent's state under
 * the name of the command's semaphore until it expires; clients that know nothing of replies lose nothing.
 */
import { ReasonFields } from "@tensorferry/core/base/Reason"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { decodeValue, encodeValue, type Value } from "../wire/Value.ts"

/** What an agent answers to a command. */
export const Reply = Schema.Union([
  Schema.Struct({
    type: Schema.Literal("Ok"),
    version: Schema.Literal(1),
    /** What a command answers that asks for something; the command says what it is. */
    value: Schema.optionalKey(Schema.Unknown)
  }),
  Schema.Struct({
    type: Schema.Literal("Error"),
    version: Schema.Literal(1),
    /** Tag of the reason, as "UnknownBatch". */
    tag: Schema.String,
    message: Schema.String,
    fields: ReasonFields
  })
])
export type Reply = typeof Reply.Type

/** The reply to a command that was carried out. */
export const replyOk: Reply = { type: "Ok", version: 1 }

/** The same with what the command answers. */
export const replyWith = (value: Value): Reply => ({ type: "Ok", version: 1, value })

/** Key of the state under which the reply to a command with this semaphore stands. */
export const replyKey = (semaphoreName: string): string => `reply:${semaphoreName}`

/** A reply as its bytes. */
export const encodeReply = (reply: Reply): Uint8Array => encodeValue(reply as unknown as Value)

/** Undefined for what is no reply of this version. */
export const decodeReply = (bytes: Uint8Array): Reply | undefined => {
  const value = decodeValue(bytes)
  if (Result.isFailure(value)) return undefined
  const decoded = Schema.decodeUnknownResult(Reply)(value.success)
  return Result.isSuccess(decoded) ? decoded.success : undefined
}
