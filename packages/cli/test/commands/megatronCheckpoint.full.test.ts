// SPDX-License-Identifier: Apache-2.0
/**
 * Distributed checkpoints as Megatron-Core writes them, made by PyTorch from what recordings say that Megatron-Core holds,
 * read back as the checkpoint: every element is where the recording has it from.
 */
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { afterEach, assert, describe, it } from "@effect/vitest"
import { elementCount } from "@tensorferry/core/base/Region"
import { type RecordedTensor, recordedSide, writeModel } from "@tensorferry/golden/recordedSides"
import { pythonWith, runScript, withPython } from "@tensorferry/testing/machine/python"
import { endAll, failuresOf, run, scratch } from "../support/command.ts"
import { runHere } from "../support/here.ts"

afterEach(endAll)

const python = pythonWith("torch", "numpy")
const script = new URL("../fixtures/megatron_checkpoint.py", import.meta.url)

type Split = readonly [end: string, parts: ReadonlyArray<readonly [suffix: string, rows: number]>]

const change = (number: number, op: string | undefined): number =>
  op === undefined ? number : op.startsWith("add ") ? number + Number(op.slice(4)) : Number.NaN

const valuesOf = (tensors: ReadonlyArray<RecordedTensor>): Float32Array =>
  Float32Array.from(tensors.flatMap(({ numbers, ops }) => [...numbers].map((number) => change(number, ops[0]))))

/** Rows by the numbers of a config. */
const splitsOf = (family: string, config: Readonly<Record<string, unknown>>): ReadonlyArray<Split> => {
  const number = (name: string): number => config[name] as number
  if (family === "nemotron_h") {
    const inner = number("mamba_num_heads") * number("mamba_head_dim")
    const states = number("n_groups") * number("ssm_state_size")
    const conv = [
      [".x", inner],
      [".B", states],
      [".C", states]
    ] as const
    return [
      ["mixer.in_proj.weight", [[".z", inner], ...conv, [".dt", number("mamba_num_heads")]]],
      ["mixer.conv1d_weight", conv],
      ["mixer.conv1d_bias", conv]
    ]
  }
  if (family === "qwen3_next") {
    const keys = number("linear_num_key_heads") * number("linear_key_head_dim")
    const values = number("linear_num_value_heads") * number("linear_value_head_dim")
    const conv = [
      [".query", keys],
      [".key", keys],
      [".value", values]
    ] as const
    const heads = number("linear_num_value_heads")
    return [
      ["self_attention.in_proj.weight", [...conv, [".z", values], [".beta", heads], [".alpha", heads]]],
      ["self_attention.conv1d.weight", conv]
    ]
  }
  return []
}

const write = async (folder: string, family: string, cases: string, more: object = {}) => {
  const { sources, config, ranks } = recordedSide("megatron", family, cases)
  const model = writeModel(folder, sources, config)
  const [values, out, spec] = ["values", "iter_0000007", "spec.json"].map((name) => join(folder, name)) as [
    string,
    string,
    string
  ]
  const tensors = ranks[0]!
  writeFileSync(values, valuesOf(tensors))
  mkdirSync(out)
  const splits = splitsOf(family, config)
  writeFileSync(
    spec,
    JSON.stringify({ values, out, splits, tensors: tensors.map(({ name, shape }) => [name, shape]), ...more })
  )
  await runScript(python!, script, spec)
  return { model, sources, out }
}

/** Every element of a published checkpoint is the number that it has there. */
const assertNumbered = (folder: string, sources: ReturnType<typeof recordedSide>["sources"]) => {
  const bytes = readFileSync(join(folder, "model.safetensors"))
  const length = Number(bytes.readBigUInt64LE(0))
  const header = JSON.parse(bytes.subarray(8, 8 + length).toString("utf8")) as Record<
    string,
    { readonly dtype: string; readonly data_offsets: readonly [number, number] }
  >
  let next = 1
  for (const [name, shape] of sources) {
    const { dtype, data_offsets: offsets } = header[name]!
    assert.strictEqual(dtype, "F32", name)
    const held = new Float32Array(
      new Uint8Array(bytes.subarray(8 + length + offsets[0], 8 + length + offsets[1])).buffer
    )
    assert.strictEqual(held.length, elementCount(shape), name)
    const first = next
    const wrong = held.findIndex((value, at) => value !== first + at)
    assert.strictEqual(wrong, -1, `${name}, element ${wrong}: ${held[wrong]}`)
    next += elementCount(shape)
  }
}

