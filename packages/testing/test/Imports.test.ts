// SPDX-License-Identifier: Apache-2.0
/**
 * What an import of the kit loads.
 */
import { spawnSync } from "node:child_process"
import * as path from "node:path"
import { assert, describe, it } from "@effect/vitest"

const sources = path.resolve(import.meta.dirname, "../src")

/** Modules that are loaded by one. */
const loadedBy = (module: string): ReadonlyArray<string> => {
  const script = `import { registerHooks } from "node:module"
    const loaded = []
    registerHooks({ load: (url, context, next) => { loaded.push(url); return next(url, context) } })
    await import(process.argv[1])
    console.log(JSON.stringify(loaded))`
  const { NODE_OPTIONS: _, ...environment } = process.env
  const ended = spawnSync(process.execPath, ["--input-type=module", "-e", script, path.join(sources, module)], {
    env: environment,
    encoding: "utf8",
    timeout: 60_000
  })
  assert.strictEqual(ended.status, 0, ended.stderr)
  return JSON.parse(ended.stdout) as ReadonlyArray<string>
}

describe("the kit", () => {
  it("is imported without a test runner", () => {
    const loaded = loadedBy("index.ts")
    assert.isAbove(loaded.length, 20)
    assert.deepStrictEqual(
      loaded.filter((url) => /vitest/.test(url)),
      []
    )
  })
})
