// SPDX-License-Identifier: Apache-2.0
/** Starts the command as users do, and a packed one that has its pages of help and the modules that answer with them alone. */
import { type SpawnSyncReturns, spawnSync } from "node:child_process"
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import * as path from "node:path"
import { fileURLToPath } from "node:url"
import { assert } from "@effect/vitest"
import { afterAll, beforeAll } from "vitest"
import type { HelpPage } from "../../src/text/helpPage.ts"

const here = (file: string): string => fileURLToPath(new URL(file, import.meta.url))

/** What a user starts, and the module behind it, which has no text of its own. */
export const main = here("../../src/main.ts")
export const command = here("../../src/command.ts")

export const start = (args: ReadonlyArray<string>, environment: NodeJS.ProcessEnv = {}): SpawnSyncReturns<string> => {
  const { NODE_OPTIONS: _, NO_COLOR: __, FORCE_COLOR: ___, ...rest } = process.env
  return spawnSync(process.execPath, args, {
    env: { ...rest, TERM: "xterm", ...environment },
    encoding: "utf8",
    timeout: 60_000
  })
}

/** Prints on standard error, as JSON, what was loaded. */
export const recorder = `data:text/javascript,${encodeURIComponent(`
  import { registerHooks } from "node:module"
  const loaded = []
  registerHooks({ load: (url, context, next) => { loaded.push(url); return next(url, context) } })
  process.on("exit", () => process.stderr.write(JSON.stringify(loaded)))`)}`

/** The modules that answer, with the pages beside them, as in the packed package; what they must not import is not there. */
const packed = mkdtempSync(path.join(tmpdir(), "tensorferry-help-"))
export const packedMain = path.join(packed, "dist/main.ts")
const pagesFile = path.join(packed, "dist/helpPages.json")
export const pages = (): Readonly<Record<string, HelpPage>> => JSON.parse(readFileSync(pagesFile, "utf8"))

/** The modules of a packed command that answers without the rest. */
export const answering = ["main.ts", "help.ts", "text/helpPage.ts", "text/locale.ts"]

/** Makes the packed command before the tests of the file that calls this, and removes it after them. */
export const packBefore = (): void => {
  beforeAll(() => {
    mkdirSync(path.join(path.dirname(packedMain), "text"), { recursive: true })
    copyFileSync(here("../../package.json"), path.join(packed, "package.json"))
    for (const file of answering) copyFileSync(here(`../../src/${file}`), path.join(packed, "dist", file))
    const ended = start([here("../../scripts/help-pages.ts"), pagesFile])
    assert.strictEqual(ended.status, 0, ended.stderr)
  }, 120_000)
  afterAll(() => rmSync(packed, { recursive: true, force: true }))
}

/** Lets the command believe that another Node runs it. */
export const pretend = (node: string): string =>
  `data:text/javascript,${encodeURIComponent(
    `Object.defineProperty(process, "versions", { value: { ...process.versions, node: "${node}" } })`
  )}`

/** What it says of that. */
export const refusalBy = (version: string) =>
  new RegExp(`^tensorferry needs Node 22\\.19 or newer; this is Node ${version} \\(.*\\)\\.\n$`)
