// SPDX-License-Identifier: Apache-2.0
/**
 * Patterns of names: `{layer}` stands for a number, `{kind*}` for one name between dots, `{owner...}` for any run of them.
 * In a name that is made, `{layer.local}` is the number as the rank counts it.
 */

/** What a pattern's variables stand for; numbers stay text, as names hold them. */
export type Bindings = ReadonlyMap<string, string>

type Kind = "number" | "name" | "names" | "local"

type Token = string | { readonly variable: string; readonly kind: Kind }

/** A pattern, taken apart. */
export interface NamePattern {
  readonly text: string
  readonly tokens: ReadonlyArray<Token>
  readonly expression: RegExp
  readonly variables: ReadonlySet<string>
}

const variable = /\{([a-zA-Z]\w*)(\.\.\.|\*|\.local)?\}/g
const kinds: { readonly [suffix: string]: Kind } = { "...": "names", "*": "name", ".local": "local" }
const expressions: { readonly [Name in Kind]: string } = {
  number: "(0|[1-9]\\d{0,8})",
  local: "(0|[1-9]\\d{0,8})",
  name: "([^.]+)",
  names: "(.+)"
}

const known = new Map<string, NamePattern>()

/** Names are short; a pattern is looked at once. */
export const namePattern = (text: string): NamePattern => {
  const found = known.get(text)
  if (found !== undefined) return found
  const tokens: Array<Token> = []
  let expression = ""
  let at = 0
  const seen: Array<string> = []
  for (const match of text.matchAll(variable)) {
    const before = text.slice(at, match.index)
    if (before !== "") tokens.push(before)
    expression += escaped(before)
    const kind = kinds[match[2] ?? ""] ?? "number"
    const name = match[1]!
    expression += seen.includes(name) ? `\\${seen.indexOf(name) + 1}` : expressions[kind]
    if (!seen.includes(name)) seen.push(name)
    tokens.push({ variable: name, kind })
    at = match.index + match[0].length
  }
  tokens.push(text.slice(at))
  expression += escaped(text.slice(at))
  const pattern: NamePattern = { text, tokens, expression: new RegExp(`^${expression}$`), variables: new Set(seen) }
  known.set(text, pattern)
  return pattern
}

const escaped = (text: string): string => text.replaceAll(/[.*+?^${}()|[\]\\]/g, "\\$&")

/** What the variables stand for where a name fits a pattern. */
export const matchName = (pattern: NamePattern, name: string): Bindings | undefined => {
  const match = pattern.expression.exec(name)
  if (match === null) return undefined
  return new Map([...pattern.variables].map((variable, at) => [variable, match[at + 1]!]))
}

/** The name with what its variables stand for; a variable without a value keeps its braces. */
export const fillName = (pattern: NamePattern, bindings: Bindings, local?: Bindings): string =>
  pattern.tokens
    .map((token) => {
      if (typeof token === "string") return token
      const { variable: name, kind } = token
      return kind === "local" ? (local?.get(name) ?? `{${name}.local}`) : (bindings.get(name) ?? `{${name}}`)
    })
    .join("")

/** Names that differ in numbers only have one skeleton. */
export const skeletonOf = (name: string): string => name.replaceAll(/\d+/g, "0")
