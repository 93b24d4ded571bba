/**
 * Help and version are answered from texts, without loading what carries commands out; they are what the command itself
 * would say.
 */
import { type SpawnSyncReturns, spawnSync } from "node:child_process"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import { helpTexts } from "../src/helpTexts.ts"

const here = (file: string): string => fileURLToPath(new URL(file, import.meta.url))

/** What a user starts, and the module behind it, which has no text of its own. */
const main = here("../src/main.ts")
const command = here("../src/command.ts")

/** Compiled code, kept for all tests of the command. */
const compiled = here("../node_modules/.cache/compiled")

const start = (args: ReadonlyArray<string>, environment: NodeJS.ProcessEnv = {}): SpawnSyncReturns<string> => {
  const { NODE_OPTIONS: _, NO_COLOR: __, FORCE_COLOR: ___, ...rest } = process.env
  return spawnSync(process.execPath, args, {
    env: { ...rest, TERM: "xterm", NODE_COMPILE_CACHE: compiled, ...environment },
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

const loadedBy = (args: ReadonlyArray<string>): ReadonlyArray<string> => {
  const ended = start(["--import", recorder, main, ...args])
  assert.strictEqual(ended.status, 0, ended.stderr)
  assert.isNotEmpty(ended.stdout)
  return JSON.parse(ended.stderr) as ReadonlyArray<string>
}

describe("what the command says about itself", () => {
  it.each([
    { args: [] },
    { args: ["--help"] },
    { args: ["reshard", "-h"] },
    { args: ["backends", "conformance", "--help"] },
    { args: ["--version"] }
  ])("$args loads the texts alone", ({ args }) => {
    const files = loadedBy(args).filter((url) => url.startsWith("file:"))
    assert.deepStrictEqual(
      files.map((url) => url.slice(url.lastIndexOf("/") + 1)).filter((name) => name !== "package.json"),
      ["main.ts", "compileCache.ts", "help.ts", "helpTexts.ts"]
    )
  })

  it("is what the command renders, for it and every subcommand", () => {
    const ended = start([here("../../../scripts/help-texts.ts"), "--check"])
    assert.strictEqual(ended.status, 0, ended.stderr)
    // Some of the first, the second and the last level.
    assert.includeMembers(Object.keys(helpTexts), ["", "plan", "plan check", "backends conformance", "agent"])
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
    { args: ["toString", "--help"], code: 0 },
    { args: ["plan check", "--help"], code: 0 },
    { args: ["plan", "no-such-file", "--no-such-flag"], code: 2 }
  ])("$args is left to the command", ({ args, code }) => {
    const [said, would] = [start([main, ...args]), start([command, ...args])]
    assert.strictEqual(would.status, code, would.stdout)
    assert.deepStrictEqual([said.status, said.stdout, said.stderr], [would.status, would.stdout, would.stderr])
  })
})
