// SPDX-License-Identifier: Apache-2.0
/**
 * A rank that is frozen: given up within the deadline with an error that names it, unless it goes on in time.
 */
import { existsSync } from "node:fs"
import { join } from "node:path"
import { afterEach, assert, describe, it } from "@effect/vitest"
import {
  assertNothingRuns,
  endAll,
  failuresOf,
  isSoak,
  pause,
  rankProcess,
  scratch,
  seeded,
  signal,
  start,
  temporaryNames
} from "../support/command.ts"
import { assertSameModel, mnist, mnistRules } from "../support/models.ts"

afterEach(endAll)

const size = 3
const args = (out: string, deadline: number) =>
  [
    "reshard",
    mnist,
    "--to",
    "tp=3",
    "--rules",
    mnistRules,
    "--out",
    out,
    "--deadline",
    `${deadline}`,
    "--quiet",
    "--json"
  ] as const

const rounds = isSoak ? 30 : 1

describe("a rank that is frozen", () => {
  for (const victim of isSoak ? [0, 1, 2] : [1]) {
    it(`from its first moment on: rank ${victim}`, async () => {
      using folder = scratch()
      const out = join(folder.path, "out")
      const command = start(args(out, 1), { limit: 30_000 })
      signal(await rankProcess(command, victim), "SIGSTOP")
      const ended = await command.ended
      assert.strictEqual(ended.code, 1, ended.stdout)
      const [first, ...others] = failuresOf(ended)
      assert.deepStrictEqual([...first!.ranks], [victim])
      assert.include(first!.message, "did not start within")
      assert.deepStrictEqual(others, [])
      await assertNothingRuns(command)
      assert.isFalse(existsSync(out))
      assert.deepStrictEqual(temporaryNames(folder.path), [])
    })
  }

  it(`at ${rounds} random moments`, { timeout: 600_000 }, async () => {
    using folder = scratch()
    const random = seeded(0x57a9)
    const untouched = start(args(join(folder.path, "untouched"), 20))
    await rankProcess(untouched, size - 1)
    const begun = performance.now()
    assert.strictEqual((await untouched.ended).code, 0)
    const typical = performance.now() - begun
    for (let round = 0; round < rounds; round++) {
      const out = join(folder.path, `out-${round}`)
      const victim = Math.floor(random() * size)
      const command = start(args(out, 2), { limit: 30_000 })
      const pid = await rankProcess(command, victim)
      await pause(random() * typical * 0.9)
      signal(pid, "SIGSTOP")
      const ended = await command.ended
      const where = `round ${round}, rank ${victim}: ${ended.stdout} ${ended.stderr}`
      await assertNothingRuns(command)
      assert.strictEqual(ended.stderr, "", where)
      if (ended.code !== 0) {
        assert.strictEqual(ended.code, 1, where)
        for (const failure of failuresOf(ended)) assert.include(failure.ranks, victim, where)
      }
      assert.deepStrictEqual(temporaryNames(folder.path), [], where)
      if (existsSync(out)) await assertSameModel(out, mnist)
      else assert.strictEqual(ended.code, 1, where)
    }
  })

  it("for a moment only: the job goes on", async () => {
    using folder = scratch()
    const random = seeded(0xc047)
    for (const victim of [0, 2]) {
      const out = join(folder.path, `out-${victim}`)
      const command = start(args(out, 5), { limit: 30_000 })
      const pid = await rankProcess(command, victim)
      await pause(random() * 800)
      signal(pid, "SIGSTOP")
      await pause(300)
      signal(pid, "SIGCONT")
      const ended = await command.ended
      assert.strictEqual(ended.code, 0, ended.stdout)
      await assertSameModel(out, mnist)
      await assertNothingRuns(command)
    }
  })

  it("for some seconds: the command says for whom it waits, unless it is to be quiet", async () => {
    for (const quiet of [false, true]) {
      const command = start(["reshard", mnist, "--to", "tp=3", "--rules", mnistRules, ...(quiet ? ["--quiet"] : [])])
      const pid = await rankProcess(command, 1)
      signal(pid, "SIGSTOP")
      await pause(4500)
      signal(pid, "SIGCONT")
      const ended = await command.ended
      assert.strictEqual(ended.code, 0, ended.stderr)
      if (quiet) assert.strictEqual(ended.stderr, "")
      else
        assert.match(
          ended.stderr,
          /[Ww]aited \d+ s (on \S+ )?for (rank 1|ranks [\d, ]+) to (start|join); this fails in \d+ s/
        )
    }
  })
})
