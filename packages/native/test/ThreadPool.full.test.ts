// SPDX-License-Identifier: Apache-2.0
/**
 * The pool of threads that all addons share, as a program of its own: as it is, and under the sanitizer that finds races.
 */
import { spawnSync } from "node:child_process"
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"

const folder = new URL(".", import.meta.url).pathname

const run = (command: string, ...values: ReadonlyArray<string>): string => {
  const ended = spawnSync(command, values, { encoding: "utf8" })
  assert.strictEqual(ended.status, 0, `${command} ${values.join(" ")}\n${ended.stdout}${ended.stderr}`)
  return ended.stdout
}

describe("a pool of threads", () => {
  for (const options of [["-O2"], ["-O1", "-g1", "-fsanitize=thread"]])
    it(`runs and ends every task once: ${options.join(" ")}`, { timeout: 180_000 }, () => {
      const built = mkdtempSync(join(tmpdir(), "tensorferry-pool-"))
      const program = join(built, "thread_pool")
      const include = `-I${join(folder, "../include")}`
      run(
        "c++",
        "-std=c++20",
        "-Wall",
        "-Werror",
        "-pthread",
        ...options,
        include,
        join(folder, "programs/thread_pool.cc"),
        "-o",
        program
      )
      assert.strictEqual(run(program), "0 failures\n")
      rmSync(built, { recursive: true })
    })
})
