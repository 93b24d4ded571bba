/** The reference is made from docstrings, and no public name of core is without words. */
import { spawnSync } from "node:child_process"
import { mkdtempSync, readFileSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import * as path from "node:path"
import { assert, it } from "vitest"

const generator = path.resolve(import.meta.dirname, "../../scripts/reference/generate.ts")

it("every name of the index of core is documented", () => {
  const folder = mkdtempSync(path.join(tmpdir(), "tensorferry-reference-"))
  const { status, stdout, stderr } = spawnSync(process.execPath, [generator, folder], {
    encoding: "utf8",
    timeout: 250_000,
    killSignal: "SIGKILL"
  })
  const page = readFileSync(path.join(folder, "classes/CopyDriver.md"), "utf8")
  rmSync(folder, { recursive: true, force: true })
  const bare = stderr.split("\n").filter((line) => line.includes("has no documentation"))
  assert.deepStrictEqual(bare, [])
  assert.strictEqual(status, 0, `${stdout}\n${stderr}`)
  // The header of the file is the contract; it is what the page shows.
  assert.include(page, "must not move tensor bytes")
})
