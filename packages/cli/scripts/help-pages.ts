// SPDX-License-Identifier: Apache-2.0
/**
 * Writes the help of the command and of every subcommand as pages: JSON, by the names before `--help`. Packing puts the file
 * into the package; the source tree has none.
 *
 * Usage: node packages/cli/scripts/help-pages.ts FILE
 */
import { writeFileSync } from "node:fs"
import * as NodeServices from "@effect/platform-node/NodeServices"
import * as CliOutput from "effect/cli/CliOutput"
import * as Command from "effect/cli/Command"
import * as Effect from "effect/Effect"
import { makeRoot } from "../src/program.ts"
import type { HelpPage } from "../src/text/helpPage.ts"
import { helpPageOf } from "../src/usage.ts"

/** The page that the command would show for these names. */
const pageOf = async (names: ReadonlyArray<string>): Promise<HelpPage> => {
  const given = [...names, "--help"]
  const pages: Array<HelpPage> = []
  const presenter = CliOutput.layerPresenter({
    present: (event) =>
      Effect.sync(() => {
        if (event._tag === "Help") pages.push(helpPageOf(event.helpDoc))
      })
  })
  await Effect.runPromise(
    Effect.provide(Command.runWith(await makeRoot(given), { version: "" })(given), [NodeServices.layer, presenter])
  )
  const [page] = pages
  if (page === undefined) throw new Error(`there is no help of "${names.join(" ")}"`)
  return page
}

const collect = async (names: ReadonlyArray<string>): Promise<ReadonlyArray<readonly [string, HelpPage]>> => {
  const page = await pageOf(names)
  const below: Array<readonly [string, HelpPage]> = []
  for (const { kind, rows } of page.sections)
    if (kind === "command") for (const row of rows) below.push(...(await collect([...names, row.names[0]!])))
  return [[names.join(" "), page], ...below]
}

const [file] = process.argv.slice(2)
if (file === undefined || file.startsWith("-")) {
  console.error("usage: node packages/cli/scripts/help-pages.ts FILE")
  process.exitCode = 2
} else writeFileSync(file, `${JSON.stringify(Object.fromEntries(await collect([])), undefined, 1)}\n`)
