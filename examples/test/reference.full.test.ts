// SPDX-License-Identifier: Apache-2.0
/** The reference is made from docstrings: a page per public module of each published package, no name without words. */
import { spawnSync } from "node:child_process"
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import * as path from "node:path"
import { assert, it } from "vitest"

const root = path.resolve(import.meta.dirname, "../..")
const generator = path.join(root, "scripts/reference/generate.ts")

/** The modules that published packages let through, as `name/of/module` behind the name of their folder. */
const publicModules = (): ReadonlyArray<string> =>
  readdirSync(path.join(root, "packages")).flatMap((name) => {
    const manifest = JSON.parse(readFileSync(path.join(root, "packages", name, "package.json"), "utf8"))
    const doors = Object.entries(manifest.private === true ? {} : manifest.exports)
    return doors.flatMap(([key, to]) => (String(to).endsWith(".ts") ? [path.posix.join(name, key)] : []))
  })

it("every public module has a page, and every public name has words", () => {
  const folder = mkdtempSync(path.join(tmpdir(), "tensorferry-reference-"))
  const { status, stdout, stderr } = spawnSync(process.execPath, [generator, folder], {
    encoding: "utf8",
    timeout: 250_000,
    killSignal: "SIGKILL"
  })
  const page = (name: string) => readFileSync(path.join(folder, name), "utf8")
  try {
    assert.deepStrictEqual(
      stderr.split("\n").filter((line) => line.includes("has no documentation")),
      []
    )
    assert.strictEqual(status, 0, `${stdout}\n${stderr}`)
    const missing = publicModules().filter((module) => !existsSync(path.join(folder, module, "README.md")))
    assert.deepStrictEqual(missing, [])
    // The header of the file is the contract; it is what the page shows.
    assert.include(page("core/service/CopyDriver/classes/CopyDriver.md"), "must not move tensor bytes")
    // Types that come from a schema have their names where they are used, and their fields on their pages.
    const planRank = page("core/planner/RosterPlanner/functions/planRank.md")
    assert.include(planRank, "[`ReshardPlan`](../../../ir/ReshardPlan/type-aliases/ReshardPlan.md)")
    assert.include(page("core/ir/ReshardPlan/type-aliases/ReshardPlan.md"), "sendOps: Schema.Array(TransferOp)")
    assert.include(page("testing/vitest/functions/describeCopyDriver.md"), "Every driver case, by `run`.")
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
})
