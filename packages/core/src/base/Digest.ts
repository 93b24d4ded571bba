// SPDX-License-Identifier: Apache-2.0
/**
 * Digests of values that several processes must agree on: SHA-256 over a canonical JSON text (object keys sorted,
 * `undefined` left out), so that equal values give equal digests whatever the order in which they were built.
 */
import { createHash } from "node:crypto"

/** Lower-case hexadecimal SHA-256. */
export type Digest = string

const canonical = (value: unknown): string => {
  if (typeof value === "bigint") return `"${value}n"`
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "null"
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`
  const record = value as Record<string, unknown>
  const fields = Object.keys(record)
    .filter((key) => record[key] !== undefined)
    .sort()
    .map((key) => `${JSON.stringify(key)}:${canonical(record[key])}`)
  return `{${fields.join(",")}}`
}

/** Text with sorted keys, the form that digests are taken over. */
export const canonicalJson = canonical

/** The digest of a value in canonical form: equal for equal values, whatever the order of their keys. */
export const digestOf = (value: unknown): Digest => createHash("sha256").update(canonical(value)).digest("hex")
