// SPDX-License-Identifier: Apache-2.0
/**
 * Regular expressions in Python's words, as the configs of adapters state them, made into programs of small steps.
 *
 * Invariant: a program has at most `mostSteps` steps, and nothing of it ever goes back in a name. What would need that is
 * refused: references to groups, looking behind, possessive counts. So a text from anywhere is as good as one of our own.
 */
import * as Result from "effect/Result"

/** One step. The steps of a name's characters name the next one; `Either` goes on in two places at once. */
export type Step =
  | { readonly _tag: "Character"; readonly test: (code: number) => boolean; readonly next: number }
  | { readonly _tag: "Either"; readonly first: number; readonly second: number }
  | { readonly _tag: "Place"; readonly is: Place; readonly next: number }
  /** Whether what follows in the name begins as a program of its own says. */
  | { readonly _tag: "Ahead"; readonly start: number; readonly isWanted: boolean; readonly next: number }
  | { readonly _tag: "Done" }

/** A place between characters. */
export type Place = "start" | "end" | "edge" | "inside"

/** A pattern taken apart. */
export interface PatternProgram {
  readonly steps: ReadonlyArray<Step>
  readonly start: number
}

/** Longest pattern that is read; the longest one seen in an adapter has 700 characters. */
export const mostCharacters = 4096
/** Most steps of a program. */
export const mostSteps = 4096
const deepest = 64

type Test = (code: number) => boolean

type Node =
  | { readonly _tag: "Empty" }
  | { readonly _tag: "Character"; readonly test: Test }
  | { readonly _tag: "Sequence"; readonly parts: ReadonlyArray<Node> }
  | { readonly _tag: "Choice"; readonly parts: ReadonlyArray<Node> }
  | { readonly _tag: "Repeat"; readonly part: Node; readonly least: number; readonly most: number | undefined }
  | { readonly _tag: "Place"; readonly is: Place }
  | { readonly _tag: "Ahead"; readonly part: Node; readonly isWanted: boolean }

type Parsed<A> = Result.Result<A, string>

/** Where the reading of a pattern stands. */
interface Cursor {
  readonly text: string
  at: number
  depth: number
}

const codeOf = (character: string): number => character.charCodeAt(0)
const between = (code: number, from: string, to: string): boolean => code >= codeOf(from) && code <= codeOf(to)
const isDigit: Test = (code) => between(code, "0", "9")
/** Whether a character belongs to a word. */
export const isWord: Test = (code) =>
  isDigit(code) || between(code, "a", "z") || between(code, "A", "Z") || code === codeOf("_")
const isSpace: Test = (code) => code === 32 || (code >= 9 && code <= 13)
const isNoBreak: Test = (code) => code !== 10
const not =
  (test: Test): Test =>
  (code) =>
    !test(code)
const exactly =
  (character: string): Test =>
  (code) =>
    code === codeOf(character)

const classes: { readonly [letter: string]: Test } = {
  d: isDigit,
  D: not(isDigit),
  w: isWord,
  W: not(isWord),
  s: isSpace,
  S: not(isSpace)
}
const controls: { readonly [letter: string]: string } = { n: "\n", r: "\r", t: "\t", f: "\f", v: "\v" }
const places: { readonly [letter: string]: Place } = { A: "start", Z: "end", b: "edge", B: "inside" }

const eat = (cursor: Cursor, text: string): boolean => {
  if (!cursor.text.startsWith(text, cursor.at)) return false
  cursor.at += text.length
  return true
}

const choice = (cursor: Cursor): Parsed<Node> =>
  Result.gen(function* () {
    if (cursor.depth >= deepest) return yield* Result.fail(`Groups are nested more than ${deepest} deep.`)
    cursor.depth++
    const parts = [yield* sequence(cursor)]
    while (eat(cursor, "|")) parts.push(yield* sequence(cursor))
    cursor.depth--
    return parts.length === 1 ? parts[0]! : { _tag: "Choice", parts }
  })