describe.skipIf(python === undefined)(
  withPython(python, "Megatron-Core's distributed checkpoints", "torch and numpy"),
  () => {
    for (const [family, cases] of [
      ["llama", "tp1"],
      ["qwen3_moe", "tp1ep1etp1"],
      ["deepseek_v3", "tp1ep1etp1"],
      ["gpt_oss", "tp1ep1etp1"],
      ["qwen3_next", "tp1ep1etp1"]
    ] as const) {
      it(`${family} is the checkpoint again`, async () => {
        using folder = scratch()
        const { model, sources, out } = await write(folder.path, family, cases)
        const back = join(folder.path, "back")
        const ended = await runHere(["convert", `megatron:${out}`, "--like", model, "--to", "hf:", "--out", back])
        assert.strictEqual(ended.code, 0, ended.stdout + ended.stderr)
        assertNumbered(back, sources)
      })
    }

    it("names that a wrapper begins are the model's, and reshard reads them too", async () => {
      using folder = scratch()
      const { model, sources, out } = await write(folder.path, "qwen2", "tp1", { prefix: "module." })
      const back = join(folder.path, "back")
      const ended = await run(["reshard", `megatron:${out}`, "--like", model, "--to", "hf:", "--out", back])
      assert.strictEqual(ended.code, 0, ended.stdout + ended.stderr)
      assertNumbered(back, sources)
    })

    it("--from megatron has the degrees and the stages that the run noted", async () => {
      using folder = scratch()
      const args = {
        tensor_model_parallel_size: 2,
        pipeline_model_parallel_size: 2,
        context_parallel_size: 2,
        world_size: 8,
        num_layers: 2,
        padded_vocab_size: 256,
        transformer_impl: "transformer_engine"
      }
      const { model, out } = await write(folder.path, "llama", "tp1", { args })
      const job = [`megatron:${out}`, "--like", model, "--from", "megatron", "--to", "vllm:tp=2"]
      const from = async () => {
        const ended = await runHere(["plan", ...job, "--json"])
        assert.strictEqual(ended.code, 0, ended.stdout + ended.stderr)
        return (JSON.parse(ended.stdout) as { readonly names: { readonly from: unknown } }).names.from
      }
      const vocabulary = { multipleOf: 128, of: "share" }
      const noted = { convention: "megatron", config: { tp: 2, pp: 2, dp: 2 } }
      assert.deepStrictEqual(await from(), { ...noted, placement: { vocabulary } })
      const ended = await run(["reshard", ...job, "--prove", "all"])
      assert.strictEqual(ended.code, 0, ended.stdout + ended.stderr)

      // Without arguments the run's configuration counts; it does not say how many replicas there were.
      rmSync(join(out, "common.pt"))
      const refused = await runHere(["plan", ...job, "--json"])
      assert.match(failuresOf(refused)[0]!.message, /no common\.pt with arguments and no run_config\.yaml/)
      const config = [
        "_target_: megatron.bridge.training.config.ConfigContainer",
        "model:",
        "  _target_: megatron.bridge.models.llama.LlamaModelProvider",
        "  num_layers: 2",
        "  tensor_model_parallel_size: 2",
        "  pipeline_model_parallel_size: 2",
        "  num_layers_in_first_pipeline_stage: 1",
        "  make_vocab_size_divisible_by: 128",
        "  params_dtype: {_call_: false, _target_: torch.bfloat16}"
      ]
      writeFileSync(join(out, "run_config.yaml"), config.join("\n"))
      assert.deepStrictEqual(await from(), {
        ...noted,
        config: { tp: 2, pp: 2, dp: 1 },
        placement: { stages: [1, 1], vocabulary }
      })
    })

    it("--from megatron is refused for a checkpoint of no run", async () => {
      using folder = scratch()
      const { model } = await write(folder.path, "llama", "tp1")
      const ended = await runHere(["plan", model, "--from", "megatron", "--to", "vllm:tp=2", "--json"])
      assert.match(failuresOf(ended)[0]!.message, /CHECKPOINT is not named as one of a run/)
      const to = await runHere(["plan", model, "--from", "megatron:tp=2", "--to", "megatron", "--json"])
      assert.notStrictEqual(to.code, 0)
    })

    it("a checkpoint that lacks a tensor is refused by its name", async () => {
      using folder = scratch()
      const { model, out } = await write(folder.path, "llama", "tp1", {
        drop: ["decoder.layers.mlp.linear_fc2.weight"]
      })
      const args = [`megatron:${out}`, "--like", model, "--to", "hf:", "--out", join(folder.path, "back"), "--json"]
      const ended = await runHere(["convert", ...args])
      assert.notStrictEqual(ended.code, 0)
      assert.match(failuresOf(ended)[0]!.message, /missing_source \(decoder\.layers\.0\.mlp\.linear_fc2\.weight\)/)
    })
  }
)
