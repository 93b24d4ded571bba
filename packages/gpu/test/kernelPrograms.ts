// SPDX-License-Identifier: Apache-2.0
/**
 * Builds and runs programs from the source of the kernels.
 */
import { spawnSync } from "node:child_process"
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { assert } from "@effect/vitest"
import { packageFolder } from "../src/Addon.ts"

export const sources = join(packageFolder, "native/kernels")
export const includes = join(packageFolder, "../native/include")

/** Milliseconds: compilers have been seen that never end. A test cannot stop a program that it waits for in this way. */
const longest = 600_000

export const run = (command: string, ...values: ReadonlyArray<string>): string => {
  const ended = spawnSync(command, values, { encoding: "utf8", maxBuffer: 2 ** 26, timeout: longest })
  const said = ended.stdout + ended.stderr
  assert.notStrictEqual(ended.signal, "SIGTERM", `${command} had not ended after ${longest / 1000} s`)
  assert.strictEqual(ended.status, 0, `${command} ${values.join(" ")}\n${said.slice(-10_000)}`)
  return said
}

export const isInstalled = (command: string): boolean => spawnSync(command, ["--version"]).status === 0

/** Builds the test program and runs it; what it printed. */
export const runProgram = (folder: string, ...options: ReadonlyArray<string>): string => {
  run("cmake", "-S", sources, "-B", folder, ...options)
  run("cmake", "--build", folder, "-j2", "--target", "tensorferry_gpu_kernels_test")
  return run(join(folder, "tensorferry_gpu_kernels_test"))
}

export const inTemporaryFolder = (use: (folder: string) => void): void => {
  const folder = mkdtempSync(join(tmpdir(), "tensorferry-kernels-"))
  try {
    use(folder)
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

/** The whole source as the run-time compilers get it. */
export const writeSource = (folder: string): string => {
  const file = join(folder, "kernels.cu")
  const stated = [
    `-DKERNELS=${sources}`,
    `-DINCLUDE=${includes}`,
    `-DCPP=${join(folder, "kernels.cc")}`,
    `-DCUDA=${file}`
  ]
  run("cmake", ...stated, "-P", join(sources, "kernel_source.cmake"))
  return file
}
