// SPDX-License-Identifier: Apache-2.0
/** The Python that has PyTorch, and programs of it that measure what its users do. */
import { spawnSync } from "node:child_process"

/** The interpreter: that of TENSORFERRY_PYTHON, or `python3`. */
export const python = process.env.TENSORFERRY_PYTHON ?? "python3"

const limitMillis = 200_000

/** Runs a program whose last line is a JSON list of facts. */
export const runPython = <Fact>(script: string, values: ReadonlyArray<string | number>): ReadonlyArray<Fact> => {
  const ended = spawnSync(python, [script, ...values.map(String)], { encoding: "utf8", timeout: limitMillis })
  if (ended.status !== 0) throw new Error(`${script}: ${String(ended.error ?? ended.stderr.slice(-1000))}`)
  return JSON.parse(ended.stdout.trim().split("\n").at(-1)!)
}
