// SPDX-License-Identifier: Apache-2.0
import { mkdirSync } from "node:fs"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { packageFolder } from "../src/Addon.ts"

import { inTemporaryFolder, runProgram } from "./kernelPrograms.ts"

describe("kernels", () => {
  // Takes minutes to build; the conformance kit runs the same kernels over the simulator every time.
  it("do as plain C++ what a naive reference does", () => {
    const folder = join(packageFolder, "build/kernels-test")
    mkdirSync(folder, { recursive: true })
    assert.match(runProgram(folder), /\n[1-9]\d{3,} checks, 0 failures\n$/)
  }, 300_000)

  it(
    "touch no memory but that of their regions",
    () => inTemporaryFolder((folder) => runProgram(folder, "-DSANITIZE=address,undefined")),
    900_000
  )
})
