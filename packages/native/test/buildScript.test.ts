// SPDX-License-Identifier: Apache-2.0
/** The script by which packages build their addons: in a copied clone as in a new one. */
import { spawnSync } from "node:child_process"
import { cpSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import * as path from "node:path"
import { afterEach, beforeEach, expect, test } from "vitest"

const packages = ["backend-nvshmem", "backend-torch-copy", "backend-xpu", "bus", "gpu", "simulators"]

const scripts = packages.map((name) => {
  const text = readFileSync(new URL(`../../${name}/package.json`, import.meta.url), "utf8")
  return (JSON.parse(text) as { readonly scripts: { readonly "build:native": string } }).scripts["build:native"]
})

let folder: string
beforeEach(() => {
  folder = mkdtempSync(path.join(tmpdir(), "tensorferry-build-"))
})
afterEach(() => rmSync(folder, { recursive: true, force: true }))

const build = (at: string): void => {
  const { status, stdout, stderr } = spawnSync("sh", ["-c", scripts[0]!], { cwd: at, encoding: "utf8" })
  expect(status, `${stdout}${stderr}`).toBe(0)
}

test("all packages build alike", () => {
  expect(new Set(scripts).size).toBe(1)
})

test("a build that was copied from elsewhere begins anew, one that was not goes on", () => {
  const [first, second] = [path.join(folder, "first"), path.join(folder, "second")]
  cpSync(new URL("fixtures/cmake", import.meta.url), first, { recursive: true })
  build(first)
  expect(existsSync(path.join(first, "build/made"))).toBe(true)
  cpSync(first, second, { recursive: true })
  rmSync(first, { recursive: true })
  build(second)
  expect(existsSync(path.join(second, "build/made"))).toBe(true)
  writeFileSync(path.join(second, "build/kept"), "")
  build(second)
  expect(existsSync(path.join(second, "build/kept"))).toBe(true)
})
