// SPDX-License-Identifier: Apache-2.0
/** Pythons that have what a test needs, and the package's own tests under them. */
import { spawnSync } from "node:child_process"
import { fileURLToPath } from "node:url"

/** The package's folder. */
export const pythonFolder = fileURLToPath(new URL("../../../../python/", import.meta.url))
const main = fileURLToPath(new URL("../../src/main.ts", import.meta.url))

/** A file of an example, as `pytorch-fsdp/run.py`. */
export const exampleFile = (file: string): string =>
  fileURLToPath(new URL(`../../../../examples/${file}`, import.meta.url))

/** Agents are this clone's command. */
export const agentEnvironment = (): NodeJS.ProcessEnv => ({
  ...process.env,
  PYTHONPATH: [`${pythonFolder}src`, ...(process.env.PYTHONPATH ? [process.env.PYTHONPATH] : [])].join(":"),
  TENSORFERRY_COMMAND: `${process.execPath} ${main}`
})

const chosen = process.env.TENSORFERRY_PYTHON

/** A Python of the version that the package wants, with these modules. One that TENSORFERRY_PYTHON names comes first. */
export const pythonWith = (...modules: ReadonlyArray<string>): string | undefined => {
  const program = ["import sys; assert sys.version_info >= (3, 10)", ...modules.map((name) => `import ${name}`)].join(
    "\n"
  )
  return [...(chosen === undefined ? [] : [chosen]), "python3"].find(
    (python) => spawnSync(python, ["-c", program]).status === 0
  )
}

/** Runs tests of the package. */
export const pytestOf = (python: string, ...files: ReadonlyArray<string>) => {
  const ended = spawnSync(python, ["-m", "pytest", "-q", "-p", "no:cacheprovider", ...files], {
    cwd: pythonFolder,
    encoding: "utf8",
    env: agentEnvironment()
  })
  return { status: ended.status, output: `${ended.stdout}${ended.stderr}` }
}
