// SPDX-License-Identifier: Apache-2.0
/**
 * The payloads that TypeScript clients send: a mark, a version, and a MessagePack map that names what it is.
 *
 * Invariant: fields have names and the form has a version, so that a peer of another version is refused instead of being
 * misread. No pickle begins like this.
 */
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { decodeValue, encodeValue, type Value } from "../wire/Value.ts"
import { type PayloadError, payloadError } from "./PayloadError.ts"

const mark = new TextEncoder().encode("TFBP")
const version = 1

/** Longest payload; it describes a tensor and does not hold it. */
const longest = 1024 * 1024

export const isOwnPayload = (bytes: Uint8Array): boolean => mark.every((byte, at) => bytes[at] === byte)

export const encodeOwnPayload = (value: Value): Uint8Array => {
  const body = encodeValue(value)
  const bytes = new Uint8Array(mark.length + 1 + body.length)
  bytes.set(mark)
  bytes[mark.length] = version
  bytes.set(body, mark.length + 1)
  return bytes
}

export const decodeOwnPayload = <A>(
  schema: Schema.Codec<A, unknown>,
  bytes: Uint8Array
): Result.Result<A, PayloadError> => {
  const fail = (tag: "Malformed" | "UnknownVersion", detail: string) =>
    Result.fail(
      payloadError(tag, {
        op: "read payload",
        detail,
        remedy: "Run clients and agents of the same version."
      })
    )
  if (bytes[mark.length] !== version) {
    return fail("UnknownVersion", `The payload has version ${bytes[mark.length] ?? "none"}, not ${version}.`)
  }
  if (bytes.length > longest) return fail("Malformed", `The payload has ${bytes.length} bytes.`)
  const value = decodeValue(bytes.subarray(mark.length + 1))
  if (Result.isFailure(value)) return fail("Malformed", value.failure.detail)
  const decoded = Schema.decodeUnknownResult(schema, { onExcessProperty: "error" })(value.success)
  return Result.isSuccess(decoded)
    ? Result.succeed(decoded.success)
    : fail("Malformed", decoded.failure.message.replaceAll("\n", " ").slice(0, 400))
}
