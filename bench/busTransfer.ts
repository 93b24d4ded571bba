// SPDX-License-Identifier: Apache-2.0
/**
 * A batch of 134 MB in six tensors from one client to another, through two agents that are processes of their own, next to
 * two copies of as many bytes in the memory of one process.
 */
import { spawn } from "node:child_process"
import { once } from "node:events"
import { createInterface } from "node:readline"
import { fileURLToPath } from "node:url"
import { TensorEngine as HostEngine, HostMemory as HostMemoryLayers } from "@tensorferry/backend-torch-copy"
import { CommandQueueLmdb, placeOf } from "@tensorferry/bus"
import * as Clients from "@tensorferry/bus/client/TensorBusClient"
import * as AgentStateLmdb from "@tensorferry/bus/state/AgentStateLmdb"
import { median } from "@tensorferry/core/base/Numbers"
import { replicate } from "@tensorferry/core/layout/Placement"
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import type { BenchResult } from "./measure.ts"

const agentScript = fileURLToPath(new URL("../packages/bus/test/fixtures/agent.ts", import.meta.url))

/** Elements of float32: 134 MB in all. */
const lengths = [16_777_216, 8_388_608, 4_194_304, 2_097_152, 1_048_576, 1_048_576]
const rounds = 40
const warmUps = 5

/** An agent as a process; answers the port of the store, which it serves where `port` is 0. */
const startAgent = (rank: number, folder: string, port: number) =>
  Effect.gen(function* () {
    const input = JSON.stringify({ rank, folder, port, deadlineMillis: 60_000, heartbeatMillis: 1_000 })
    const child = yield* Effect.acquireRelease(
      Effect.sync(() => spawn(process.execPath, [agentScript, input], { stdio: ["ignore", "pipe", "inherit"] })),
      (started) =>
        Effect.promise(async () => {
          const ended = once(started, "exit")
          if (started.kill("SIGTERM")) await ended
        })
    )
    const [line] = (yield* Effect.promise(() => once(createInterface({ input: child.stdout }), "line"))) as [string]
    return (JSON.parse(line) as { readonly port: number }).port
  })

const clientOf = Effect.fnUntraced(function* (rank: number, folder: string) {
  const place = placeOf(rank, folder)
  const files = Layer.mergeAll(
    CommandQueueLmdb.layerLmdb({ path: place.commandPath, role: "client", mapBytes: 2 ** 24 }),
    AgentStateLmdb.layerLmdb({ path: place.statePath, role: "client", mapBytes: 2 ** 24 })
  )
  return yield* Effect.provideContext(Clients.make(), yield* Layer.build(Layer.merge(files, HostMemoryLayers.layer)))
})

const millisOf = <A, E, R>(work: Effect.Effect<A, E, R>) =>
  Effect.gen(function* () {
    const begun = performance.now()
    yield* work
    return performance.now() - begun
  })

const numbersOf = ({ storage, shape }: Tensor): Float32Array =>
  new Float32Array(storage.bytes!.buffer, storage.bytes!.byteOffset, shape[0]!)

/** Another value in every tensor of every round. */
const fill = (tensors: ReadonlyArray<Tensor>, value: number) =>
  Effect.sync(() => {
    for (const [at, tensor] of tensors.entries()) numbersOf(tensor).fill(value + at)
  })

const check = (tensors: ReadonlyArray<Tensor>, value: number) =>
  Effect.sync(() => {
    for (const [at, tensor] of tensors.entries()) {
      const odd = numbersOf(tensor).findIndex((number) => number !== value + at)
      if (odd >= 0) throw new Error(`Element ${odd} of tensor ${at} is ${numbersOf(tensor)[odd]}, not ${value + at}.`)
    }
  })

const measure = (folder: string) =>
  Effect.gen(function* () {
    const [first, second] = [100 * process.pid + 50, 100 * process.pid + 51]
    const port = yield* startAgent(first, folder, 0)
    yield* startAgent(second, folder, port)
    const [sender, receiver] = [yield* clientOf(first, folder), yield* clientOf(second, folder)]
    const memory = yield* HostMemory
    const engine = yield* TensorEngine
    const allocate = Effect.forEach(lengths, (length) =>
      Effect.map(memory.allocate(4 * length), (storage) => Result.getOrThrow(tensorView(storage, "float32", [length])))
    )
    const [from, into, between] = [yield* allocate, yield* allocate, yield* allocate]
    const both = <A, E>(one: Effect.Effect<A, E>, other: Effect.Effect<A, E>) =>
      Effect.all([one, other], { concurrency: 2 })
    const side = (local: string, remote: string) => ({ pair: "p", local, remote, mesh: [1], placements: [replicate] })
    const batch = (tensors: ReadonlyArray<Tensor>) => ({
      batch: "w",
      tensors: tensors.map((tensor) => ["p", tensor] as const)
    })
    yield* both(sender.initPair(side("a", "b")), receiver.initPair(side("b", "a")))
    yield* both(sender.registerTensors(batch(from)), receiver.registerTensors(batch(into)))
    const moves = (src: ReadonlyArray<Tensor>, dst: ReadonlyArray<Tensor>) =>
      src.map((tensor, at) => ({ src: tensor, dst: dst[at]! }))
    const update = both(sender.transfer("w", "send"), receiver.transfer("w", "recv"))
    const twoCopies = Effect.andThen(engine.copy(moves(from, between)), engine.copy(moves(between, into)))
    const [updates, copies] = [[] as number[], [] as number[]]
    for (let round = -warmUps; round < rounds; round++) {
      yield* fill(from, round)
      yield* fill(into, -1_000)
      const ours = yield* millisOf(update)
      yield* check(into, round)
      const plain = yield* millisOf(twoCopies)
      if (round < 0) continue
      updates.push(ours)
      copies.push(plain)
    }
    return { updates, copies }
  }).pipe(Effect.scoped, Effect.provide(Layer.merge(HostMemoryLayers.layer, HostEngine.layer())))

/** The rows, in a folder of its own. */
export const busTransfer = async (folder: string): Promise<ReadonlyArray<BenchResult>> => {
  const { updates, copies } = await Effect.runPromise(measure(folder))
  const reference = median(copies)
  const fastest = `fastest ${Math.min(...updates).toFixed(1)} against ${Math.min(...copies).toFixed(1)}`
  return [
    {
      case: `bus, 134 MB in 6 tensors through two agents, next to two copies in memory (median of ${rounds}; ${fastest})`,
      unit: "ms",
      ours: median(updates),
      reference,
      target: 1.5 * reference,
      lowerIsBetter: true
    }
  ]
}
