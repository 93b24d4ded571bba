// SPDX-License-Identifier: Apache-2.0
/** How many processes a job may start: what the machine bears, what the flag says, and never what a file says alone. */
import { writeFileSync } from "node:fs"
import { join } from "node:path"
import { afterEach, assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import { checkProcesses, processLimit } from "../../src/job/processLimit.ts"
import { endAll, failuresOf, run, scratch } from "../support/command.ts"
import { mnist } from "../support/models.ts"
import { cut, writeSharded } from "../support/sharded.ts"

afterEach(endAll)

describe("the number of processes", () => {
  it("is bounded by cores and by memory, and a few are always borne", () => {
    assert.strictEqual(processLimit({ cores: 2, memory: 2 ** 40 }), 64)
    assert.strictEqual(processLimit({ cores: 256, memory: 96 * 2 ** 30 }), 1024)
    assert.strictEqual(processLimit({ cores: 1, memory: 0 }), 8)
  })

  it.effect("is refused beyond the bound with the number and the flag, unless the flag allows it", () =>
    Effect.gen(function* () {
      const machine = { cores: 2, memory: 2 ** 40 }
      yield* checkProcesses(64, Option.none(), machine)
      const error = yield* Effect.flip(checkProcesses(65, Option.none(), machine))
      assert.strictEqual(error.reason._tag, "InvalidUsage")
      assert.include(error.message, "needs 65 processes")
      assert.include(error.message, "--processes 65")
      yield* checkProcesses(65, Option.some(65), machine)
      const beyond = yield* Effect.flip(checkProcesses(66, Option.some(65), machine))
      assert.include(beyond.message, "--processes allows 65")
    })
  )

  it("of a layout file is refused before any process starts", { timeout: 60_000 }, async () => {
    using folder = scratch()
    const layout = join(folder.path, "layout.json")
    writeFileSync(layout, JSON.stringify({ to: { dp: 4 } }))
    const args = ["reshard", mnist, "--layout", layout, "--default", "replicate", "--json"]
    const ended = await run([...args, "--processes", "3"])
    assert.strictEqual(ended.code, 2, ended.stdout + ended.stderr)
    assert.include(failuresOf(ended)[0]!.message, "--processes allows 3")
  })

  it("of a manifest is refused before any process starts", { timeout: 60_000 }, async () => {
    using folder = scratch()
    const tensor = { name: "cut", dtype: "uint8", shape: [4] } as const
    const files = cut("cut", "uint8", [4], 2).map((part) => [part])
    // Replicas, and ranks that hold nothing, have no shard, so thousands of ranks may be right.
    await writeSharded(folder.path, [tensor], files, (manifest) => {
      Object.assign(manifest, { layout: { tp: 2, pp: 1, dp: 2048 } })
    })
    const ended = await run(["reshard", folder.path, "--to", "tp=1", "--json"])
    assert.strictEqual(ended.code, 2, ended.stdout + ended.stderr)
    assert.include(failuresOf(ended)[0]!.message, "The job needs 4096 processes")
  })
})
