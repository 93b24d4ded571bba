// SPDX-License-Identifier: Apache-2.0
/** Models moved by agents of one process from one recorded side to another. */
import { assert } from "@effect/vitest"
import type { DType } from "@tensorferry/core/base/DType"
import { replicate } from "@tensorferry/core/layout/Placement"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import { type RecordedSide, type RecordedTensor, recordedSide, writeModel } from "@tensorferry/golden/recordedSides"
import * as Effect from "effect/Effect"
import type { ModelBatchInput } from "../../src/client/TensorBusClient.ts"
import { makeCluster } from "../cluster.ts"
import { scratch } from "../support.ts"
import { encode, makeTensor } from "../tensors.ts"
import { all } from "./twoAgents.ts"

export type Dtypes = readonly [source: DType, target: DType]

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
export const meet = Effect.fnUntraced(function* (from: RecordedSide, to: RecordedSide) {
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
export const move = (
  engines: readonly [string, string],
  family: string,
  cases: readonly [string, string],
  dtypes?: Dtypes
) =>
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
