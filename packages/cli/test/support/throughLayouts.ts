// SPDX-License-Identifier: Apache-2.0
/** Whole jobs, one after the other, whose ranks run in this process and whose folders are compared with the original. */
import { join } from "node:path"
import { assert } from "@effect/vitest"
import type { Cutting } from "@tensorferry/model/Cutting"
import { openModel } from "@tensorferry/model/openModel"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type { RankReport } from "../../src/job/JobSpec.ts"
import { scratch, temporaryNames } from "./command.ts"
import { memoryFiles, runJob } from "./inProcess.ts"
import { assertSameModel, type Entry, writeModel } from "./models.ts"

export const reportsOf = (exits: ReadonlyArray<Exit.Exit<RankReport, unknown>>): ReadonlyArray<RankReport> =>
  exits.map((exit) => {
    if (Exit.isFailure(exit)) assert.fail(String(exit.cause))
    return exit.value
  })

/** Runs there and back through `layouts`, comparing each folder and the final file with the original. */
export const throughLayouts = (entries: ReadonlyArray<Entry>, rules: Cutting, layouts: ReadonlyArray<string>) =>
  Effect.gen(function* () {
    const before = memoryFiles()
    using folder = scratch()
    const original = join(folder.path, "original.safetensors")
    yield* Effect.promise(() => writeModel(original, entries))
    let checkpoint = original
    let from = "tp=1"
    for (const [step, to] of [...layouts, "tp=1"].entries()) {
      const out = join(folder.path, `step-${step}`)
      const reports = reportsOf(yield* runJob({ checkpoint, from, to, rules, out }))
      assert.isNotEmpty(reports)
      yield* Effect.promise(() => assertSameModel(out, original))
      yield* Effect.scoped(Effect.flatMap(openModel(out), (model) => model.checkFiles))
      assert.deepStrictEqual(temporaryNames(folder.path), [])
      checkpoint = out
      from = to
    }
    assert.strictEqual(memoryFiles(), before)
  })