const sequence = (cursor: Cursor): Parsed<Node> =>
  Result.gen(function* () {
    const parts: Array<Node> = []
    while (cursor.at < cursor.text.length && !"|)".includes(cursor.text[cursor.at]!)) {
      parts.push(yield* counted(cursor, yield* one(cursor)))
    }
    return { _tag: "Sequence", parts }
  })

const counts: { readonly [sign: string]: readonly [number, number | undefined] } = {
  "*": [0, undefined],
  "+": [1, undefined],
  "?": [0, 1]
}

/** What stands behind a part says how often it comes. Whether it takes much or little makes no difference to a whole name. */
const counted = (cursor: Cursor, part: Node): Parsed<Node> =>
  Result.gen(function* () {
    const sign = counts[cursor.text[cursor.at] ?? ""]
    const braces =
      sign === undefined ? /^\{(\d{0,4})(,?)(\d{0,4})\}/.exec(cursor.text.slice(cursor.at, cursor.at + 12)) : null
    const isCount = braces !== null && (braces[1] !== "" || braces[2] !== "")
    if (sign === undefined && !isCount) return part
    if (part._tag === "Place" || part._tag === "Ahead") return yield* Result.fail("It counts a place.")
    cursor.at += braces === null ? 1 : braces[0].length
    eat(cursor, "?")
    if (/[*+?]/.test(cursor.text[cursor.at] ?? "")) return yield* Result.fail("It counts a count, or is possessive.")
    if (sign !== undefined) return { _tag: "Repeat", part, least: sign[0], most: sign[1] }
    const [, from, comma, to] = braces!
    const least = Number(from)
    const most = comma === "" ? least : to === "" ? undefined : Number(to)
    if (most !== undefined && most < least) return yield* Result.fail("A count ends before it begins.")
    return { _tag: "Repeat", part, least, most }
  })

const one = (cursor: Cursor): Parsed<Node> =>
  Result.gen(function* () {
    const character = cursor.text[cursor.at++]!
    switch (character) {
      case "(":
        return yield* group(cursor)
      case "[":
        return { _tag: "Character", test: yield* set(cursor) }
      case ".":
        return { _tag: "Character", test: isNoBreak }
      case "^":
        return { _tag: "Place", is: "start" }
      case "$":
        return { _tag: "Place", is: "end" }
      case "\\": {
        const place = places[cursor.text[cursor.at] ?? ""]
        if (place === undefined) return { _tag: "Character", test: yield* escaped(cursor) }
        cursor.at++
        return { _tag: "Place", is: place }
      }
      case "*":
      case "+":
      case "?":
        return yield* Result.fail(`"${character}" counts nothing.`)
      default:
        return { _tag: "Character", test: exactly(character) }
    }
  })

const escaped = (cursor: Cursor): Parsed<Test> => {
  const letter = cursor.text[cursor.at++]
  if (letter === undefined) return Result.fail("It ends with a backslash.")
  const known = classes[letter]
  if (known !== undefined) return Result.succeed(known)
  const control = controls[letter]
  if (control !== undefined) return Result.succeed(exactly(control))
  // References to groups, and letters that mean nothing.
  if (isWord(codeOf(letter)) && letter !== "_") return Result.fail(`"\\${letter}" is not read.`)
  return Result.succeed(exactly(letter))
}

const group = (cursor: Cursor): Parsed<Node> =>
  Result.gen(function* () {
    const isWanted = eat(cursor, "?=") ? true : eat(cursor, "?!") ? false : undefined
    if (isWanted === undefined && cursor.text[cursor.at] === "?") {
      const name = /^\?(:|P<[A-Za-z_]\w{0,99}>)/.exec(cursor.text.slice(cursor.at, cursor.at + 110))
      if (name === null) return yield* Result.fail(`"(${cursor.text.slice(cursor.at, cursor.at + 3)}" is not read.`)
      cursor.at += name[0].length
    }
    const part = yield* choice(cursor)
    if (!eat(cursor, ")")) return yield* Result.fail("A bracket stays open.")
    return isWanted === undefined ? part : { _tag: "Ahead", part, isWanted }
  })

