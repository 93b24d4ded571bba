// SPDX-License-Identifier: Apache-2.0
/**
 * The options of a backend, as its schema says them: name, what it takes, default, and what it does. A schema that cannot
 * be described, or says nothing, is no fault: what is not known is left out.
 */
import type { BackendDescriptor } from "@tensorferry/core/backend/BackendDescriptor"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { table } from "../text/Table.ts"

export interface DescribedOption {
  /** With dots where objects hold options. */
  readonly name: string
  readonly type: string
  /** Values that can be chosen. */
  readonly choices?: ReadonlyArray<unknown>
  readonly minimum?: number
  readonly maximum?: number
  readonly default?: unknown
  readonly description?: string
}

type Node = Readonly<Record<string, unknown>>

const isNode = (value: unknown): value is Node => typeof value === "object" && value !== null && !Array.isArray(value)
const nodesOf = (value: unknown): ReadonlyArray<Node> => (Array.isArray(value) ? value.filter(isNode) : [])

/** Annotations of a checked value stand beside the check. */
const merged = (node: Node): Node => Object.assign({}, ...nodesOf(node.allOf).map(merged), node)

const typeNames: Readonly<Record<string, string>> = {
  string: "text",
  integer: "whole number",
  boolean: "true or false"
}

const typeOf = (node: Node): string => {
  if (Array.isArray(node.anyOf)) return [...new Set(nodesOf(node.anyOf).map(typeOf))].join(" or ")
  if (choicesOf(node) !== undefined) return node.type === "array" ? "some of" : "one of"
  if (node.type === "array") return `list of ${isNode(node.items) ? typeOf(node.items) : "values"}`
  return typeof node.type === "string" ? (typeNames[node.type] ?? node.type) : "any value"
}

const choicesOf = (node: Node): ReadonlyArray<unknown> | undefined => {
  if (Array.isArray(node.enum)) return node.enum
  return isNode(node.items) ? choicesOf(node.items) : undefined
}

const fieldsOf = (given: Node, prefix: string): ReadonlyArray<DescribedOption> => {
  if (!isNode(given.properties)) return []
  return Object.entries(given.properties).flatMap(([key, value]) => {
    if (!isNode(value)) return []
    const node = merged(value)
    const name = `${prefix}${key}`
    const inner = fieldsOf(node, `${name}.`)
    const description = typeof node.description === "string" ? node.description : undefined
    if (inner.length > 0)
      return inner.map((field) => ({ ...(description === undefined ? {} : { description }), ...field }))
    const choices = choicesOf(node)
    const { minimum, maximum } = node
    return [
      {
        name,
        type: typeOf(node),
        ...(choices === undefined ? {} : { choices }),
        ...(typeof minimum === "number" && minimum > Number.MIN_SAFE_INTEGER ? { minimum } : {}),
        ...(typeof maximum === "number" && maximum < Number.MAX_SAFE_INTEGER ? { maximum } : {}),
        ...("default" in node ? { default: node.default } : {}),
        ...(description === undefined ? {} : { description })
      }
    ]
  })
}

/** In the order of the schema; nothing where the schema names no options. */
export const describeOptions = ({ options }: Pick<BackendDescriptor, "options">): ReadonlyArray<DescribedOption> => {
  const document = Result.try(() => Schema.toJsonSchemaDocument(Schema.toType(options)))
  if (Result.isFailure(document)) return []
  const { schema, definitions } = document.success as unknown as { readonly schema: Node; readonly definitions: Node }
  const reference = typeof schema.$ref === "string" ? definitions[schema.$ref.slice("#/$defs/".length)] : undefined
  return fieldsOf(isNode(reference) ? reference : schema, "")
}

/** Lines of at most `width` characters, broken between words where that is possible. */
const wrap = (text: string, width: number): ReadonlyArray<string> => {
  const lines: Array<string> = []
  for (const word of text.split(/\s+/)) {
    const last = lines.at(-1)
    if (last !== undefined && last.length + 1 + word.length <= width) lines[lines.length - 1] = `${last} ${word}`
    else for (let at = 0; at === 0 || at < word.length; at += width) lines.push(word.slice(at, at + width))
  }
  return lines
}

const takes = ({ type, choices, minimum, maximum }: DescribedOption): string => {
  const range =
    minimum === undefined && maximum === undefined
      ? ""
      : maximum === undefined
        ? ` from ${minimum}`
        : ` ${minimum === undefined ? "up" : minimum} to ${maximum}`
  return choices === undefined ? `${type}${range}` : `${type} ${choices.map(String).join(", ")}`
}

const shown = (value: unknown): string => (typeof value === "string" ? value : (JSON.stringify(value) ?? ""))

const [nameWidth, takesWidth, defaultWidth, total] = [22, 17, 7, 80]

/** A table of at most 80 columns. */
export const optionsText = (backend: string, options: ReadonlyArray<DescribedOption>): string => {
  if (options.length === 0) return `${backend} names no options.`
  const longest = Math.max(...options.map(({ name }) => name.length), "option".length)
  const widths = [Math.min(longest, nameWidth), takesWidth, defaultWidth]
  const rest = total - widths.reduce((sum, width) => sum + width + 2, 0)
  const rows = options.flatMap((option) => {
    const value = option.default === undefined ? "" : shown(option.default)
    const texts = [option.name, takes(option), value, option.description ?? ""]
    const cells = texts.map((text, column) => wrap(text, [...widths, rest][column]!))
    const height = Math.max(...cells.map(({ length }) => length))
    return Array.from({ length: height }, (_, line) => cells.map((lines) => lines[line] ?? ""))
  })
  return table(["option", "takes", "default", "what it does"], rows)
}
