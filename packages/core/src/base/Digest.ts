// SPDX-License-Identifier: Apache-2.0
/**
 * Digests of values that several processes must agree on: SHA-256 over a canonical JSON text (object keys sorted,
 * `undefined` left out), so that equal values give equal digests whatever the order in which they were built.
 */
import { createHash, type Hash } from "node:crypto"
import type { DType } from "./DType.ts"
import type { Shape } from "./Region.ts"

/** Lower-case hexadecimal SHA-256. */
export type Digest = string

/** Keys of the last object in the order that they had, and sorted: lists of objects of one kind sort them once. */
let given: ReadonlyArray<string> = []
let sorted: ReadonlyArray<readonly [key: string, text: string]> = []

const sortedKeys = (keys: ReadonlyArray<string>): ReadonlyArray<readonly [key: string, text: string]> => {
  if (keys.length === given.length && keys.every((key, at) => key === given[at])) return sorted
  given = keys
  sorted = [...keys].sort().map((key) => [key, `${JSON.stringify(key)}:`] as const)
  return sorted
}

const canonical = (value: unknown): string => {
  if (typeof value === "bigint") return `"${value}n"`
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "null"
  if (Array.isArray(value)) {
    let text = "["
    for (let at = 0; at < value.length; at++) text += at === 0 ? canonical(value[at]) : `,${canonical(value[at])}`
    return `${text}]`
  }
  const record = value as Record<string, unknown>
  let text = ""
  for (const [key, start] of sortedKeys(Object.keys(record))) {
    const field = record[key]
    if (field !== undefined) text += `${text === "" ? "" : ","}${start}${canonical(field)}`
  }
  return `{${text}}`
}

/** Text with sorted keys, the form that digests are taken over. */
export const canonicalJson = canonical

/** The digest of a text. */
export const digestOfText = (text: string): Digest => createHash("sha256").update(text).digest("hex")

/** The digest of a value in canonical form: equal for equal values, whatever the order of their keys. */
export const digestOf = (value: unknown): Digest => digestOfText(canonical(value))

/** The hash of a tensor's elements, begun with what they are: SHA-256 over `dtype[shape]`, then the dense bytes in order. */
export const tensorHash = (dtype: DType, shape: Shape): Hash =>
  createHash("sha256").update(`${dtype}[${shape.join(",")}]`)