/** A set of characters in square brackets, behind the first of them. */
const set = (cursor: Cursor): Parsed<Test> =>
  Result.gen(function* () {
    const isNegated = eat(cursor, "^")
    const tests: Array<Test> = []
    for (let isFirst = true; isFirst || cursor.text[cursor.at] !== "]"; isFirst = false) {
      const from = cursor.text[cursor.at++]
      if (from === undefined) return yield* Result.fail("A set of characters stays open.")
      const isEscape = from === "\\"
      const test = isEscape ? yield* escaped(cursor) : exactly(from)
      const low = isEscape ? cursor.text[cursor.at - 1]! : from
      const high = cursor.text[cursor.at + 1]
      if (cursor.text[cursor.at] !== "-" || high === undefined || high === "]") {
        tests.push(test)
        continue
      }
      if (high === "\\" || (isEscape && isWord(codeOf(low))) || high < low)
        return yield* Result.fail(`"${low}-${high}" is no range.`)
      cursor.at += 2
      tests.push((code) => between(code, low, high))
    }
    cursor.at++
    return (code) => tests.some((test) => test(code)) !== isNegated
  })

/** Steps of a node in front of those from `next` on; the first of them, or -1 where they are too many. */
const emit = (steps: Array<Step>, node: Node, next: number): number => {
  if (next < 0 || steps.length >= mostSteps) return -1
  const add = (step: Step): number => steps.push(step) - 1
  switch (node._tag) {
    case "Empty":
      return next
    case "Character":
      return add({ _tag: "Character", test: node.test, next })
    case "Place":
      return add({ _tag: "Place", is: node.is, next })
    case "Sequence":
      return node.parts.reduceRight((after, part) => emit(steps, part, after), next)
    case "Choice": {
      const starts = node.parts.map((part) => emit(steps, part, next))
      return starts.includes(-1) ? -1 : starts.reduceRight((second, first) => add({ _tag: "Either", first, second }))
    }
    case "Ahead": {
      const start = emit(steps, node.part, add({ _tag: "Done" }))
      return start < 0 ? -1 : add({ _tag: "Ahead", start, isWanted: node.isWanted, next })
    }
    case "Repeat": {
      let after = next
      if (node.most === undefined) {
        const loop = add({ _tag: "Done" })
        const start = emit(steps, node.part, loop)
        if (start < 0) return -1
        steps[loop] = { _tag: "Either", first: start, second: next }
        after = loop
      } else {
        for (let count = node.least; count < node.most && after >= 0; count++) {
          const first = emit(steps, node.part, after)
          if (first === after) break
          after = first < 0 || steps.length >= mostSteps ? -1 : add({ _tag: "Either", first, second: next })
        }
      }
      for (let count = 0; count < node.least && after >= 0; count++) {
        const first = emit(steps, node.part, after)
        // A part without steps may come as often as it likes.
        if (first === after) break
        after = first
      }
      return after
    }
  }
}

/** The program of a pattern, or why it is not read. */
export const patternProgram = (text: string): Result.Result<PatternProgram, string> =>
  Result.gen(function* () {
    if (text.length > mostCharacters) return yield* Result.fail(`It has more than ${mostCharacters} characters.`)
    const cursor: Cursor = { text, at: 0, depth: 0 }
    const node = yield* choice(cursor)
    if (cursor.at < text.length) return yield* Result.fail("A bracket closes that was not open.")
    const steps: Array<Step> = [{ _tag: "Done" }]
    const start = emit(steps, node, 0)
    if (start < 0 || steps.length > mostSteps) return yield* Result.fail(`It takes more than ${mostSteps} steps.`)
    return { steps, start }
  })
