// SPDX-License-Identifier: Apache-2.0
/**
 * Models between the names of two systems, through agents: what arrives is what recordings of both systems say, and what is
 * not as the names have it is refused by rule and tensor on all ranks.
 */
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import type { DType } from "@tensorferry/core/base/DType"
import { replicate } from "@tensorferry/core/layout/Placement"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import type { Mapping } from "@tensorferry/model/names/Mapping"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { ModelBatchInput } from "../../src/client/TensorBusClient.ts"
import { makeCluster } from "../cluster.ts"
import { type RecordedSide, type RecordedTensor, recordedSide, writeModel } from "../recordedSides.ts"
import { scratch } from "../support.ts"
import { encode, makeTensor } from "../tensors.ts"
import { all } from "./twoAgents.ts"

type Dtypes = readonly [source: DType, target: DType]

/** What differs first from the recording in what a rank of the target holds; what nobody writes is still poisoned. */
const faultOf = (held: ReadonlyMap<string, Tensor>, wanted: ReadonlyArray<RecordedTensor>, dtype: DType) => {
  for (const { name, numbers } of wanted) {
    const bytes = held.get(name)!.storage.bytes!
    const values = encode(dtype, [...numbers])
    const size = values.length / Math.max(1, numbers.length)
    for (const [at, number] of numbers.entries()) {
      for (let byte = at * size; byte < (at + 1) * size; byte++)
        if (bytes[byte] !== (number > 0 ? values[byte] : 0xa5)) return `${name}, element ${at} is not ${number}`
    }
  }
  return undefined
}

/** Agents of both sides with a pair; the trainer's come first among agents, and second among sides. */
const meet = Effect.fnUntraced(function* (from: RecordedSide, to: RecordedSide) {
  const cluster = yield* makeCluster()
  const folder = yield* scratch
  const model = writeModel(folder, from.sources, from.config)
  const size = from.ranks.length + to.ranks.length
  const clients = yield* Effect.forEach(Array.from({ length: size }), (_, rank) =>
    Effect.map(cluster.start(rank), ({ client }) => client)
  )
  const sideOf = (rank: number) =>
    rank < from.ranks.length
      ? { side: from, own: from.ranks[rank]!, local: "train", remote: "infer" }
      : { side: to, own: to.ranks[rank - from.ranks.length]!, local: "infer", remote: "train" }
  yield* all(
    clients.map((client, rank) => {
      const { side, local, remote } = sideOf(rank)
      return client.initPair({ pair: "p", local, remote, mesh: [side.ranks.length], placements: [replicate] })
    })
  )
  const inputOf = Effect.fnUntraced(function* (rank: number, dtypes: Dtypes = ["float32", "float32"]) {
    const { side, own } = sideOf(rank)
    const isSource = side === from
    const dtype = dtypes[isSource ? 0 : 1]
    const tensors = new Map<string, Tensor>()
    for (const { name, shape, numbers } of own) {
      const tensor = yield* makeTensor(cluster.memory, dtype, shape)
      if (isSource) tensor.storage.bytes!.set(encode(dtype, [...numbers]))
      tensors.set(name, tensor)
    }
    const input: ModelBatchInput & { readonly tensors: ReadonlyMap<string, Tensor> } = {
      batch: "weights",
      pair: "p",
      model,
      names: side.names,
      placement: side.placement,
      tensors
    }
    return input
  })
  return { clients, sideOf, inputOf, memory: cluster.memory, folder }
})

/** Moves a recorded model from one recorded side to another. */
const move = (engines: readonly [string, string], family: string, cases: readonly [string, string], dtypes?: Dtypes) =>
  Effect.scoped(
    Effect.gen(function* () {
      const from = recordedSide(engines[0], family, cases[0])
      const to = recordedSide(engines[1], family, cases[1])
      const { clients, sideOf, inputOf } = yield* meet(from, to)
      const inputs = yield* Effect.forEach(clients, (_, rank) => inputOf(rank, dtypes))
      yield* all(clients.map((client, rank) => client.registerModel(inputs[rank]!)))
      yield* all(
        clients.map((client, rank) => client.transfer("weights", sideOf(rank).side === from ? "send" : "recv"))
      )
      for (const [rank, { tensors }] of inputs.entries()) {
        const { side, own } = sideOf(rank)
        if (side === to) assert.isUndefined(faultOf(tensors, own, dtypes?.[1] ?? "float32"), `${family} rank ${rank}`)
      }
    })
  )

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
