// SPDX-License-Identifier: Apache-2.0
/** The script that checks reference data: wrong folders end with one line and exit code 2. */
import { spawnSync } from "node:child_process"
import { mkdirSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { assert, it } from "@effect/vitest"
import { scratch } from "./support/command.ts"

const script = fileURLToPath(new URL("../../../scripts/golden.ts", import.meta.url))

const golden = (...args: ReadonlyArray<string>) => {
  const { status, stdout, stderr } = spawnSync(process.execPath, [script, ...args], { encoding: "utf8" })
  return { status, stdout, stderr }
}

it("a folder that is missing, is a file, or is not named", () => {
  using folder = scratch()
  const file = join(folder.path, "file")
  writeFileSync(file, "")
  const absent = join(folder.path, "absent")
  for (const [args, says] of [
    [[], "usage"],
    [[absent], absent],
    [[file], file]
  ] as const) {
    const ended = golden(...args)
    assert.strictEqual(ended.status, 2, ended.stderr)
    assert.include(ended.stderr, says)
    assert.lengthOf(ended.stderr.trim().split("\n"), 1)
    assert.strictEqual(ended.stdout, "")
  }
})

it("sets that are not covered, and files that are not data, are named", () => {
  using folder = scratch()
  for (const name of ["unknown", "dtype_casts"]) {
    mkdirSync(join(folder.path, name))
    writeFileSync(join(folder.path, name, "x.json"), "{")
  }
  const ended = golden(folder.path)
  assert.strictEqual(ended.status, 1)
  assert.match(ended.stdout, /unknown: not covered yet/)
  assert.match(ended.stdout, /0 passed, 1 failed/)
})
