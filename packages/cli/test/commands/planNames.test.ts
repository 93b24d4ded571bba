// SPDX-License-Identifier: Apache-2.0
/** `tensorferry plan` between the names of systems: what it prints, explains and refuses. */
import { writeFileSync } from "node:fs"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { failuresOf, scratch } from "../support/command.ts"
import { runHere } from "../support/here.ts"
import { writeSmallModel } from "../support/smallModels.ts"

interface Step {
  readonly name: string
  readonly action: string
  readonly bytes: number
  readonly tensors?: { readonly source: string; readonly destination: string }
}

interface PlanJson {
  readonly names: { readonly from: { readonly convention: string }; readonly to: { readonly convention: string } }
  readonly size: number
  readonly estimate: { readonly totalBytes: number; readonly remoteBytes: number }
  readonly explanation?: {
    readonly groups: ReadonlyArray<{ readonly peers: ReadonlyArray<number>; readonly steps: ReadonlyArray<Step> }>
  }
}

const planned = async (...args: ReadonlyArray<string>) => {
  const ended = await runHere(["plan", ...args, "--json"])
  assert.strictEqual(ended.code, 0, ended.stdout + ended.stderr)
  return JSON.parse(ended.stdout) as PlanJson
}

describe("plan between names", () => {
  it("prints both sides with their names, and a saved plan is proved", async () => {
    using folder = scratch()
    const model = await writeSmallModel(join(folder.path, "hf"), "llama")
    const file = join(folder.path, "plan.json")
    const ended = await runHere(["plan", model, "--from", "megatron:tp=2", "--to", "vllm:tp=4", "--save", file])
    assert.match(ended.stdout, /^megatron:tp=2 → vllm:tp=4, 4 ranks \(collocated\), \d+ tensors\n/)
    assert.match(ended.stdout, /from \\ to/)
    const check = await runHere(["plan", "check", file])
    assert.strictEqual(check.code, 0, check.stderr)
  })

  it("says in JSON by which names both sides are, and all bytes of the destination", async () => {
    using folder = scratch()
    const model = await writeSmallModel(join(folder.path, "hf"), "qwen3_moe")
    const { names, size, estimate } = await planned(model, "--from", "fsdp2:tp=2", "--to", "vllm:tp=2,dp=2,ep=4")
    assert.deepStrictEqual([names.from.convention, names.to.convention, size], ["fsdp2", "vllm", 4])
    assert.isBelow(estimate.remoteBytes, estimate.totalBytes)
  })

  it("explains each part by the tensor that it comes out of and the one that it becomes part of", async () => {
    using folder = scratch()
    const model = await writeSmallModel(join(folder.path, "hf"), "llama")
    const args = [model, "--from", "megatron:tp=2", "--to", "vllm:tp=2", "--explain", "1"]
    const { explanation } = await planned(...args)
    const steps = explanation!.groups.flatMap((group) => group.steps)
    const step = steps.find(({ name }) => name === "model.layers.1.self_attn.v_proj.weight")!
    assert.deepStrictEqual(step.tensors, {
      source: "decoder.layers.1.self_attention.linear_qkv.weight",
      destination: "model.layers.1.self_attn.qkv_proj.weight"
    })
    const { stdout } = await runHere(["plan", ...args])
    assert.include(
      stdout,
      "out of decoder.layers.0.mlp.linear_fc1.weight, part of model.layers.0.mlp.gate_up_proj.weight\n"
    )
  })

  it("notes that a type is unrecorded where only others of its family were", async () => {
    using folder = scratch()
    const [recorded, other] = [
      await writeSmallModel(join(folder.path, "llama"), "llama"),
      await writeSmallModel(join(folder.path, "mistral"), "mistral")
    ]
    const sides = ["--from", "megatron:tp=2", "--to", "vllm:tp=2"]
    const silent = await runHere(["plan", recorded, ...sides, "--json"])
    assert.deepStrictEqual([JSON.parse(silent.stdout).unrecorded, silent.stderr], [[], ""])
    const noted = await runHere(["plan", other, ...sides, "--json"])
    const [trainer, engine] = ["megatron", "vllm"].map(
      (name) => `${name} is unrecorded for models of type mistral: they are named as those of llama`
    )
    assert.deepStrictEqual(JSON.parse(noted.stdout).unrecorded, [trainer, engine])
    assert.strictEqual(noted.stderr, `note: ${trainer}\nnote: ${engine}\n`)
    const converted = await runHere(["convert", other, "--to", "vllm:", "--out", join(folder.path, "out")])
    assert.strictEqual(converted.stderr, `note: ${engine}\n`)
  })

  it("refuses a family that one side was not held against, and rules that leave a tensor out", async () => {
    using folder = scratch()
    const model = await writeSmallModel(join(folder.path, "hf"), "mixtral")
    const unknown = await runHere(["plan", model, "--from", "megatron:tp=2", "--to", "vllm:tp=2", "--json"])
    assert.strictEqual(unknown.code, 1)
    assert.match(failuresOf(unknown)[0]!.message, /How megatron names models of this family .*--map FILE/)
    const map = join(folder.path, "map.yaml")
    writeFileSync(map, "rules: [{ ignore: lm_head.weight }]\nothers: refuse\n")
    const refused = await runHere(["plan", model, "--to", "tp=2", "--map", map, "--json"])
    assert.deepStrictEqual([refused.code, failuresOf(refused)[0]!.reason], [1, "unexpected_source"])
  })
})
