// SPDX-License-Identifier: Apache-2.0
/**
 * Answers that need no more than a text: help and version, before anything that carries work out is loaded.
 *
 * Invariant: what is said here is what `command.ts` says, to the byte; a command line that is not known here word for
 * word is left to it. The texts of help are rendered when the package is packed (`packages/cli/scripts/help-texts.ts`); the source tree
 * has none, so there the command renders its help at every call.
 */
import { readFileSync } from "node:fs"
import { createRequire } from "node:module"
import { stripVTControlCharacters } from "node:util"

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

const helpText = (names: ReadonlyArray<string>): string | undefined => {
  if (names.some((name) => name.includes(" "))) return undefined
  try {
    const texts: Readonly<Record<string, string>> = JSON.parse(
      readFileSync(new URL("./helpTexts.json", import.meta.url), "utf8")
    )
    return Object.hasOwn(texts, names.join(" ")) ? texts[names.join(" ")] : undefined
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
  console.log(canColor(process.env) ? text : stripVTControlCharacters(text))
  return true
}
