// SPDX-License-Identifier: Apache-2.0
/**
 * Writes packages/cli/src/helpTexts.ts: the help of the command and of every subcommand, as the command renders it.
 * `--check` writes nothing and fails where the file says something else than the command.
 */
import { spawn } from "node:child_process"
import { readFileSync, writeFileSync } from "node:fs"
import * as path from "node:path"
import { stripVTControlCharacters } from "node:util"

const sources = path.resolve(import.meta.dirname, "../packages/cli/src")
const file = path.join(sources, "helpTexts.ts")

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

const literal = (text: string): string =>
  `\`${text.replaceAll("\\", "\\\\").replaceAll("`", "\\`").replaceAll("${", "\\${").replaceAll("\u001b", "\\u001b")}\``

const entries = await collect([])
const written = `// SPDX-License-Identifier: Apache-2.0
/**
 * What \`--help\` says of the command and of each subcommand, by the names before it, for a terminal with colors. Written
 * by \`node scripts/help-texts.ts\` from what the command itself renders; a test compares both.
 */
export const helpTexts: Readonly<Record<string, string>> = {
${entries.map(([names, text]) => `  ${/^[a-z]+$/.test(names) ? names : JSON.stringify(names)}: ${literal(text)}`).join(",\n")}
}
`
if (!process.argv.includes("--check")) writeFileSync(file, written)
else if (readFileSync(file, "utf8") !== written) {
  console.error("helpTexts.ts is not what the command says; run: node scripts/help-texts.ts")
  process.exitCode = 1
}
