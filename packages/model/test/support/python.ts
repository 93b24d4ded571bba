// SPDX-License-Identifier: Apache-2.0
/** The Python whose libraries are the reference of a test, and why a test is skipped. */
import { execFile, spawnSync } from "node:child_process"
import { fileURLToPath } from "node:url"
import { promisify } from "node:util"

/** For programs that are none of ours: what a sanitizer wants of this one is not their business. */
const plain = { ...process.env, LD_PRELOAD: undefined, HF_HUB_OFFLINE: "1", OMP_NUM_THREADS: "1" }

const chosen = process.env.TENSORFERRY_PYTHON

/** A Python that has these modules, or undefined. One that is chosen by TENSORFERRY_PYTHON comes first. */
export const pythonWith = (...modules: ReadonlyArray<string>): string | undefined => {
  const search = `import importlib.util, sys; sys.exit(any(importlib.util.find_spec(m) is None for m in ${JSON.stringify(modules)}))`
  return [...(chosen === undefined ? [] : [chosen]), "python3"].find(
    (python) => spawnSync(python, ["-c", search], { env: plain }).status === 0
  )
}

export const missing = (modules: string): string => `no Python with ${modules} (name one by TENSORFERRY_PYTHON)`

/** The script of `test/fixtures` or `test/data` with these arguments; rejects with its standard error. */
export const runScript = async (python: string, script: string, ...args: ReadonlyArray<string>): Promise<void> => {
  const file = fileURLToPath(new URL(`../${script}`, import.meta.url))
  await promisify(execFile)(python, [file, ...args], { env: plain, timeout: 280_000 })
}
