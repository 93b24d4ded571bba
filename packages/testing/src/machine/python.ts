// SPDX-License-Identifier: Apache-2.0
/** The Python whose libraries are the reference of a test, and the words for a test that has none. */
import { execFile, spawnSync } from "node:child_process"
import { fileURLToPath } from "node:url"
import { promisify } from "node:util"

/** What a sanitizer wants of this process is not the business of another program; models are never fetched. */
const plain = { ...process.env, LD_PRELOAD: undefined, HF_HUB_OFFLINE: "1", OMP_NUM_THREADS: "1" }

const chosen = process.env.TENSORFERRY_PYTHON

/** A Python that has these modules, or undefined. One that is chosen by TENSORFERRY_PYTHON comes first. */
export const pythonWith = (...modules: ReadonlyArray<string>): string | undefined => {
  const search = `import importlib.util, sys; sys.exit(any(importlib.util.find_spec(m) is None for m in ${JSON.stringify(modules)}))`
  return [...(chosen === undefined ? [] : [chosen]), "python3"].find(
    (python) => spawnSync(python, ["-c", search], { env: plain }).status === 0
  )
}

/** The title of a test that needs these modules, with why it is skipped where they are missing. */
export const withPython = (python: string | undefined, title: string, modules: string): string =>
  python === undefined ? `${title} (skipped: no Python with ${modules}; TENSORFERRY_PYTHON names one)` : title

/** Runs a script with these arguments; rejects with its standard error. */
export const runScript = async (python: string, script: URL, ...args: ReadonlyArray<string>): Promise<void> => {
  await promisify(execFile)(python, [fileURLToPath(script), ...args], {
    env: plain,
    timeout: 280_000,
    maxBuffer: 64 * 1024 * 1024
  })
}
