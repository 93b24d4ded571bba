// SPDX-License-Identifier: Apache-2.0
/**
 * The tensor bus: commands through the queue next to a queue in Python on the same machine, and how long the smallest
 * transfers take from command to completion.
 */
import { spawnSync } from "node:child_process"
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { basename, join } from "node:path"
import { fileURLToPath } from "node:url"
import { CopyDriver, HostMemory as HostMemoryLayers, TensorEngine } from "@tensorferry/backend-torch-copy"
import { CleanupBatch, CommandQueueLmdb, placeOf } from "@tensorferry/bus"
import * as Agents from "@tensorferry/bus/agent/TensorBusAgent"
import * as Clients from "@tensorferry/bus/client/TensorBusClient"
import * as AgentStateLmdb from "@tensorferry/bus/state/AgentStateLmdb"
import { KeyValueStore } from "@tensorferry/bus/store/KeyValueStore"
import { layerServed } from "@tensorferry/bus/store/KeyValueStoreTcp"
import { median } from "@tensorferry/core/base/Numbers"
import { copyServiceLayer } from "@tensorferry/core/copy/CopyServiceLayer"
import { replicate } from "@tensorferry/core/layout/Placement"
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import { tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import { busTransfer } from "./busTransfer.ts"
import type { BenchResult } from "./measure.ts"

const count = 20_000
const client = fileURLToPath(new URL("../packages/bus/test/fixtures/bus_client.py", import.meta.url))

/** Commands per second that a Python client's queue takes, one after the other; undefined without python3-lmdb. */
const pythonRate = (folder: string, sync: "sync" | "nosync"): number | undefined => {
  for (const python of ["python3", "/usr/bin/python3"]) {
    // Nothing but the package that clients use is a fair comparison.
    if (spawnSync(python, ["-c", "import lmdb"]).status !== 0) continue
    const path = join(folder, `${basename(folder)}_py_${sync}.lmdb`)
    const ended = spawnSync(python, [client, "rate", path, String(sync === "sync" ? count / 10 : count), sync], {
      encoding: "utf8"
    })
    if (ended.status === 0) return Number(ended.stdout)
  }
  return undefined
}

const command = new CleanupBatch({ batchId: "batch", timestamp: 1.5, semaphoreName: "/sem" })

/** Commands per second, put in `at once` at a time. */
const ownRate = (folder: string, atOnce: number) =>
  Effect.scoped(
    Effect.gen(function* () {
      const queue = yield* CommandQueueLmdb.make({ path: join(folder, `${basename(folder)}_ts.lmdb`), role: "agent" })
      const round = Effect.gen(function* () {
        const start = performance.now()
        for (let at = 0; at < count; at += atOnce) yield* queue.enqueue(Array.from({ length: atOnce }, () => command))
        for (let taken = 0; taken < count; ) taken += (yield* queue.dequeue(256)).length
        return count / ((performance.now() - start) / 1000)
      })
      const rates: Array<number> = []
      for (let at = 0; at < 5; at++) rates.push(yield* round)
      return median(rates)
    })
  )

/** Milliseconds of a transfer of `length` numbers, from the command to its completion on both sides. */
const transferTime = (folder: string, length: number) =>
  Effect.scoped(
    Effect.gen(function* () {
      const shared = yield* Layer.build(Layer.mergeAll(HostMemoryLayers.layer, layerServed()))
      const start = (rank: number) =>
        Effect.gen(function* () {
          // Agents of other runs on this machine must not have the same ranks.
          const place = placeOf(100 * process.pid + rank, folder)
          const context = Context.merge(
            shared,
            yield* Layer.build(
              Layer.mergeAll(
                CommandQueueLmdb.layerLmdb({ path: place.commandPath, role: "agent" }),
                AgentStateLmdb.layerLmdb({ path: place.statePath, role: "agent" })
              )
            )
          )
          const agent = yield* Effect.provideContext(
            Agents.make({
              rank,
              transport: copyServiceLayer(CopyDriver.layer()).pipe(Layer.provideMerge(TensorEngine.layer()))
            }),
            Context.add(context, KeyValueStore, Context.get(shared, KeyValueStore))
          )
          yield* Effect.forkScoped(agent.serve, { startImmediately: true })
          return yield* Effect.provideContext(Clients.make(), context)
        })
      const [a, b] = [yield* start(0), yield* start(1)]
      const memory = Context.get(shared, HostMemory)
      const both = <A, E>(one: Effect.Effect<A, E>, other: Effect.Effect<A, E>) =>
        Effect.all([one, other], { concurrency: 2 })
      const side = (local: string, remote: string) => ({ pair: "p", local, remote, mesh: [1], placements: [replicate] })
      yield* both(a.initPair(side("a", "b")), b.initPair(side("b", "a")))
      const register = Effect.gen(function* () {
        const storage = yield* memory.allocate(4 * length)
        const tensor = Result.getOrThrow(tensorView(storage, "float32", [length]))
        return { batch: "batch", tensors: [["p", tensor] as const] }
      })
      yield* both(a.registerTensors(yield* register), b.registerTensors(yield* register))
      const times: Array<number> = []
      // Compilers need to see code run before they make it fast.
      for (let at = 0; at < 800; at++) {
        const begin = performance.now()
        yield* both(a.transfer("batch", "send"), b.transfer("batch", "recv"))
        times.push(performance.now() - begin)
      }
      return median(times.slice(500))
    })
  )

export const bus = async (): Promise<ReadonlyArray<BenchResult>> => {
  const folder = mkdtempSync(join(tmpdir(), "bench-bus-"))
  try {
    const [synced, unsynced] = [pythonRate(folder, "sync"), pythonRate(folder, "nosync")]
    const [single, many] = [await Effect.runPromise(ownRate(folder, 1)), await Effect.runPromise(ownRate(folder, 64))]
    const empty = await Effect.runPromise(transferTime(folder, 0))
    const oneNumber = await Effect.runPromise(transferTime(folder, 1))
    const against = (reference: number | undefined, target?: number) =>
      reference === undefined ? {} : { reference, ...(target === undefined ? {} : { target }) }
    const rate = { unit: "commands/s", lowerIsBetter: false }
    return [
      {
        case: "bus queue, one command at a time, next to Python as its clients run it (synced to disk)",
        ours: single,
        ...rate,
        ...against(synced, synced === undefined ? undefined : 3 * synced)
      },
      {
        case: "bus queue, one command at a time, next to Python without syncing",
        ours: single,
        ...rate,
        ...against(unsynced)
      },
      {
        case: "bus queue, 64 commands at a time, next to Python without syncing",
        ours: many,
        ...rate,
        ...against(unsynced, unsynced === undefined ? undefined : 3 * unsynced)
      },
      {
        case: "bus, empty transfer between two agents of one process",
        unit: "ms",
        ours: empty,
        target: 2,
        lowerIsBetter: true
      },
      {
        case: "bus, transfer of one number between two agents of one process",
        unit: "ms",
        ours: oneNumber,
        lowerIsBetter: true
      },
      ...(await busTransfer(folder))
    ]
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}
