// SPDX-License-Identifier: Apache-2.0
/**
 * JSON as checkpoints need it: duplicate keys are faults, numbers keep their text, and objects are maps, so that a key
 * such as `__proto__` is a key like any other.
 *
 * Invariant: time and memory are linear in the text, and nesting is bounded, whatever the text says. Faults carry the
 * keys on the way to the place, because those are the names that a reader knows.
 */
import * as Result from "effect/Result"

/** A number as written. */
export interface JsonNumber {
  readonly number: string
}
export type JsonObject = ReadonlyMap<string, Json>
export type Json = null | boolean | string | JsonNumber | ReadonlyArray<Json> | JsonObject

export interface JsonFault {
  readonly detail: string
  /** Keys from the outermost object to the place of the fault. */
  readonly path: ReadonlyArray<string>
}

export const isJsonObject = (value: Json | undefined): value is JsonObject => value instanceof Map

export const isJsonArray = (value: Json | undefined): value is ReadonlyArray<Json> => Array.isArray(value)

/** The natural number that `value` spells exactly, without sign, fraction or exponent, up to 2^53 - 1. */
export const naturalOf = (value: Json | undefined): number | undefined => {
  if (typeof value !== "object" || value === null || !("number" in value)) return undefined
  if (!/^(0|[1-9][0-9]{0,15})$/.test(value.number)) return undefined
  const natural = Number(value.number)
  return Number.isSafeInteger(natural) ? natural : undefined
}

const nestingLimit = 32
const numberLengthLimit = 64
const numberPattern = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/

const quote = 0x22
const backslash = 0x5c

const isSpace = (code: number): boolean => code === 0x20 || code === 0x0a || code === 0x0d || code === 0x09

const isNumberPart = (code: number): boolean =>
  (code >= 0x30 && code <= 0x39) || code === 0x2b || code === 0x2d || code === 0x2e || code === 0x45 || code === 0x65

/**
 * Parses the value at the start of `text`; `end` is where the value ends, and what follows is the caller's to judge. Lists
 * of more than `itemLimit` items are refused before they are built.
 */
export const parseJson = (
  text: string,
  itemLimit = Number.POSITIVE_INFINITY
): Result.Result<{ readonly value: Json; readonly end: number }, JsonFault> => {
  let at = 0
  let fault: JsonFault | undefined
  const path: Array<string> = []

  /** Records the first fault; the parsers above it see it and leave. */
  const fail = (detail: string): undefined => {
    fault ??= { detail, path: [...path] }
    return undefined
  }
  const found = (): string => (at < text.length ? JSON.stringify(text[at]) : "the end")
  const expected = (what: string): undefined => fail(`expected ${what} at character ${at}, found ${found()}`)
  const skipSpace = (): void => {
    while (isSpace(text.charCodeAt(at))) at += 1
  }
  /** Takes `character` if it comes next. */
  const take = (character: string): boolean => {
    skipSpace()
    if (text[at] !== character) return false
    at += 1
    return true
  }

  const parseString = (): string | undefined => {
    const start = at
    let isPlain = true
    for (at += 1; text.charCodeAt(at) !== quote; at += 1) {
      if (at >= text.length) return fail(`the string at character ${start} has no end`)
      if (text.charCodeAt(at) < 0x20) return fail(`control character inside the string at character ${start}`)
      if (text.charCodeAt(at) === backslash) {
        isPlain = false
        at += 1
      }
    }
    at += 1
    if (isPlain) return text.slice(start + 1, at - 1)
    const parsed = Result.try((): unknown => JSON.parse(text.slice(start, at)))
    if (Result.isFailure(parsed) || typeof parsed.success !== "string" || !parsed.success.isWellFormed()) {
      return fail(`bad escape in the string at character ${start}`)
    }
    return parsed.success
  }

  const parseNumber = (): JsonNumber | undefined => {
    const start = at
    while (isNumberPart(text.charCodeAt(at))) at += 1
    const number = text.slice(start, Math.min(at, start + numberLengthLimit + 1))
    return number.length <= numberLengthLimit && numberPattern.test(number)
      ? { number }
      : fail(`bad number ${number} at character ${start}`)
  }

  const parseObject = (depth: number): JsonObject | undefined => {
    at += 1
    const entries = new Map<string, Json>()
    if (take("}")) return entries
    while (true) {
      skipSpace()
      if (text.charCodeAt(at) !== quote) return expected("a key")
      const key = parseString()
      if (key === undefined) return undefined
      path.push(key)
      if (entries.has(key)) return fail(`the key ${JSON.stringify(key)} occurs twice`)
      if (!take(":")) return expected('":"')
      const value = parseValue(depth + 1)
      if (value === undefined) return undefined
      entries.set(key, value)
      path.pop()
      if (take("}")) return entries
      if (!take(",")) return expected('"," or "}"')
    }
  }

  const parseArray = (depth: number): ReadonlyArray<Json> | undefined => {
    at += 1
    const items: Array<Json> = []
    if (take("]")) return items
    while (true) {
      const value = parseValue(depth + 1)
      if (value === undefined) return undefined
      items.push(value)
      if (items.length > itemLimit) return fail(`a list of more than ${itemLimit} items at character ${at}`)
      if (take("]")) return items
      if (!take(",")) return expected('"," or "]"')
    }
  }

  const parseWord = <A extends Json>(word: string, value: A): A | undefined => {
    if (!text.startsWith(word, at)) return expected("a value")
    at += word.length
    return value
  }

  const parseValue = (depth: number): Json | undefined => {
    if (depth > nestingLimit) return fail(`nested deeper than ${nestingLimit} levels at character ${at}`)
    skipSpace()
    switch (text[at]) {
      case "{":
        return parseObject(depth)
      case "[":
        return parseArray(depth)
      case '"':
        return parseString()
      case "t":
        return parseWord("true", true)
      case "f":
        return parseWord("false", false)
      case "n":
        return parseWord("null", null)
      default:
        return isNumberPart(text.charCodeAt(at)) ? parseNumber() : expected("a value")
    }
  }

  const value = parseValue(0)
  return value === undefined
    ? Result.fail(fault ?? { detail: "no value", path: [] })
    : Result.succeed({ value, end: at })
}

/** UTF-8, strictly: `undefined` where the bytes are not well formed. */
export const decodeUtf8 = (bytes: Uint8Array): string | undefined =>
  Result.getOrUndefined(Result.try(() => new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes)))
