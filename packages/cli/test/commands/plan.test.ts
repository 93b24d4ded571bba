// SPDX-License-Identifier: Apache-2.0
/** `plan check` is a command under `plan`, in the help and in what is accepted. */
import { spawnSync } from "node:child_process"
import { readFileSync, truncateSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { afterEach, assert, it } from "@effect/vitest"
import { endAll, failuresOf, run, runAll, scratch } from "../support/command.ts"
import { runAllHere, runHere } from "../support/here.ts"

afterEach(endAll)

it("help and usage agree", async () => {
  const [help, top, own, old] = await runAllHere([
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

it("check refuses a pipe or a device at once, and names it", async () => {
  using folder = scratch()
  const pipe = join(folder.path, "plan.json")
  assert.strictEqual(spawnSync("mkfifo", [pipe]).status, 0)
  for (const ended of await runAll([pipe, "/dev/zero"].map((file) => ["plan", "check", file, "--json"]))) {
    assert.strictEqual(ended.code, 1, ended.stderr)
    assert.match(failuresOf(ended)[0]!.message, /regular file/)
  }
})

it("check refuses a file that is longer than a plan may be by its length alone, before it reads it", async () => {
  using folder = scratch()
  const file = join(folder.path, "plan.json")
  // Without blocks: reading it would take a second, and memory twenty times its length.
  writeFileSync(file, "")
  truncateSync(file, 2 ** 33)
  const ended = await run(["plan", "check", file, "--json"])
  assert.strictEqual(ended.code, 1, ended.stderr)
  assert.match(failuresOf(ended)[0]!.message, /8589934592 bytes/)
})

it("check refuses a plan whose parts disagree about dimensions or places, and ends with faults", async () => {
  using folder = scratch()
  const file = join(folder.path, "plan.json")
  const made = ["plan", "--from-mesh", "2:S0", "--to-mesh", "2:S1", "--shape", "8x6", "--save", file]
  assert.strictEqual((await runHere(made)).code, 0)
  const text = readFileSync(file, "utf8")
  const mutants = [
    ["targetShape", [8, 3, 1]],
    ["sourceShape", [4]],
    ["shape", [8, 6, 1]],
    ["entries", []],
    ["sliceTuples", [[0, 4]]]
  ].map(([field, value], at) => {
    const mutant = join(folder.path, `mutant-${at}.json`)
    writeFileSync(
      mutant,
      JSON.stringify(JSON.parse(text), (key, old) => (key === field && old !== null ? value : old))
    )
    return mutant
  })
  for (const ended of await runAllHere(mutants.map((mutant) => ["plan", "check", mutant, "--json"]))) {
    assert.strictEqual(ended.code, 1, ended.stderr)
    assert.notMatch(ended.stdout + ended.stderr, /TypeError/)
  }
})
