// SPDX-License-Identifier: Apache-2.0
/** Where compiled code is kept between starts: in a folder that only this user can write to, or nowhere. */
import { spawnSync } from "node:child_process"
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import * as path from "node:path"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import { onTestFinished } from "vitest"

const main = fileURLToPath(new URL("../src/main.ts", import.meta.url))

const makeHome = (): string => {
  const home = mkdtempSync(path.join(tmpdir(), "tensorferry-home-"))
  onTestFinished(() => rmSync(home, { recursive: true, force: true }))
  return home
}

/** Starts the command with this home, and nothing else that says where to keep code. */
const start = (environment: NodeJS.ProcessEnv) => {
  const { NODE_COMPILE_CACHE: _, XDG_CACHE_HOME: __, ...rest } = process.env
  // Not one of the texts that are answered without loading the command.
  const ended = spawnSync(process.execPath, [main, "--log-level", "none", "--version"], {
    env: { ...rest, ...environment },
    encoding: "utf8",
    timeout: 60_000
  })
  assert.strictEqual(ended.status, 0, ended.stderr)
  assert.include(ended.stdout, "0.1.0")
}

describe("compiled code", () => {
  it("is kept in the user's cache, readable by this user only", () => {
    const home = makeHome()
    start({ HOME: home })
    const folder = path.join(home, ".cache/tensorferry/compiled")
    assert.strictEqual(statSync(folder).mode & 0o777, 0o700)
    assert.isAbove(readdirSync(folder).length, 0)
  })

  it("is kept where XDG_CACHE_HOME says", () => {
    const home = makeHome()
    start({ HOME: home, XDG_CACHE_HOME: path.join(home, "elsewhere") })
    assert.isTrue(existsSync(path.join(home, "elsewhere/tensorferry/compiled")))
    assert.isFalse(existsSync(path.join(home, ".cache")))
  })

  it("is not kept in a folder that others can write to", () => {
    const home = makeHome()
    const own = path.join(home, ".cache/tensorferry")
    mkdirSync(own, { recursive: true })
    chmodSync(own, 0o777)
    start({ HOME: home })
    assert.deepStrictEqual(readdirSync(path.join(own, "compiled")), [])
  })

  it("is not missed where the home is a file, or is not stated", () => {
    const home = makeHome()
    const file = path.join(home, "file")
    writeFileSync(file, "")
    start({ HOME: file })
    start({ HOME: "" })
  })
})
