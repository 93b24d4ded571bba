// SPDX-License-Identifier: Apache-2.0
/**
 * Writes the help of the command and of every subcommand, as the command renders it, for a terminal with colors: JSON, by
 * the names before `--help`. Packing puts the file into the package; the source tree has none.
 *
 * Usage: node scripts/help-texts.ts FILE
 */
import { spawn } from "node:child_process"
import { writeFileSync } from "node:fs"
import * as path from "node:path"
import { stripVTControlCharacters } from "node:util"

const sources = path.resolve(import.meta.dirname, "../packages/cli/src")

/** From the module behind main.ts, which answers with no text of its own. */
const rendered = (names: ReadonlyArray<string>): Promise<string> =>
  new Promise((resolve, reject) => {
    const { NO_COLOR: _, ...environment } = process.env
    const child = spawn(process.execPath, [path.join(sources, "command.ts"), ...names, "--help"], {
      env: { ...environment, FORCE_COLOR: "1", TERM: "xterm" },
      stdio: ["ignore", "pipe", "inherit"],
      timeout: 60_000
    })
    let text = ""
    child.stdout.setEncoding("utf8").on("data", (part: string) => {
      text += part
    })
    child.once("error", reject)
    child.once("close", (code) => {
      if (code === 0) resolve(text.replace(/\n$/, ""))
      else reject(new Error(`the help of "${names.join(" ")}" ended with ${code}`))
    })
  })

const subcommandsIn = (text: string): ReadonlyArray<string> => {
  const [, section = ""] = /^SUBCOMMANDS\n((?: {2}.*\n?)*)/m.exec(stripVTControlCharacters(text)) ?? []
  return [...section.matchAll(/^ {2}([a-z][a-z-]*)/gm)].map(([, name]) => name!)
}

const collect = async (names: ReadonlyArray<string>): Promise<ReadonlyArray<readonly [string, string]>> => {
  const text = await rendered(names)
  const below = await Promise.all(subcommandsIn(text).map((name) => collect([...names, name])))
  return [[names.join(" "), text], ...below.flat()]
}

const [file] = process.argv.slice(2)
if (file === undefined || file.startsWith("-")) {
  console.error("usage: node scripts/help-texts.ts FILE")
  process.exitCode = 2
} else writeFileSync(file, `${JSON.stringify(Object.fromEntries(await collect([])), undefined, 1)}\n`)
