// SPDX-License-Identifier: Apache-2.0
/**
 * What a schema objects to, as one line per fault: the path of the field as one writes it, what it should be and what it
 * is. For options that users write and descriptors that packages export.
 */
import type * as Schema from "effect/Schema"
import * as SchemaIssue from "effect/SchemaIssue"

const format = SchemaIssue.makeFormatterStandardSchemaV1()

type Path = ReadonlyArray<PropertyKey>

/** `libraries.runtime`, `forbid[1]`. */
const formatPath = (path: Path): string =>
  path.reduce<string>((text, key) => {
    if (typeof key === "number") return `${text}[${key}]`
    return text === "" ? String(key) : `${text}.${String(key)}`
  }, "")

const valueAt = (input: unknown, path: Path): unknown =>
  path.reduce<unknown>(
    (value, key) =>
      typeof value === "object" && value !== null
        ? (value as { readonly [K in PropertyKey]: unknown })[key]
        : undefined,
    input
  )

/** Long values are named by their kind: a message is read by people. */
const describeValue = (value: unknown): string => {
  if (typeof value === "function") return "a function"
  if (typeof value === "object" && value !== null) return Array.isArray(value) ? "a list" : "an object"
  const text = typeof value === "string" ? JSON.stringify(value) : String(value)
  return text.length <= 40 ? text : `${text.slice(0, 39)}…`
}

const pathOf = (issue: { readonly path?: ReadonlyArray<PropertyKey | { readonly key: PropertyKey }> | undefined }) =>
  (issue.path ?? []).map((step) => (typeof step === "object" ? step.key : step))

/** Every fault; `whole` is what the input is called where it is wrong as a whole. */
export const schemaFaults = (error: Schema.SchemaError, input: unknown, whole: string): ReadonlyArray<string> =>
  format(error.issue).issues.map((issue) => {
    const path = pathOf(issue)
    const where = path.length === 0 ? whole : formatPath(path)
    if (issue.message === "Missing key") return `${where} is missing`
    if (issue.message === "Expected no excess property") return `${where} is not known`
    const wanted = issue.message.replace(/^Expected /, "must be ")
    return `${where} ${wanted}, but is ${describeValue(valueAt(input, path))}`
  })
