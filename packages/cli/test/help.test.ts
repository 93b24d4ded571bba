// SPDX-License-Identifier: Apache-2.0
/**
 * A packed command answers help and version from texts, without loading what carries commands out; they are what the
 * command itself would say. The source tree has no texts of help and leaves it to the command.
 */
import { type SpawnSyncReturns, spawnSync } from "node:child_process"
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { stripTypeScriptTypes } from "node:module"
import { tmpdir } from "node:os"
import * as path from "node:path"
import { fileURLToPath } from "node:url"
import { stripVTControlCharacters } from "node:util"
import { assert, describe, it } from "@effect/vitest"
import { afterAll, beforeAll, onTestFinished } from "vitest"

const here = (file: string): string => fileURLToPath(new URL(file, import.meta.url))

/** What a user starts, and the module behind it, which has no text of its own. */
const main = here("../src/main.ts")
const command = here("../src/command.ts")

const start = (args: ReadonlyArray<string>, environment: NodeJS.ProcessEnv = {}): SpawnSyncReturns<string> => {
  const { NODE_OPTIONS: _, NO_COLOR: __, FORCE_COLOR: ___, ...rest } = process.env
  return spawnSync(process.execPath, args, {
    env: { ...rest, TERM: "xterm", ...environment },
    encoding: "utf8",
    timeout: 60_000
  })
}

/** Prints on standard error, as JSON, what was loaded. */
const recorder = `data:text/javascript,${encodeURIComponent(`
  import { registerHooks } from "node:module"
  const loaded = []
  registerHooks({ load: (url, context, next) => { loaded.push(url); return next(url, context) } })
  process.on("exit", () => process.stderr.write(JSON.stringify(loaded)))`)}`

/** The modules that answer, with the texts beside them, as in the packed package; what they must not import is not there. */
const packed = mkdtempSync(path.join(tmpdir(), "tensorferry-help-"))
const packedMain = path.join(packed, "dist/main.ts")
const textsFile = path.join(packed, "dist/helpTexts.json")
const texts = (): Readonly<Record<string, string>> => JSON.parse(readFileSync(textsFile, "utf8"))

beforeAll(() => {
  mkdirSync(path.dirname(packedMain))
  copyFileSync(here("../package.json"), path.join(packed, "package.json"))
  for (const file of ["main.ts", "help.ts"]) copyFileSync(here(`../src/${file}`), path.join(packed, "dist", file))
  const ended = start([here("../scripts/help-texts.ts"), textsFile])
  assert.strictEqual(ended.status, 0, ended.stderr)
}, 120_000)
afterAll(() => rmSync(packed, { recursive: true, force: true }))

