// SPDX-License-Identifier: Apache-2.0
/**
 * One rank of the trainer or of the inference job: hands its tensors to its agent once, then exchanges them every step.
 *
 *   AGENT_RANK=0 node client.ts train 0 2      AGENT_RANK=2 node client.ts infer 0 1
 *
 * The arguments are the job, this rank in it, and the number of its ranks.
 */
import { HostMemory as HostMemoryLayers } from "@tensorferry/backend-torch-copy"
import {
  AgentStateLmdb,
  BatchHandlers,
  bootstrap,
  CommandQueueLmdb,
  TensorBusClient,
  TensorBusClients
} from "@tensorferry/bus"
import { replicate, shard } from "@tensorferry/core/layout/Placement"
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import { tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import { batch, steps, valuesOf, weights } from "./shared.ts"

const [job = "train", rankText = "0", sizeText = "1"] = process.argv.slice(2)
const [rank, size] = [Number(rankText), Number(sizeText)]
const isTrainer = job === "train"

/** Rows and columns of a tensor that this rank holds. */
const boxOf = (pair: string, [rows, columns]: readonly [number, number]) => {
  const cut = (length: number): readonly [number, number] => [(length * rank) / size, (length * (rank + 1)) / size]
  if (pair === "norm") return { rows: [0, rows], columns: [0, columns] } as const
  return isTrainer
    ? ({ rows: cut(rows), columns: [0, columns] } as const)
    : ({ rows: [0, rows], columns: cut(columns) } as const)
}

const placementOf = (pair: string) => (pair === "norm" ? replicate : shard(isTrainer ? 0 : 1))

const main = Effect.gen(function* () {
  const client = yield* TensorBusClient
  const memory = yield* HostMemory
  for (const { pair } of weights) {
    yield* client.initPair({
      pair,
      local: job,
      remote: isTrainer ? "infer" : "train",
      mesh: [size],
      placements: [placementOf(pair)]
    })
  }
  const held = yield* Effect.forEach(weights, ({ pair, shape }) =>
    Effect.gen(function* () {
      const { rows, columns } = boxOf(pair, shape)
      const local = [rows[1] - rows[0], columns[1] - columns[0]]
      const storage = yield* memory.allocate(4 * local[0]! * local[1]!)
      const tensor = Result.getOrThrow(tensorView(storage, "float32", local))
      return {
        pair,
        rows,
        columns,
        tensor,
        values: new Float32Array(storage.bytes!.buffer, storage.bytes!.byteOffset, local[0]! * local[1]!)
      }
    })
  )
  const handler = yield* BatchHandlers.make({ batch, tensors: held.map(({ pair, tensor }) => [pair, tensor] as const) })
  let wrong = 0
  const sendStep = (step: number) =>
    Effect.suspend(() => {
      for (const { rows, columns, values } of held) values.set(valuesOf(step, rows, columns))
      return handler.send
    })
  const receiveStep = (step: number) =>
    Effect.map(handler.receive, () => {
      for (const { rows, columns, values } of held) {
        const wanted = valuesOf(step, rows, columns)
        wrong += values.filter((value, at) => value !== wanted[at]).length
      }
    })
  // Every step of training goes to the inference process; at the end it hands its weights back.
  for (let step = 0; step < steps; step++) yield* isTrainer ? sendStep(step) : receiveStep(step)
  yield* isTrainer ? receiveStep(steps) : sendStep(steps)
  yield* Effect.sync(() => {
    console.log(`${job} ${rank}: ${steps} steps, ${wrong} wrong values`)
    process.exitCode = wrong > 0 ? 1 : 0
  })
})

const services = Layer.unwrap(
  Effect.map(bootstrap(), ({ commandPath, statePath }) =>
    TensorBusClients.layer().pipe(
      Layer.provideMerge(
        Layer.mergeAll(
          CommandQueueLmdb.layerLmdb({ path: commandPath, role: "client" }),
          AgentStateLmdb.layerLmdb({ path: statePath, role: "client" }),
          HostMemoryLayers.layer
        )
      )
    )
  )
)

await Effect.runPromise(Effect.scoped(Effect.provide(main, services)))
