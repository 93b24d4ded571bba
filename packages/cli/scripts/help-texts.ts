// SPDX-License-Identifier: Apache-2.0
/**
 * Writes the help of the command and of every subcommand, as the command renders it, for a terminal with colors: JSON, by
 * the names before `--help`. Packing puts the file into the package; the source tree has none.
 *
 * Usage: node packages/cli/scripts/help-texts.ts FILE
 */
import { writeFileSync } from "node:fs"
import { stripVTControlCharacters } from "node:util"
import * as Effect from "effect/Effect"

// Effect looks at these where it decides about colors.
delete process.env.NO_COLOR
Object.assign(process.env, { FORCE_COLOR: "1", TERM: "xterm" })

const { makeProgram } = await import("../src/program.ts")

/** What the command prints: all of it by `console.log`, and nothing of two calls at once. */
const rendered = async (names: ReadonlyArray<string>): Promise<string> => {
  const lines: Array<string> = []
  const { log } = console
  console.log = (...said) => void lines.push(said.join(" "))
  try {
    await Effect.runPromise(await makeProgram([...names, "--help"]))
  } finally {
    console.log = log
  }
  if (process.exitCode) throw new Error(`the help of "${names.join(" ")}" ended with ${process.exitCode}`)
  return lines.join("\n")
}

const subcommandsIn = (text: string): ReadonlyArray<string> => {
  const [, section = ""] = /^SUBCOMMANDS\n((?: {2}.*\n?)*)/m.exec(stripVTControlCharacters(text)) ?? []
  return [...section.matchAll(/^ {2}([a-z][a-z-]*)/gm)].map(([, name]) => name!)
}

const collect = async (names: ReadonlyArray<string>): Promise<ReadonlyArray<readonly [string, string]>> => {
  const text = await rendered(names)
  const below: Array<readonly [string, string]> = []
  for (const name of subcommandsIn(text)) below.push(...(await collect([...names, name])))
  return [[names.join(" "), text], ...below]
}

const [file] = process.argv.slice(2)
if (file === undefined || file.startsWith("-")) {
  console.error("usage: node packages/cli/scripts/help-texts.ts FILE")
  process.exitCode = 2
} else writeFileSync(file, `${JSON.stringify(Object.fromEntries(await collect([])), undefined, 1)}\n`)
