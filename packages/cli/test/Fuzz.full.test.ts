// SPDX-License-Identifier: Apache-2.0
/**
 * The command's readers of files on damaged inputs: each ends with a value that is read back as the same or with its own
 * typed error, soon and in little memory. Seconds by default; a minute per reader, from a seed of its own, with
 * TENSORFERRY_TESTS=soak. TENSORFERRY_FUZZ_SEED=N runs the one case N again.
 */
import { join } from "node:path"
import { afterAll, assert, beforeAll, describe, it } from "@effect/vitest"
import { fuzz } from "@tensorferry/testing/fuzz"
import * as Effect from "effect/Effect"
import { endAll, isSoak, run, scratch } from "./support/command.ts"
import { mnist, mnistRules } from "./support/models.ts"

const replayed = process.env.TENSORFERRY_FUZZ_SEED
const millis = replayed !== undefined ? 0 : isSoak ? 55_000 : 5_000
const seed = replayed !== undefined ? Number(replayed) : isSoak ? Date.now() % 2 ** 40 : 1

const folder = scratch()
const out = join(folder.path, "out")
const [plans, meshPlans] = ["plans.json", "mesh-plans.json"].map((name) => join(folder.path, name)) as [string, string]

beforeAll(async () => {
  const ended = await run(["reshard", mnist, "--to", "tp=3,pp=2", "--rules", mnistRules, "--out", out])
  assert.strictEqual(ended.code, 0, ended.stderr)
  const planned = [
    [mnist, "--from", "tp=2", "--to", "tp=3,pp=2", "--rules", mnistRules, "--save", plans],
    ["--from-mesh", "2x2:S0,R", "--to-mesh", "3@1:S1", "--shape", "5x6", "--to-dtype", "float32", "--save", meshPlans]
  ]
  for (const args of planned) {
    const saved = await run(["plan", ...args])
    assert.strictEqual(saved.code, 0, saved.stderr)
  }
})

afterAll(() => {
  endAll()
  folder[Symbol.dispose]()
})

describe("fuzzing", () => {
  for (const target of ["manifest", "rules", "layout", "plans", "meshPlans"]) {
    it.live(
      target,
      () =>
        Effect.gen(function* () {
          const script = new URL("./support/fuzzTargets.ts", import.meta.url)
          const args = [join(out, "tensorferry.json"), plans, meshPlans]
          const report = yield* Effect.mapError(
            // The parser of YAML takes up to a kilobyte per byte of a text that is all faults.
            fuzz({ script, target, seed, millis, args, heapMegabytes: 256 }),
            (detail) => `${detail}\nRun it again with TENSORFERRY_FUZZ_SEED.`
          )
          assert.isBelow(report.peakMegabytes, 600)
          if (replayed !== undefined) return
          // Mutants that are all refused, or all accepted, would test little.
          assert.isAbove(report.accepted, 0)
          assert.isBelow(report.accepted, report.cases)
        }),
      180_000
    )
  }
})
