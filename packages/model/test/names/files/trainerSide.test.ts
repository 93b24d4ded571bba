// SPDX-License-Identifier: Apache-2.0
/** What a run noted of itself: its arguments out of files of torch.save, and the side that they state. */
import { copyFileSync } from "node:fs"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { trainerSide } from "../../../src/names/files/trainerSide.ts"
import { parseTrainerArgs, readTrainerArgs, type TrainerArgs } from "../../../src/torch/MegatronArgs.ts"
import { scratchFolder } from "../../checkpoint/checkpointSupport.ts"

const data = (name: string): string => fileURLToPath(new URL(`../../data/trainer/${name}.pt`, import.meta.url))

const read = (name: string) =>
  Effect.gen(function* () {
    const folder = yield* scratchFolder
    copyFileSync(data(name), join(folder, "common.pt"))
    return yield* readTrainerArgs(folder)
  })

/** The plain ones of those that `fixtures/trainer_notes.py` wrote. */
const written = {
  tensor_model_parallel_size: 4,
  pipeline_model_parallel_size: 2,
  context_parallel_size: 2,
  expert_model_parallel_size: 8,
  expert_tensor_parallel_size: 1,
  world_size: 64,
  data_parallel_size: 4,
  num_layers: 48,
  num_experts: 128,
  virtual_pipeline_model_parallel_size: null,
  transformer_impl: "transformer_engine",
  lr: 3e-4,
  bf16: true,
  seed: -7,
  decoder_first_pipeline_num_layers: null,
  big: 2 ** 40
}

describe("arguments of a run", () => {
  for (const name of ["args", "dict"])
    it.live(`are read from ${name === "args" ? "a Namespace" : "a dict"} among types, functions and tensors`, () =>
      Effect.map(read(name), (args) => assert.deepStrictEqual(Object.fromEntries(args!), written))
    )

  it.live("are none where the file has none, and where there is no file", () =>
    Effect.gen(function* () {
      assert.isUndefined(yield* read("none"))
      assert.isUndefined(yield* readTrainerArgs(yield* scratchFolder))
    })
  )

  it("are refused where the pickle is damaged", () => {
    const damaged = parseTrainerArgs(new Uint8Array([0x80, 2, 0x7d, 0x58, 9, 0, 0, 0]))
    assert.isTrue(Result.isFailure(damaged))
  })
})

const sideOf = (args: Readonly<Record<string, number | string | boolean | null>>) => {
  const found = trainerSide(new Map(Object.entries(args)) satisfies TrainerArgs)
  return Result.isSuccess(found) ? found.success : found.failure
}

const tp = { tensor_model_parallel_size: 2 }
const pp = { ...tp, pipeline_model_parallel_size: 4 }

describe("the side of a run", () => {
  it("has its degrees, ranks that share a sequence among the replicas", () => {
    assert.deepStrictEqual(sideOf(written), {
      convention: "megatron",
      config: { tp: 4, pp: 2, dp: 8, ep: 8, etp: 1 }
    })
    assert.deepStrictEqual(sideOf({ ...tp, context_parallel_size: 4 }), {
      convention: "megatron",
      config: { tp: 2, pp: 1, dp: 4 }
    })
  })

  it("cuts experts by tp where nothing else is said", () => {
    assert.deepStrictEqual(sideOf({ ...tp, expert_model_parallel_size: 2, world_size: 8 }), {
      convention: "megatron",
      config: { tp: 2, pp: 1, dp: 4, ep: 2, etp: 2 }
    })
  })

  it("has stages of their own length, and virtual ones", () => {
    assert.deepStrictEqual(
      sideOf({ ...pp, num_layers: 30, decoder_first_pipeline_num_layers: 7, decoder_last_pipeline_num_layers: 7 }),
      { convention: "megatron", config: { tp: 2, pp: 4, dp: 1 }, placement: { stages: [7, 8, 8, 7] } }
    )
    assert.deepStrictEqual(sideOf({ ...pp, num_layers: 30, num_layers_in_last_pipeline_stage: 3 }), {
      convention: "megatron",
      config: { tp: 2, pp: 4, dp: 1 },
      placement: { stages: [9, 9, 9, 3] }
    })
    assert.deepStrictEqual(sideOf({ ...pp, virtual_pipeline_model_parallel_size: 2 }), {
      convention: "megatron",
      config: { tp: 2, pp: 4, dp: 1 },
      placement: { virtual: 2 }
    })
  })

  it("has the rows of the vocabulary that ranks had", () => {
    const vocabularyOf = (args: Parameters<typeof sideOf>[0]) => {
      const side = sideOf({ ...tp, ...args })
      return typeof side === "string" ? side : side.placement?.vocabulary
    }
    assert.deepStrictEqual(vocabularyOf({ padded_vocab_size: 256, make_vocab_size_divisible_by: 128 }), {
      multipleOf: 128,
      of: "share"
    })
    assert.deepStrictEqual(vocabularyOf({ make_vocab_size_divisible_by: 64 }), { multipleOf: 64, of: "share" })
    assert.isUndefined(vocabularyOf({ make_vocab_size_divisible_by: 64, should_pad_vocab: false }))
    assert.match(String(vocabularyOf({ padded_vocab_size: 257 })), /257 does not divide by tp=2/)
  })

  it("has the names of Megatron's own layers where it ran with them", () => {
    assert.include(sideOf({ ...tp, transformer_impl: "local" }), { convention: "megatron-local" })
  })

  it.each([
    [{}, /tensor_model_parallel_size is not stated/],
    [{ tensor_model_parallel_size: "2" }, /tensor_model_parallel_size is "2"/],
    [{ tensor_model_parallel_size: 1.5 }, /is 1\.5/],
    [{ tensor_model_parallel_size: 1e9 }, /is 1000000000/],
    [{ ...tp, world_size: 7 }, /world_size 7 is no multiple of tp=2/],
    [{ ...tp, expert_model_parallel_size: 3, world_size: 8 }, /do not divide the 8 ranks/],
    [{ ...pp, pipeline_model_parallel_layout: "Et*4|t*4|t*4|t*4L" }, /pipeline_model_parallel_layout/],
    [{ ...pp, account_for_loss_in_pipeline_split: true }, /account_for_loss_in_pipeline_split/],
    [{ ...pp, num_layers: 32, decoder_first_pipeline_num_layers: 7 }, /32 layers do not divide/],
    [{ ...pp, decoder_first_pipeline_num_layers: 7 }, /an unknown number of layers/]
  ] as const)("is refused where %o states none", (args, message) => {
    assert.match(String(sideOf(args)), message)
  })
})
