// SPDX-License-Identifier: Apache-2.0
/**
 * A packed command answers help and version from pages, without loading what carries commands out; they are what the
 * command itself would say, whatever it is asked for and wherever it prints.
 */
import { spawnSync } from "node:child_process"
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { stripTypeScriptTypes } from "node:module"
import { tmpdir } from "node:os"
import * as path from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { onTestFinished } from "vitest"
import {
  answering,
  command,
  main,
  packBefore,
  packedMain,
  pretend,
  recorder,
  refusalBy,
  start
} from "./support/helpCommand.ts"

packBefore()

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
      files.map((url) => url.slice(url.indexOf("/dist/") + 6)).filter((name) => !name.endsWith("package.json")),
      answering
    )
    assert.strictEqual(ended.stdout, start([command, ...args], colors).stdout)
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

/** A Node of this machine that is too old, with its version; most have none. */
const oldNode = (process.env.PATH ?? "")
  .split(path.delimiter)
  .map((folder) => path.join(folder, "node"))
  .map((file) => ({
    file,
    version: spawnSync(file, ["--version"], { encoding: "utf8" }).stdout?.trim().slice(1) ?? ""
  }))
  .find(({ version }) => /^(1[4-9]|2[01])\./.test(version))

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
