// SPDX-License-Identifier: Apache-2.0
/** Random patterns fit the names that Python's own matcher says. */
import { readFileSync } from "node:fs"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { pythonWith, runScript, withPython } from "@tensorferry/testing/machine/python"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { matchesModule, modulePattern, mostWork } from "../../../src/names/adapters/ModulePattern.ts"
import { scratchFolder } from "../../checkpoint/checkpointSupport.ts"

const python = pythonWith("re")
const script = new URL("../../fixtures/pattern_matches.py", import.meta.url)

interface Matches {
  readonly names: ReadonlyArray<string>
  readonly patterns: ReadonlyArray<readonly [string, ReadonlyArray<boolean>, ReadonlyArray<boolean>]>
}

describe("random patterns", () => {
  it.live.skipIf(python === undefined)(
    withPython(python, "fit what they fit in Python", "re"),
    () =>
      Effect.gen(function* () {
        const folder = yield* scratchFolder
        yield* Effect.promise(() => runScript(python!, script, folder))
        const { names, patterns }: Matches = JSON.parse(readFileSync(join(folder, "matches.json"), "utf8"))
        assert.strictEqual(patterns.length, 2000)
        for (const [text, whole, end] of patterns) {
          const pattern = Result.getOrThrow(modulePattern(text))
          const fits = (from: "start" | "component") =>
            names.map((name) => matchesModule(pattern, name, from, { steps: mostWork }))
          assert.deepStrictEqual([fits("start"), fits("component")], [whole, end], text)
        }
        assert.isAbove(patterns.filter(([, whole]) => whole.includes(true)).length, 500)
      }),
    60_000
  )
})
