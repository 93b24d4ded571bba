// SPDX-License-Identifier: Apache-2.0
/** The reference is made from docstrings, of core and of its kit, and no name of core's index is without words. */
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
  const page = (name: string) => readFileSync(path.join(folder, name), "utf8")
  const driver = page("core/classes/CopyDriver.md")
  const planRank = page("core/namespaces/RosterPlanner/functions/planRank.md")
  const plan = page("core/type-aliases/ReshardPlan.md")
  const kit = page("testing/README.md")
  const describing = page("testing-vitest/functions/describeCopyDriver.md")
  rmSync(folder, { recursive: true, force: true })
  const bare = stderr.split("\n").filter((line) => line.includes("has no documentation"))
  assert.deepStrictEqual(bare, [])
  assert.strictEqual(status, 0, `${stdout}\n${stderr}`)
  // The header of the file is the contract; it is what the page shows.
  assert.include(driver, "must not move tensor bytes")
  // Types that come from a schema have their names where they are used, and their fields on their pages.
  assert.include(planRank, "[`ReshardPlan`](../../../type-aliases/ReshardPlan.md)")
  assert.include(plan, "sendOps: Schema.Array(TransferOp)")
  assert.include(kit, "[arbitraries](namespaces/arbitraries/README.md)")
  assert.include(describing, "Every driver case, by `run`.")
})
