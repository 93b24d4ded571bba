// SPDX-License-Identifier: Apache-2.0
/** `plan check` is a command under `plan`, in the help and in what is accepted. */
import { writeFileSync } from "node:fs"
import { join } from "node:path"
import { afterEach, assert, it } from "@effect/vitest"
import { endAll, failuresOf, run, runAll, scratch } from "../support/command.ts"

afterEach(endAll)

it("help and usage agree", async () => {
  const [help, top, own, old] = await runAll([
    ["plan", "--help"],
    ["--help"],
    ["plan", "check", "--help"],
    ["plan-check", "x"]
  ])
  assert.match(help!.stdout, /SUBCOMMANDS\s+check/)
  assert.include(help!.stdout, "tensorferry plan check plan.json")
  assert.notInclude(top!.stdout, "plan-check")
  assert.match(own!.stdout, /tensorferry plan check .*FILE/)
  assert.strictEqual(old!.code, 2)
})

it("a checkpoint that is called check is named with its folder", async () => {
  using folder = scratch()
  writeFileSync(join(folder.path, "check"), "")
  const ended = await run(["plan", "./check", "--to", "tp=2", "--json"], { cwd: folder.path })
  assert.strictEqual(ended.code, 1, ended.stderr)
  assert.strictEqual(failuresOf(ended)[0]!.fields?.file, join(folder.path, "check"))
})
