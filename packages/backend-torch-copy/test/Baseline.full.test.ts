// SPDX-License-Identifier: Apache-2.0
/**
 * Narrower kernels than the ones chosen for this processor give the same bits.
 */
import { spawnSync } from "node:child_process"
import { createRequire } from "node:module"
import { dirname, join } from "node:path"
import { assert, it } from "@effect/vitest"
import { packageFolder } from "../src/Addon.ts"

for (const kernels of ["baseline", "avx2"]) {
  it(`passes the tests of casts and of the engine with kernels for ${kernels}`, () => {
    const runner = join(dirname(createRequire(import.meta.url).resolve("vitest/package.json")), "vitest.mjs")
    const tested = spawnSync(
      process.execPath,
      [
        runner,
        "run",
        "test/Casts.test.ts",
        "test/Kernels.test.ts",
        "test/Mxfp8.test.ts",
        "test/Forms.test.ts",
        "--testTimeout=240000"
      ],
      {
        cwd: packageFolder,
        env: { ...process.env, TENSORFERRY_KERNELS: kernels, TENSORFERRY_TESTS: undefined },
        encoding: "utf8"
      }
    )
    assert.strictEqual(tested.status, 0, tested.stdout.slice(-5000) + tested.stderr.slice(-5000))
  }, 480_000)
}
