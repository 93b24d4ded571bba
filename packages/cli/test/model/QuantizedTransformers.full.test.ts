// SPDX-License-Identifier: Apache-2.0
/**
 * Models of transformers, quantized by the command: transformers' own code reads of the result what ours reads, bit by bit,
 * also where the model went through several ranks.
 */
import { spawnSync } from "node:child_process"
import { readFileSync } from "node:fs"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import { afterAll, beforeAll } from "vitest"
import { runAll, scratch } from "../support/command.ts"

const python = process.env.TENSORFERRY_PYTHON ?? "python3"
const script = fileURLToPath(new URL("../fixtures/quantized_models.py", import.meta.url))
const hasTransformers = spawnSync(python, ["-c", "import torch, transformers, safetensors"]).status === 0
const missing = hasTransformers ? "" : ` (skipped: ${python} has no transformers)`

const runScript = (...args: ReadonlyArray<string>) => {
  const ended = spawnSync(python, [script, ...args], { encoding: "utf8", timeout: 280_000, maxBuffer: 2 ** 26 })
  assert.strictEqual(ended.status, 0, `${ended.stdout}${ended.stderr}`)
  return ended.stdout.trim()
}

const reshard = async (commands: ReadonlyArray<ReadonlyArray<string>>) => {
  for (const ended of await runAll(commands.map((one) => ["reshard", ...one, "--backend", "torch-copy"])))
    assert.strictEqual(ended.code, 0, ended.stdout + ended.stderr)
}

describe.skipIf(!hasTransformers)(`models of transformers, quantized${missing}`, () => {
  const folder = scratch()
  const at = (...names: ReadonlyArray<string>) => join(folder.path, ...names)
  beforeAll(() => {
    if (hasTransformers) runScript("make", folder.path)
  }, 300_000)
  afterAll(() => folder[Symbol.dispose]())

  for (const [model, kind, forms] of [
    ["deepseek_v3", "fp8", ["fp8-block", "fp8-block:te_pow2", "fp8-block-64x64:transformers_fp32"]],
    ["gpt_oss", "mxfp4", ["mxfp4", "mxfp4:triton_hf_up"]]
  ] as const) {
    it(`${model}: read by transformers as by us, in ${forms.join(", ")}`, async () => {
      const one = ["--from", "tp=1", "--to", "tp=1"]
      await reshard(forms.map((form) => [at(model), ...one, "--transform", form, "--out", at(`${model} ${form}`)]))
      await reshard(
        forms.map((form) => [
          at(`${model} ${form}`),
          ...one,
          "--dtype",
          "bfloat16",
          "--out",
          at(`${model} ${form} wide`)
        ])
      )
      const pairs = forms.flatMap((form) => [at(`${model} ${form}`), at(`${model} ${form} wide`)])
      const lines = runScript("compare", kind, ...pairs).split("\n")
      assert.strictEqual(lines.length, forms.length)
      for (const line of lines) assert.match(line, /^[1-9]\d* compared, 0 differ/)
    }, 300_000)
  }

  it("deepseek_v3 through two ranks has the bytes of one", async () => {
    const [one, two, back] = [at("one"), at("two"), at("back")]
    await reshard([
      [at("deepseek_v3"), "--out", one, "--from", "tp=1", "--to", "tp=1", "--transform", "nvfp4"],
      [at("deepseek_v3"), "--out", two, "--from", "tp=2", "--to", "tp=2,ep=2", "--transform", "nvfp4"]
    ])
    await reshard([[two, "--out", back, "--from", "tp=2,ep=2", "--to", "tp=1"]])
    const weights = (path: string) => readFileSync(join(path, "model.safetensors"))
    assert.isTrue(weights(one).equals(weights(back)))
  }, 300_000)
})
