// SPDX-License-Identifier: Apache-2.0
/**
 * Answers that need no more than a text: help and version, before anything that carries work out is loaded.
 *
 * Invariant: what is said here is what `command.ts` says, to the byte; a command line that is not known here word for
 * word is left to it. `scripts/help-texts.ts` writes the texts.
 */
import { createRequire } from "node:module"
import { stripVTControlCharacters } from "node:util"
import { helpTexts } from "./helpTexts.ts"

/** As in effect's `TerminalCapabilities`. */
const canColor = ({ NO_COLOR, FORCE_COLOR, TERM }: NodeJS.ProcessEnv): boolean => {
  if (TERM === "dumb" || (NO_COLOR !== undefined && NO_COLOR !== "")) return false
  const forced = FORCE_COLOR !== undefined && !["", "0", "false"].includes(FORCE_COLOR.toLowerCase())
  return forced || process.stdout.isTTY === true
}

/** One folder below the package's own, in the sources as in what is published. */
const versionText = (): string => {
  const { version } = createRequire(import.meta.url)("../package.json") as { readonly version: string }
  return `\u001b[1mtensorferry\u001b[0m \u001b[2mv\u001b[0m\u001b[1m${version}\u001b[0m`
}

const textFor = (given: ReadonlyArray<string>): string | undefined => {
  const last = given.at(-1)
  if (last === undefined) return helpTexts[""]
  const before = given.slice(0, -1)
  if (last === "--help" || last === "-h") {
    const names = before.join(" ")
    return Object.hasOwn(helpTexts, names) && !before.some((name) => name.includes(" ")) ? helpTexts[names] : undefined
  }
  return before.length === 0 && (last === "--version" || last === "-v") ? versionText() : undefined
}

/** Whether the arguments were answered. */
export const answer = (given: ReadonlyArray<string>): boolean => {
  const text = textFor(given)
  if (text === undefined) return false
  console.log(canColor(process.env) ? text : stripVTControlCharacters(text))
  return true
}
