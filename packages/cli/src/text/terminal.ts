// SPDX-License-Identifier: Apache-2.0
/**
 * Where text leaves for the terminal. Names of tensors, paths and messages are other people's words: a checkpoint must not
 * be able to move the cursor, hide a line or print a verdict of its own.
 *
 * Invariant: of what is printed here, only letters, marks and line breaks of this command's own reach the terminal. Every
 * control character, mark of direction and invisible character is written as an escape of JSON, which documents of JSON
 * keep their meaning with. Colours are for help, whose words are all this command's own.
 */
import * as Console from "effect/Console"
import type * as Effect from "effect/Effect"
import { inLocale } from "./locale.ts"

export { inLocale, isAsciiOnly } from "./locale.ts"

/** Controls of C0 and C1, formats such as marks of direction, separators of lines and paragraphs. */
const unprintable = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu

const escaped = (character: string): string =>
  Array.from(
    { length: character.length },
    (_, at) => `\\u${character.charCodeAt(at).toString(16).padStart(4, "0")}`
  ).join("")

/** Text of several lines that shows what it holds. */
export const plain = (text: string): string =>
  text.replace(unprintable, (character) => (character === "\n" || character === "\t" ? character : escaped(character)))

/** A name, or what stands in one line with names. */
export const plainLine = (text: string): string =>
  plain(text).replace(/[\n\t]/g, (character) => (character === "\n" ? "\\n" : "\\t"))

/** A message in one line. */
export const inOneLine = (text: string): string => plain(text.replaceAll(/\s*\n\s*/g, " ").trim())

/** Lines no wider than a terminal, where there is one: broken at spaces, what follows further in. */
export const wrapped = (text: string, width: number | undefined): string => {
  if (width === undefined || width < 20) return text
  return text
    .split("\n")
    .map((line) => {
      const indent = " ".repeat(line.search(/\S|$/))
      const lines: Array<string> = []
      let current = indent
      for (const word of line.trimStart().split(" ")) {
        const isBegun = current.trim() !== ""
        if (isBegun && current.length + 1 + word.length > width) {
          lines.push(current)
          current = `${indent}    ${word}`
        } else current += `${isBegun ? " " : ""}${word}`
      }
      return [...lines, current].join("\n")
    })
    .join("\n")
}

/** Columns of the terminal on standard output. */
export const terminalWidth = (): number | undefined =>
  process.stdout.isTTY === true ? process.stdout.columns : undefined

/** Prints on standard output as it is: documents that programs read. */
export const print = (text: string): Effect.Effect<void> => Console.log(plain(text))

/** Prints on standard output for people, no wider than their terminal. */
export const printText = (text: string): Effect.Effect<void> => print(inLocale(wrapped(plain(text), terminalWidth())))

/** Clears the terminal on standard output and prints this, no wider and no longer than the terminal. */
export const redraw = (text: string, columns: number): Effect.Effect<void> => {
  const rows = process.stdout.rows ?? Number.POSITIVE_INFINITY
  const lines = inLocale(wrapped(plain(text), columns)).split("\n")
  return Console.log(`\u001b[H\u001b[2J${lines.slice(0, Math.max(1, rows - 1)).join("\n")}`)
}

/** Prints a document for programs, or text for people. */
export const printEither = (asJson: boolean, document: () => unknown, text: () => string): Effect.Effect<void> =>
  asJson ? print(JSON.stringify(document(), null, 2)) : printText(text())

/** Prints help, which has no word of others and may have colours. */
export const printHelp = (text: string): Effect.Effect<void> => Console.log(text)

/** Prints on standard error. */
export const printError = (text: string): Effect.Effect<void> =>
  Console.error(inLocale(wrapped(plain(text), process.stderr.isTTY === true ? process.stderr.columns : undefined)))
