// SPDX-License-Identifier: Apache-2.0
/**
 * Kernels as source for run-time compilers. What they do, and their machine code, is in `Kernels.full.test.ts`.
 */

import { join } from "node:path"
import { describe, it } from "@effect/vitest"

import { inTemporaryFolder, run, sources, writeSource } from "./kernelPrograms.ts"

describe("kernels", () => {
  // Run-time compilers have no headers at all: with `-nostdinc` every include that is left fails, and so does what an
  // include would have brought.
  for (const names of [["__CUDACC_RTC__"], ["__HIPCC_RTC__"], ["__HIPCC_RTC__", "__HIP_DEVICE_COMPILE__"]])
    it(`need no header of a run-time compiler: ${names.join(", ")}`, () =>
      inTemporaryFolder((folder) => {
        const plain = ["-std=c++17", "-x", "c++", "-nostdinc", "-fsyntax-only", "-Wno-unknown-pragmas", "-Werror"]
        const known = ["-include", join(sources, "test/runtime_compiler.h")]
        run("c++", ...plain, ...names.map((name) => `-D${name}`), ...known, writeSource(folder))
      }))
})
