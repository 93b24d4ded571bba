// SPDX-License-Identifier: Apache-2.0
/**
 * Models between the names of two systems, through agents: what arrives is what recordings of both systems say, and what is
 * not as the names have it is refused by rule and tensor on all ranks.
 */
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import { recordedSide, writeModel } from "@tensorferry/golden/recordedSides"
import type { Mapping } from "@tensorferry/model/names/Mapping"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { ModelBatchInput } from "../../src/client/TensorBusClient.ts"
import { makeTensor } from "../tensors.ts"
import { meet, move } from "./recordedMoves.ts"
import { all } from "./twoAgents.ts"

describe("moves between recorded systems", () => {
  it.live("llama: from Megatron's groups to vLLM with more ranks than key-value heads", () =>
    move(["megatron", "vllm"], "llama", ["tp2", "tp4"])
  )
  it.live("qwen3_moe: experts one by one to a stack", () =>
    move(["megatron", "vllm"], "qwen3_moe", ["tp2ep1etp2", "tp2"])
  )
  it.live("llama: back from the engine", () => move(["vllm", "megatron"], "llama", ["tp2", "tp1"]))
  it.live("qwen3: a trainer in float32 and an engine in float64", () =>
    move(["megatron", "sglang"], "qwen3", ["tp1", "tp2"], ["float32", "float64"])
  )
})

/** One rank on each side; `change` is what rank 0, the trainer, states otherwise. */
const refused = (
  change: (
    input: ModelBatchInput & { readonly tensors: ReadonlyMap<string, Tensor> },
    made: {
      readonly folder: string
      readonly tensor: (shape: ReadonlyArray<number>) => Effect.Effect<Tensor, unknown, Scope.Scope>
    }
  ) => Effect.Effect<ModelBatchInput, unknown, Scope.Scope>
) =>
  Effect.scoped(
    Effect.gen(function* () {
      const from = recordedSide("megatron", "llama", "tp1")
      const to = recordedSide("vllm", "llama", "tp1")
      const { clients, inputOf, memory, folder } = yield* meet(from, to)
      const [own, other] = [yield* inputOf(0), yield* inputOf(1)]
      const changed = yield* change(own, { folder, tensor: (shape) => makeTensor(memory, "float32", shape) })
      return yield* all([
        Effect.flip(clients[0]!.registerModel(changed)),
        Effect.flip(clients[1]!.registerModel(other))
      ])
    })
  )

/** A command that is refused before the other ranks are asked. */
const refusedAlone = (change: (input: ModelBatchInput) => ModelBatchInput, ...words: ReadonlyArray<string>) =>
  Effect.scoped(
    Effect.gen(function* () {
      const from = recordedSide("megatron", "llama", "tp1")
      const { clients, inputOf } = yield* meet(from, recordedSide("vllm", "llama", "tp1"))
      const error = yield* Effect.flip(clients[0]!.registerModel(change(yield* inputOf(0))))
      assert.strictEqual(error.reason._tag, "InvalidCommand", error.message)
      for (const word of words) assert.include(error.message, word)
    })
  )

const without = (tensors: ReadonlyMap<string, Tensor>, name: string) =>
  new Map([...tensors].filter(([own]) => own !== name))

const qkv = "decoder.layers.0.self_attention.linear_qkv.weight"

/** All ranks get the same words. */
const refusedAlike = (change: Parameters<typeof refused>[0], ...words: ReadonlyArray<string>) =>
  Effect.map(refused(change), (errors) => {
    for (const { reason, message } of errors) {
      assert.strictEqual(reason._tag, "BatchMismatch", message)
      for (const word of words) assert.include(message, word)
    }
    assert.strictEqual(errors[0]!.reason.detail, errors[1]!.reason.detail)
  })

describe("refusals", () => {
  it.live("a tensor that a rule makes and nobody registers", () =>
    refusedAlike(
      (input) => Effect.succeed({ ...input, tensors: without(input.tensors, qkv) }),
      `missing_source (${qkv} by rule decoder.layers.{layer.local}.self_attention.linear_qkv.{kind*})`,
      "agent 0"
    )
  )
  it.live("a tensor of another shape", () =>
    refusedAlike(
      (input, { tensor }) =>
        Effect.map(tensor([3, 5]), (odd) => ({ ...input, tensors: new Map(input.tensors).set(qkv, odd) })),
      `shape_mismatch (${qkv} by rule`,
      "[3,5]"
    )
  )
  it.live("a tensor that no rule makes", () =>
    refusedAlike(
      (input, { tensor }) =>
        Effect.map(tensor([2]), (odd) => ({ ...input, tensors: new Map(input.tensors).set("decoder.extra", odd) })),
      "unmapped_source (decoder.extra)"
    )
  )
  it.live("rules of a mapping that lack a part", () =>
    refusedAlike((input) => {
      const mapping: Mapping = {
        rules: [
          { name: "{owner...}.fused", from: { concat: ["{owner...}.q_proj.weight", "{owner...}.q_proj.scale"] } }
        ],
        others: "keep"
      }
      return Effect.succeed({ ...input, mapping })
    }, "missing_source (model.layers.0.self_attn.q_proj.scale by rule {owner...}.fused)")
  )
  it.live("degrees of more ranks than the side has", () =>
    refusedAlike((input) => Effect.succeed({ ...input, names: "megatron:tp=2" }), "side train has 1 agents", "2 ranks")
  )
  it.live("a model that is not the other side's", () =>
    refusedAlike((input, { folder }) => {
      const { sources, config } = recordedSide("megatron", "llama_tied", "tp1")
      return Effect.succeed({ ...input, model: writeModel(join(folder, "other"), sources, config) })
    }, "different models")
  )
  it.live("names, rules and models that are none", () =>
    all([
      refusedAlone((input) => ({ ...input, names: "megatrom:tp=1" }), "megatrom:tp=1", "sglang"),
      refusedAlone((input) => ({ ...input, mapping: { rules: [{ nmae: "x" }] } as never }), "its rules are no mapping"),
      refusedAlone((input) => ({ ...input, model: "/nowhere/at/all" }), "/nowhere/at/all"),
      refusedAlone((input) => ({ ...input, preset: "llamma" }), "there is no family llamma")
    ])
  )
  it.live("a model on one side, and tensors of a mesh on the other", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const from = recordedSide("megatron", "llama", "tp1")
        const { clients, inputOf } = yield* meet(from, recordedSide("vllm", "llama", "tp1"))
        const { tensors } = yield* inputOf(1)
        const [[name, tensor]] = [...tensors] as [[string, Tensor]]
        const errors = yield* all([
          Effect.flip(clients[0]!.registerModel(yield* inputOf(0))),
          Effect.flip(clients[1]!.registerTensors({ batch: "weights", tensors: [["p", tensor, name]] }))
        ])
        for (const { message } of errors)
          assert.include(message, "agent 0 registers a model by its names, agent 1 tensors of a mesh")
      })
    )
  )
})
