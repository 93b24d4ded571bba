// SPDX-License-Identifier: Apache-2.0
/** The example of the bus: three agents, two trainers and an inference process, in TypeScript and with PyTorch. */
import { spawn } from "node:child_process"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import { hasLmdb, lmdbMissing, pythonWith } from "./support.ts"

const script = fileURLToPath(new URL("../../../examples/tensor-bus/run.ts", import.meta.url))

const run = (...args: ReadonlyArray<string>) =>
  new Promise<{ readonly code: number | null; readonly output: string }>((resolve) => {
    const child = spawn(process.execPath, [script, ...args], {
      timeout: 110_000
    })
    let output = ""
    for (const stream of [child.stdout, child.stderr]) {
      stream.on("data", (chunk) => {
        output += String(chunk)
      })
    }
    child.once("close", (code) => resolve({ code, output }))
  })

const python = process.env.TENSORFERRY_PYTHON ?? "python3"
const hasTorch = hasLmdb && pythonWith("torch") === python

describe.skipIf(!hasLmdb)(`example${hasLmdb ? "" : ` (skipped: ${lmdbMissing})`}`, () => {
  it("in TypeScript, twice at once", async () => {
    for (const { code, output } of await Promise.all([run(), run()])) {
      assert.strictEqual(code, 0, output)
      assert.match(output, /infer 0: 4 steps, 0 wrong values/)
      assert.match(output, /train 1: 4 steps, 0 wrong values/)
    }
  })

  it.skipIf(!hasTorch)(`with PyTorch${hasTorch ? "" : ` (skipped: ${python} has no torch)`}`, async () => {
    const { code, output } = await run("--python")
    assert.strictEqual(code, 0, output)
    assert.match(output, /infer 0 \(Python\): 4 steps, 0 wrong values/)
  })
})