describe("what the command says about itself", () => {
  it.each([
    { args: [] },
    { args: ["--help"] },
    { args: ["reshard", "-h"] },
    { args: ["backends", "conformance", "--help"] },
    { args: ["--version"] }
  ])("$args, packed, loads the answering modules alone and is what the command renders", ({ args }) => {
    const colors = { FORCE_COLOR: "1" }
    const ended = start(["--import", recorder, packedMain, ...args], colors)
    assert.strictEqual(ended.status, 0, ended.stderr)
    const files = (JSON.parse(ended.stderr) as ReadonlyArray<string>).filter((url) => url.startsWith("file:"))
    assert.deepStrictEqual(
      files.map((url) => url.slice(url.lastIndexOf("/") + 1)).filter((name) => name !== "package.json"),
      ["main.ts", "help.ts"]
    )
    assert.strictEqual(ended.stdout, start([command, ...args], colors).stdout)
  })

  it("the source tree renders its help", () => {
    const ended = start(["--import", recorder, main, "plan", "--help"])
    assert.strictEqual(ended.status, 0)
    assert.include(JSON.parse(ended.stderr), new URL("../src/command.ts", import.meta.url).href)
    assert.strictEqual(ended.stdout.trimEnd(), stripVTControlCharacters(texts().plan!))
  })

  it("shows defaults, and what arguments are", () => {
    const wanted: ReadonlyArray<readonly [name: string, lines: ReadonlyArray<RegExp>]> = [
      ["replay bench", [/--rows .*4096/, /--width .*256/, /--ring .*2 by/, /--ticks .*100 by/, /--compute .*20 by/]],
      ["replay demo", [/--ticks .*20 by/]],
      ["bench", [/--ranks .*2 by/]],
      ["backends conformance", [/--ranks .*4 by/, /--case-seconds .*60 by/]],
      ["verify", [/A string.*\w\w/, /B string.*\w\w/]]
    ]
    for (const [name, lines] of wanted) {
      const text = stripVTControlCharacters(texts()[name]!)
      for (const line of lines) assert.match(text, line, name)
    }
  })

  it("the texts are of the command and every subcommand", () => {
    // Some of the first, the second and the last level.
    assert.includeMembers(Object.keys(texts()), ["", "plan", "plan check", "backends conformance", "agent"])
  })

  it.each([
    { environment: {} },
    { environment: { FORCE_COLOR: "1" } },
    { environment: { FORCE_COLOR: "0" } },
    { environment: { FORCE_COLOR: "False" } },
    { environment: { FORCE_COLOR: "1", TERM: "dumb" } },
    { environment: { FORCE_COLOR: "1", NO_COLOR: "1" } },
    { environment: { FORCE_COLOR: "1", NO_COLOR: "" } }
  ])("has the colors that the command would use: $environment", ({ environment }) => {
    const said = start([main, "--version"], environment)
    assert.strictEqual(said.status, 0, said.stderr)
    assert.strictEqual(said.stdout, start([command, "--version"], environment).stdout)
  })

  it.each([
    { args: ["--help", "plan"], code: 0 },
    { args: ["plan", "--json", "--help"], code: 0 },
    { args: ["toString", "--help"], code: 2 },
    { args: ["plan check", "--help"], code: 2 },
    { args: ["plan", "no-such-file", "--no-such-flag"], code: 2 }
  ])("$args is left to the command", ({ args, code }) => {
    const [said, would] = [start([main, ...args]), start([command, ...args])]
    assert.strictEqual(would.status, code, would.stdout)
    assert.match(start([packedMain, ...args]).stderr, /ERR_MODULE_NOT_FOUND/)
    assert.deepStrictEqual([said.status, said.stdout, said.stderr], [would.status, would.stdout, would.stderr])
  })
})

/** Lets the command believe that another Node runs it. */
const pretend = (node: string): string =>
  `data:text/javascript,${encodeURIComponent(
    `Object.defineProperty(process, "versions", { value: { ...process.versions, node: "${node}" } })`
  )}`

/** A Node of this machine that is too old, with its version; most have none. */
const oldNode = (process.env.PATH ?? "")
  .split(path.delimiter)
  .map((folder) => path.join(folder, "node"))
  .map((file) => ({
    file,
    version: spawnSync(file, ["--version"], { encoding: "utf8" }).stdout?.trim().slice(1) ?? ""
  }))
  .find(({ version }) => /^(1[4-9]|2[01])\./.test(version))

const refusalBy = (version: string) =>
  new RegExp(`^tensorferry needs Node 22\\.19 or newer; this is Node ${version} \\(.*\\)\\.\n$`)

describe("on a Node that is too old", () => {
  it.each([
    { node: "20.11.1", args: ["--version"] },
    { node: "22.18.0", args: [] },
    { node: "21.7.3", args: ["plan", "--help"] },
    { node: "18.20.0", args: ["doctor", "--json"] }
  ])("$node, $args says in one line which one is needed", ({ node, args }) => {
    const ended = start(["--import", pretend(node), main, ...args])
    assert.strictEqual(ended.status, 1)
    assert.strictEqual(ended.stdout, "")
    assert.match(ended.stderr, refusalBy(node))
  })

  it("goes on with the first that it can work with", () => {
    const ended = start(["--import", pretend("22.19.0"), main, "--version"])
    assert.strictEqual(ended.status, 0, ended.stderr)
  })

  it.skipIf(oldNode === undefined)("reads the program far enough to say so", () => {
    const folder = mkdtempSync(path.join(tmpdir(), "tensorferry-old-"))
    onTestFinished(() => rmSync(folder, { recursive: true, force: true }))
    // Alone: what it must not import is not there.
    const program = path.join(folder, "main.mjs")
    writeFileSync(program, stripTypeScriptTypes(readFileSync(main, "utf8")))
    const ended = spawnSync(oldNode!.file, [program, "--version"], { encoding: "utf8", timeout: 60_000 })
    assert.strictEqual(ended.status, 1)
    assert.match(ended.stderr, refusalBy(oldNode!.version))
  })
})
