// SPDX-License-Identifier: Apache-2.0
/**
 * A rank that is killed, at any moment: the command ends soon, names the rank, and leaves nothing behind.
 */
import { existsSync, readdirSync } from "node:fs"
import { join } from "node:path"
import { afterEach, assert, describe, it } from "@effect/vitest"
import {
  assertNothingRuns,
  endAll,
  failuresOf,
  isSoak,
  pause,
  rankProcess,
  run,
  scratch,
  seeded,
  signal,
  start,
  temporaryNames
} from "../support/command.ts"
import { assertSameModel, mnist, mnistRules } from "../support/models.ts"

afterEach(endAll)

const size = 3
const args = (out: string) =>
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
    "20",
    "--quiet",
    "--json"
  ] as const

const rounds = isSoak ? 100 : 3

describe("a rank that is killed", () => {
  it(`at ${rounds} random moments`, { timeout: 600_000 }, async () => {
    using folder = scratch()
    const random = seeded(0x1d8)
    // How long a job takes here from its last rank's process on, after a first one that fills caches.
    assert.strictEqual((await run(args(join(folder.path, "first")))).code, 0)
    const untouched = start(args(join(folder.path, "untouched")))
    await rankProcess(untouched, size - 1)
    const begun = performance.now()
    assert.strictEqual((await untouched.ended).code, 0)
    const typical = performance.now() - begun
    const ends = { failed: 0, done: 0 }
    for (let round = 0; round < rounds; round++) {
      const out = join(folder.path, `out-${round}`)
      const victim = Math.floor(random() * size)
      const command = start(args(out), { limit: 20_000 })
      const pid = await rankProcess(command, victim)
      await pause(random() * typical * (isSoak ? 0.9 : 0.4))
      const was = signal(pid, "SIGKILL")
      const ended = await command.ended
      const where = `round ${round}, rank ${victim}: ${ended.stdout} ${ended.stderr}`
      await assertNothingRuns(command)
      assert.strictEqual(ended.stderr, "", where)
      if (ended.code === 0) ends.done++
      else {
        ends.failed++
        assert.isTrue(was, where)
        assert.strictEqual(ended.code, 1, where)
        const failures = failuresOf(ended)
        const first = failures[0]!
        assert.strictEqual(first.reason, "RankEnded", where)
        assert.deepStrictEqual([...first.ranks], [victim], where)
        assert.include(first.message, `rank ${victim} was ended by SIGKILL`, where)
        // Whoever was in the group with it says so too, and blames nobody else.
        for (const failure of failures) assert.include(failure.ranks, victim, where)
      }
      assert.deepStrictEqual(temporaryNames(folder.path), [], where)
      if (existsSync(out)) await assertSameModel(out, mnist)
      else assert.strictEqual(ended.code, 1, where)
    }
    // A few moments may all come too late; many do not.
    if (isSoak) assert.isAbove(ends.failed, rounds / 3, JSON.stringify(ends))
    else assert.isAbove(ends.failed, 0, JSON.stringify(ends))
    assert.isAtMost(readdirSync(folder.path).length, rounds + 2)
  })
})
