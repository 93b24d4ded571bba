// SPDX-License-Identifier: Apache-2.0
/** Signals to the command: exit code 130 with everything gone, and ranks that end by themselves without the command. */
import { existsSync } from "node:fs"
import { join } from "node:path"
import { afterEach, assert, describe, it } from "@effect/vitest"
import {
  assertNothingRuns,
  endAll,
  eventually,
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

const args = (out: string) =>
  ["reshard", mnist, "--to", "tp=3", "--rules", mnistRules, "--out", out, "--deadline", "20"] as const

describe("a signal", () => {
  const random = seeded(0x51)
  for (const name of ["SIGINT", "SIGTERM"] as const) {
    for (const target of ["the command", "its process group"] as const) {
      it(`${name} to ${target}`, async () => {
        using folder = scratch()
        for (const wait of [0, random() * 600]) {
          const out = join(folder.path, `out-${wait}`)
          const command = start(args(out), { limit: 20_000 })
          await rankProcess(command, 2)
          await pause(wait)
          signal(target === "the command" ? command.pid : -command.pid, name)
          const ended = await command.ended
          const where = `after ${wait} ms: ${ended.stdout} ${ended.stderr}`
          assert.strictEqual(ended.signal, null, where)
          if (existsSync(out)) await assertSameModel(out, mnist)
          else assert.strictEqual(ended.code, 130, where)
          assert.notInclude(ended.stderr, "    at ", "no stack trace")
          await assertNothingRuns(command, 0)
          assert.deepStrictEqual(temporaryNames(folder.path), [], where)
        }
      })
    }
  }

  it("SIGINT while a rank is frozen", async () => {
    using folder = scratch()
    const command = start(args(join(folder.path, "out")), { limit: 20_000 })
    signal(await rankProcess(command, 1), "SIGSTOP")
    signal(command.pid, "SIGINT")
    assert.strictEqual((await command.ended).code, 130)
    await assertNothingRuns(command, 0)
    assert.deepStrictEqual(temporaryNames(folder.path), [])
  })

  it("SIGKILL of the command: ranks end, and take the temporary folder with them", async () => {
    using folder = scratch()
    const ends = { early: 0, writing: 0 }
    const check = async (wait: number | "temporary folder") => {
      const out = join(folder.path, `out-${wait}`)
      const command = start(args(out), { limit: 20_000 })
      await rankProcess(command, 2)
      if (wait === "temporary folder") {
        // As soon as rank 0 has made it, or the job is done.
        await eventually("the temporary folder", 20_000, () =>
          temporaryNames(folder.path).length > 0 || existsSync(out) ? true : undefined
        )
        ends.writing++
      } else {
        await pause(wait)
        ends.early++
      }
      signal(command.pid, "SIGKILL")
      await command.ended
      await assertNothingRuns(command, 10_000)
      assert.deepStrictEqual(temporaryNames(folder.path), [])
      if (existsSync(out)) await assertSameModel(out, mnist)
    }
    for (const wait of [0, random() * 500, "temporary folder"] as const) await check(wait)
    assert.deepStrictEqual(ends, { early: 2, writing: 1 })
  })
})
