// SPDX-License-Identifier: Apache-2.0
/**
 * AMD's own runtime where it is installed (on Debian: `apt-get install libamdhip64-5`): every function that this package
 * calls under AMD's names is there, and a machine without a device is told so. Skipped elsewhere.
 */
import { assert, describe, it } from "@effect/vitest"
import { findLibrary } from "@tensorferry/native/LibrarySearch"
import { simulatedLibraries } from "@tensorferry/simulators/gpu"
import { problem, value } from "@tensorferry/simulators/gpuAddon"
import * as Effect from "effect/Effect"
import { loadAddon } from "../src/Addon.ts"

const fileName = "libamdhip64.so.5"
const isInstalled = findLibrary([fileName], ["/opt/rocm/lib"]).found !== undefined
if (!isInstalled)
  console.info(`${fileName} is not installed; AMD's names are checked against the simulated driver only.`)

const names = { runtime: [fileName], driver: [fileName], compiler: [], collectives: [] }

describe.skipIf(!isInstalled)("AMD's runtime", () => {
  it.effect("has every function under the name that is called", () =>
    Effect.gen(function* () {
      const opened = value((yield* loadAddon).openLibraries("rocm", names))
      assert.deepStrictEqual([opened.runtime.problem, opened.driver.problem], [undefined, undefined])
      assert.match(opened.runtime.version ?? "", /^\d+\.\d+$/)
      assert.isDefined(opened.libraries)
    })
  )

  it.effect("that lacks a function is refused by name, as NVIDIA's names would be", () =>
    Effect.gen(function* () {
      const opened = value((yield* loadAddon).openLibraries("cuda", names))
      assert.match(opened.runtime.problem ?? "", /has no function cuda/)
      assert.isUndefined(opened.libraries)
    })
  )

  it.effect("answers for a machine without a device", () =>
    Effect.gen(function* () {
      const addon = yield* loadAddon
      const libraries = value(addon.openLibraries("rocm", names)).libraries ?? assert.fail("it was not opened")
      const counted = addon.deviceCount(libraries)
      if (counted.code === "Ok" && counted.value > 0) return // a machine with such a device runs everything else
      const failure = problem(addon.deviceFacts(libraries, 0))
      assert.match(failure.op, /^hip/)
    })
  )
})

describe("the simulated driver", () => {
  it.effect("has the same functions under AMD's names", () =>
    Effect.gen(function* () {
      const opened = value((yield* loadAddon).openLibraries("rocm", simulatedLibraries))
      const { runtime, driver, compiler, collectives } = opened
      assert.deepStrictEqual(
        [runtime, driver, compiler, collectives].map((library) => library.problem),
        [undefined, undefined, undefined, undefined]
      )
    })
  )
})
