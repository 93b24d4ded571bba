// SPDX-License-Identifier: Apache-2.0
/**
 * The simulated driver itself: its C++ tests, built over kernels of their own, under sanitizers. Building takes minutes,
 * and every other test over GPUs runs on the simulator as it is built for use.
 */

import { spawnSync } from "node:child_process"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { packageFolder } from "../src/libraries.ts"

const minutes = 60_000

const run = (command: string, values: ReadonlyArray<string>) => {
  const { status, signal, error, stdout, stderr } = spawnSync(command, values, { cwd: packageFolder, encoding: "utf8" })
  assert.strictEqual(status, 0, `${command} ${values.join(" ")}: ${signal ?? error ?? status}\n${stdout}\n${stderr}`)
  return stdout
}

const runTests = (sanitizer: string) => {
  const build = join(packageFolder, "build", `simulator-test-${sanitizer}`)
  const settings = ["-DCMAKE_BUILD_TYPE=Release", "-DSIMULATOR_LIBRARY=OFF", `-DSANITIZE=${sanitizer}`]
  run("cmake", ["-S", "gpu", "-B", build, ...settings])
  run("cmake", ["--build", build])
  assert.match(run(join(build, "tensorferry_gpu_simulator_test"), []), /^\d+ tests$/m)
}

describe.skipIf(process.platform !== "linux")("simulated GPU driver", () => {
  for (const sanitizer of ["address", "thread"]) {
    it(
      `keeps the order that was asked for, finds what breaks the rules, and is clean: ${sanitizer} sanitizer`,
      () => runTests(sanitizer),
      20 * minutes
    )
  }
})
