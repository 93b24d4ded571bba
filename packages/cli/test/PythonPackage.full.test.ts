// SPDX-License-Identifier: Apache-2.0
/**
 * The Python package with real torch: its tests, and the examples. In one two ranks of FSDP2 feed a model of transformers, in
 * another trainer and engine share a device; their logits are compared bit by bit after each step.
 */
import { spawnSync } from "node:child_process"
import { readFileSync } from "node:fs"
import { assert, describe, it } from "@effect/vitest"
import { agentEnvironment, exampleFile, pytestOf, pythonWith } from "./support/python.ts"

const pythonTests = pythonWith("pytest", "torch")
const noTests =
  pythonTests === undefined ? " (skipped: no Python with pytest and torch; TENSORFERRY_PYTHON names one)" : ""

it.skipIf(pythonTests === undefined)(`passes its tests with torch${noTests}`, { timeout: 900_000 }, () => {
  const ended = pytestOf(pythonTests!, "tests")
  assert.strictEqual(ended.status, 0, ended.output)
  assert.match(ended.output, /\d+ passed/)
})

const python = pythonWith("torch", "transformers")
const noModels =
  python === undefined ? " (skipped: no Python with torch and transformers; TENSORFERRY_PYTHON names one)" : ""

describe.skipIf(python === undefined)(`pytorch-fsdp${noModels}`, () => {
  it.each(["llama", "qwen3_moe", "gpt_oss"])(
    "%s: the engine's logits are the trainer's after each step",
    { timeout: 400_000 },
    (family) => {
      const ended = spawnSync(python!, [exampleFile("pytorch-fsdp/run.py"), family, "5"], {
        env: agentEnvironment(),
        encoding: "utf8"
      })
      assert.strictEqual(ended.status, 0, `${ended.stdout}${ended.stderr}`)
      assert.include(ended.stdout, `${family}: 5 versions, from 2 shards to one model`)
    }
  )
})

/** The first block of text of an example's README: what it prints. */
const promised = (example: string): string =>
  /```text\n([^`]*)```/.exec(readFileSync(exampleFile(`${example}/README.md`), "utf8"))![1]!

it.skipIf(python === undefined)(`colocated prints what its README says${noModels}`, { timeout: 400_000 }, () => {
  // Also where there is a GPU: the first line would be another.
  const env = { ...agentEnvironment(), CUDA_VISIBLE_DEVICES: "" }
  const ended = spawnSync(python!, [exampleFile("colocated/run.py"), "4"], { env, encoding: "utf8" })
  assert.strictEqual(ended.stdout, promised("colocated"), ended.stderr)
  assert.strictEqual(ended.status, 0, ended.stderr)
})
