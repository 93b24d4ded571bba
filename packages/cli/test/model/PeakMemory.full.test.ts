// SPDX-License-Identifier: Apache-2.0
/** A quantizing reshard takes the memory that its plan states: resident pages of real ranks against the estimate. */
import { readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { afterEach, assert, describe, it } from "@effect/vitest"
import type { RunRecord } from "../../src/report/RunRecord.ts"
import { endAll, run, scratch } from "../support/command.ts"

afterEach(endAll)

const [width, inner, vocabulary, layers] = [2048, 8192, 32_000, 10]

/** A llama of 750 million parameters. */
const shapes = () => {
  const tensors: Record<string, ReadonlyArray<number>> = {
    "model.embed_tokens.weight": [vocabulary, width],
    "model.norm.weight": [width],
    "lm_head.weight": [vocabulary, width]
  }
  for (let layer = 0; layer < layers; layer++) {
    const prefix = `model.layers.${layer}.`
    for (const name of ["q_proj", "o_proj"]) tensors[`${prefix}self_attn.${name}.weight`] = [width, width]
    for (const name of ["k_proj", "v_proj"]) tensors[`${prefix}self_attn.${name}.weight`] = [512, width]
    for (const name of ["gate_proj", "up_proj"]) tensors[`${prefix}mlp.${name}.weight`] = [inner, width]
    tensors[`${prefix}mlp.down_proj.weight`] = [width, inner]
    for (const name of ["input_layernorm", "post_attention_layernorm"]) tensors[`${prefix}${name}.weight`] = [width]
  }
  const config = {
    model_type: "llama",
    hidden_size: width,
    intermediate_size: inner,
    num_attention_heads: 32,
    num_key_value_heads: 8,
    num_hidden_layers: layers,
    vocab_size: vocabulary
  }
  return { dtype: "BF16", tensors, config }
}

/** What a program grows by while it works, beside its tensors. */
const programBytes = 96 * 2 ** 20

describe("peak memory", () => {
  for (const form of ["fp8-block", "nvfp4", "mxfp8", "mxfp8:sender"])
    it(`of a reshard to ${form} is what the plan states`, async () => {
      using folder = scratch()
      const [model, record] = [join(folder.path, "shapes.json"), join(folder.path, "record.json")]
      writeFileSync(model, JSON.stringify(shapes()))
      const ended = await run([
        "reshard",
        `synthetic:${model}`,
        ...["--from", "tp=1", "--to", "tp=2", "--transform", form, "--record", record, "--no-verify"]
      ])
      assert.strictEqual(ended.code, 0, ended.stderr)
      const { ranks } = JSON.parse(readFileSync(record, "utf8")) as RunRecord
      assert.strictEqual(ranks.length, 2)
      for (const { rank, memory } of ranks) {
        const { before, estimate, peak, mapped = 0 } = memory
        const own = peak - before - mapped
        assert.isAtMost(own, 1.03 * estimate + programBytes, `rank ${rank}: ${JSON.stringify(memory)}`)
        // The most that is mapped and the most that is resident may be of different moments.
        if (mapped === 0) assert.isAtLeast(own, 0.97 * estimate, `rank ${rank}: ${JSON.stringify(memory)}`)
      }
    }, 120_000)
})
