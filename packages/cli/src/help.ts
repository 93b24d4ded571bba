// SPDX-License-Identifier: Apache-2.0
/**
 * Answers that need no more than a page: help and version, before anything that carries work out is loaded.
 *
 * Invariant: what is said here is what `command.ts` says, to the byte; a command line that is not known here word for
 * word is left to it. The pages of help are collected when the package is packed (`packages/cli/scripts/help-pages.ts`); the
 * source tree has none, so there the command makes its help at every call.
 */
import { readFileSync } from "node:fs"
import { createRequire } from "node:module"
import { stripVTControlCharacters } from "node:util"
import { type HelpPage, helpStyle, renderHelp } from "./text/helpPage.ts"

/** One folder below the package's own, in the sources as in what is published. */
const versionText = (): string => {
  const { version } = createRequire(import.meta.url)("../package.json") as { readonly version: string }
  return `\u001b[1mtensorferry\u001b[0m \u001b[2mv\u001b[0m\u001b[1m${version}\u001b[0m`
}

const helpText = (names: ReadonlyArray<string>): string | undefined => {
  if (names.some((name) => name.includes(" "))) return undefined
  try {
    const pages: Readonly<Record<string, HelpPage>> = JSON.parse(
      readFileSync(new URL("./helpPages.json", import.meta.url), "utf8")
    )
    const name = names.join(" ")
    return Object.hasOwn(pages, name) ? renderHelp(pages[name]!, helpStyle()) : undefined
  } catch {
    return undefined
  }
}

const textFor = (given: ReadonlyArray<string>): string | undefined => {
  const last = given.at(-1)
  if (last === undefined) return helpText([])
  const before = given.slice(0, -1)
  if (last === "--help" || last === "-h") return helpText(before)
  return before.length === 0 && (last === "--version" || last === "-v") ? versionText() : undefined
}

/** Whether the arguments were answered. */
export const answer = (given: ReadonlyArray<string>): boolean => {
  const text = textFor(given)
  if (text === undefined) return false
  console.log(helpStyle().hasColor ? text : stripVTControlCharacters(text))
  return true
}
