// SPDX-License-Identifier: Apache-2.0
/**
 * Checks the types of everything and Effect's own rules in one pass, and writes the declarations of packages: the compiler
 * that `@effect/tsgo` brings is TypeScript with these rules in it. What it only suggests is not printed.
 */
import { spawnSync } from "node:child_process"
import * as path from "node:path"

const root = path.resolve(import.meta.dirname, "..")
const found = spawnSync(path.join(root, "node_modules/.bin/effect-tsgo"), ["get-exe-path"], { encoding: "utf8" })
if (found.status !== 0) throw new Error(`effect-tsgo names no compiler: ${found.stderr || found.error}`)
const compiler = found.stdout.trim()

let faults = 0
for (const project of [["-b"], ["-p", "tsconfig.tools.json"]]) {
  const { error, status, stdout } = spawnSync(compiler, [...project, "--pretty", "false"], {
    cwd: root,
    encoding: "utf8",
    maxBuffer: 2 ** 28
  })
  if (error !== undefined) throw error
  const said = stdout.split("\n").filter((line) => line !== "" && !/^\S+\(\d+,\d+\): suggestion /.test(line))
  if (said.length > 0) console.log(said.join("\n"))
  // A warning of Effect's leaves the status as it is.
  if (status !== 0 || said.length > 0) faults += 1
}
if (faults > 0) process.exitCode = 1
