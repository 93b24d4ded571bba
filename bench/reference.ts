// SPDX-License-Identifier: Apache-2.0
/**
 * Systems to compare with, as child processes. One that is not installed is reported as missing; nothing here installs
 * anything.
 */
import { spawnSync } from "node:child_process"
import { fileURLToPath } from "node:url"
import { type Child, startChild } from "./child.ts"

/** The interpreter to use: the one named by the environment, or the one on the path. */
const python = process.env.TENSORFERRY_PYTHON ?? "python3"

/** True where that interpreter has PyTorch. */
const hasTorch = (): boolean => spawnSync(python, ["-c", "import torch"], { stdio: "ignore" }).status === 0

export interface Reference extends Child {
  readonly version: string
}

/** Starts a script of bench/reference under Python with PyTorch; `undefined` where there is none. */
export const startTorch = async (script: string, values: ReadonlyArray<string>): Promise<Reference | undefined> => {
  if (!hasTorch()) {
    console.error(`No PyTorch under "${python}": rows have no reference. Set TENSORFERRY_PYTHON to one that has it.`)
    return undefined
  }
  const child = startChild(python, [fileURLToPath(new URL(`reference/${script}`, import.meta.url)), ...values])
  const { version } = await child.next()
  return { ...child, version: String(version) }
}
