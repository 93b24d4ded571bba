/**
 * The kernels that every processor runs give the same bits as the ones chosen for this processor.
 */
import { spawnSync } from "node:child_process"
import { createRequire } from "node:module"
import { dirname, join } from "node:path"
import { assert, it } from "@effect/vitest"
import { packageFolder } from "../src/Addon.ts"

it("passes the tests of casts and of the engine with the baseline kernels", () => {
  const runner = join(dirname(createRequire(import.meta.url).resolve("vitest/package.json")), "vitest.mjs")
  const tested = spawnSync(process.execPath, [runner, "run", "test/Casts.test.ts", "test/Kernels.test.ts"], {
    cwd: packageFolder,
    env: { ...process.env, TENSORFERRY_BASELINE_KERNELS: "1", TENSORFERRY_TEST_FULL: undefined },
    encoding: "utf8"
  })
  assert.strictEqual(tested.status, 0, tested.stdout.slice(-5000) + tested.stderr.slice(-5000))
}, 120_000)
