// SPDX-License-Identifier: Apache-2.0
/** PyTorch's shared memory: used where it lies, its counts given back once, and removed by whoever is last. */

import { closeSync, existsSync, openSync, readFileSync, rmSync, writeFileSync, writeSync } from "node:fs"
import { assert, describe, it } from "@effect/vitest"
import { HostMemory as HostMemoryLayers } from "@tensorferry/backend-torch-copy"
import { replicate } from "@tensorferry/core/layout/Placement"
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import type { RecordedPayloads } from "@tensorferry/golden/busMessages"
import { goldenPath } from "@tensorferry/golden/readGolden"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type { TensorImporterShape } from "../../src/agent/TensorImporter.ts"
import { RegisterTensors } from "../../src/command/Command.ts"
import { makeCluster, transport } from "../cluster.ts"
import { faultOf, fill, makeTensor } from "../tensors.ts"

const payloads = JSON.parse(readFileSync(goldenPath("bus_payloads/payloads.json"), "utf8")) as RecordedPayloads

/** A recorded payload whose memory has another name of the same length, and the file of that name. */
const withMemory = (recorded: string, length: number, count: number) =>
  Effect.acquireRelease(
    Effect.sync(() => {
      const bytes = Buffer.from(payloads.tensors.find(({ name }) => name === recorded)!.pickle, "hex")
      const old = /\/torch_\d+_\d+_\d+/.exec(bytes.toString("latin1"))![0]
      const name = old.replace(/\d/g, () => String(1 + Math.floor(Math.random() * 9)))
      bytes.write(name, bytes.indexOf(old), "latin1")
      const file = `/dev/shm${name}`
      const content = Buffer.alloc(64 + length, 0xa5)
      content.writeInt32LE(count, 0)
      writeFileSync(file, content, { mode: 0o600 })
      return { payload: new Uint8Array(bytes), file }
    }),
    ({ file }) =>
      Effect.sync(() => {
        rmSync(file, { force: true })
      })
  )

const countOf = (file: string): number => readFileSync(file).readInt32LE(0)

const all = <A, E, R>(effects: ReadonlyArray<Effect.Effect<A, E, R>>) =>
  Effect.all(effects, { concurrency: "unbounded" })

const makePair = Effect.fnUntraced(function* (options: Parameters<typeof makeCluster>[0] = {}) {
  const { start, memory } = yield* makeCluster(options)
  const [a, b] = [yield* start(0), yield* start(1)]
  const side = (local: string, remote: string) => ({ pair: "p", local, remote, mesh: [1], placements: [replicate] })
  yield* all([a.client.initPair(side("a", "b")), b.client.initPair(side("b", "a"))])
  const register = (batchId: string, payload: Uint8Array) => new RegisterTensors({ batchId, tensors: [["p", payload]] })
  return { a, b, register, memory }
})
const onePair = makePair()

describe("host memory", () => {
  it.live("bytes behind the header move, strides and offsets hold, counts go back once", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { a, b, register } = yield* onePair
        const source = yield* withMemory("torch.float32 contiguous", 96, 2)
        const target = yield* withMemory("torch.float32 contiguous", 96, 1)
        const values = Float32Array.from({ length: 24 }, (_, at) => at + 0.5)
        const file = openSync(source.file, "r+")
        writeSync(file, Buffer.from(values.buffer), 0, 96, 64)
        closeSync(file)
        yield* all([a.client.send(register("b", source.payload)), b.client.send(register("b", target.payload))])
        yield* all([a.client.transfer("b", "send"), b.client.transfer("b", "recv")])
        const arrived = readFileSync(target.file)
        assert.deepStrictEqual(arrived.subarray(64), Buffer.from(values.buffer))
        assert.deepStrictEqual(arrived.subarray(4, 64), Buffer.alloc(60, 0xa5))
        assert.deepStrictEqual([countOf(source.file), countOf(target.file)], [2, 1])
        yield* all([a.client.cleanupBatch("b"), b.client.cleanupBatch("b")])
        assert.strictEqual(countOf(source.file), 1)
        assert.isFalse(existsSync(target.file))
      })
    )
  )

  it.live("a transposed view and a slice", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { a, b, register } = yield* onePair
        for (const [recorded, bytes, width] of [
          ["torch.float32 transposed", 96, 4],
          ["torch.uint8 slice", 24, 1]
        ] as const) {
          const source = yield* withMemory(recorded, bytes, 1)
          const target = yield* withMemory(recorded, bytes, 1)
          const content = readFileSync(source.file)
          for (let at = 64; at < content.length; at++) content[at] = at
          writeFileSync(source.file, content, { flag: "r+" })
          yield* all([
            a.client.send(register(recorded, source.payload)),
            b.client.send(register(recorded, target.payload))
          ])
          yield* all([a.client.transfer(recorded, "send"), b.client.transfer(recorded, "recv")])
          const arrived = readFileSync(target.file)
          const isInView = (at: number) => {
            if (recorded !== "torch.uint8 slice") return true
            const element = Math.floor(at / width)
            return element >= 8 && element < 8 + 9 && (element - 8) % 6 < 3
          }
          for (let at = 0; at < bytes; at++) {
            assert.strictEqual(arrived[64 + at], isInView(at) ? content[64 + at] : 0xa5, `${recorded}, byte ${at}`)
          }
          yield* all([a.client.cleanupBatch(recorded), b.client.cleanupBatch(recorded)])
        }
      })
    )
  )

  it.live("memory that is freed, too short or without owner is refused, and what was opened before is released", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { a } = yield* onePair
        const good = yield* withMemory("torch.float32 contiguous", 96, 2)
        const short = yield* withMemory("torch.float32 contiguous", 95, 1)
        const ownerless = yield* withMemory("torch.float32 contiguous", 96, 0)
        const absent = Uint8Array.from(good.payload)
        absent[Buffer.from(absent).indexOf("/torch_") + 8]! ^= 1
        for (const bad of [short.payload, ownerless.payload, absent]) {
          const error = yield* Effect.flip(
            a.client.send(
              new RegisterTensors({
                batchId: "b",
                tensors: [
                  ["p", good.payload],
                  ["p", bad]
                ]
              })
            )
          )
          assert.strictEqual(error.reason._tag, "MemoryUnavailable", error.message)
          const rewritten = readFileSync(good.file)
          assert.strictEqual(rewritten.readInt32LE(0), 1)
          rewritten.writeInt32LE(2, 0)
          writeFileSync(good.file, rewritten, { flag: "r+" })
        }
      })
    )
  )
})

/** A file of counts as PyTorch makes it: a header with the number of its users, then 64-bit counts. */
const writeCounts = (file: string, count: bigint): void => {
  const content = Buffer.alloc(128)
  content.writeInt32LE(1, 0)
  content.writeBigInt64LE(count, 64)
  content.writeBigInt64LE(7n, 72)
  writeFileSync(file, content, { flag: "r+" })
}

/** The first count; nothing else of the file may have changed. */
const countIn = (file: string): bigint => {
  const content = readFileSync(file)
  assert.deepStrictEqual([content.readInt32LE(0), content.readBigInt64LE(72)], [1, 7n])
  return content.readBigInt64LE(64)
}

describe("CUDA memory", () => {
  it.live("is served through an importer; its count goes back when the batch ends", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const memory = Context.get(yield* Layer.build(HostMemoryLayers.layer), HostMemory)
        const opened: Array<Tensor> = []
        let open = 0
        // Host memory stands for the device: what is proven is who opens and closes it, and when.
        const importer: TensorImporterShape = {
          open: (payload) =>
            Effect.gen(function* () {
              assert.strictEqual(payload.memory?.handle.length, 64)
              yield* Effect.acquireRelease(
                Effect.sync(() => ++open),
                () => Effect.sync(() => --open)
              )
              const tensor = yield* Effect.orDie(makeTensor(memory, payload.dtype, payload.shape))
              opened.push(tensor)
              return tensor
            })
        }
        const { a, b, register } = yield* makePair({ importer })
        const counters = [
          yield* withMemory("cuda f32 contiguous", 64, 0),
          yield* withMemory("cuda f32 contiguous", 64, 0)
        ]
        for (const { file } of counters) writeCounts(file, 1n)
        yield* all([
          a.client.send(register("b", counters[0]!.payload)),
          Effect.andThen(Effect.sleep("50 millis"), b.client.send(register("b", counters[1]!.payload)))
        ])
        assert.strictEqual(open, 2)
        const values = Array.from({ length: 24 }, (_, at) => at + 1)
        fill(opened[0]!, values)
        yield* all([a.client.transfer("b", "send"), b.client.transfer("b", "recv")])
        assert.isUndefined(faultOf(opened[1]!, values))
        assert.deepStrictEqual(
          counters.map(({ file }) => countIn(file)),
          [1n, 1n]
        )
        yield* all([a.client.cleanupBatch("b"), b.client.cleanupBatch("b")])
        assert.strictEqual(open, 0)
        assert.deepStrictEqual(
          counters.map(({ file }) => countIn(file)),
          [0n, 0n]
        )
      })
    )
  )

  it.live("needs something that moves it, and the same kind of device on both sides", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const memory = Context.get(yield* Layer.build(HostMemoryLayers.layer), HostMemory)
        // Memory of the host that says it is on a GPU: nothing is moved here.
        const importer: TensorImporterShape = {
          open: ({ dtype, shape }) =>
            Effect.map(Effect.orDie(makeTensor(memory, dtype, shape)), (tensor) => ({
              ...tensor,
              device: { family: "cuda", index: 0 }
            }))
        }
        const counter = yield* withMemory("cuda f32 contiguous", 64, 0)
        writeCounts(counter.file, 1n)
        const bare = yield* makePair({ importer })
        const unmoved = yield* Effect.flip(bare.a.client.send(bare.register("b", counter.payload)))
        assert.strictEqual(unmoved.reason._tag, "UnsupportedTensor")
        assert.match(unmoved.message, /nothing that moves memory of cuda/)
        assert.strictEqual(countIn(counter.file), 0n)

        const { a, b, register } = yield* makePair({ importer, deviceTransports: { cuda: transport } })
        const host = yield* withMemory("torch.float32 contiguous", 96, 2)
        writeCounts(counter.file, 1n)
        const mixed = new RegisterTensors({
          batchId: "b",
          tensors: [
            ["p", counter.payload],
            ["p", host.payload]
          ]
        })
        const both = yield* Effect.flip(a.client.send(mixed))
        assert.match(both.message, /tensors lie on cuda:0 and on cpu/)
        assert.strictEqual(countIn(counter.file), 0n)
        writeCounts(counter.file, 1n)
        const [one, other] = yield* all([
          Effect.flip(a.client.send(register("c", counter.payload))),
          Effect.flip(b.client.send(register("c", host.payload)))
        ])
        for (const error of [one!, other!]) {
          assert.strictEqual(error.reason._tag, "BatchMismatch", error.message)
          assert.match(error.message, /on cuda on agent 0 and on cpu on agent 1/)
        }
        assert.strictEqual(countIn(counter.file), 0n)
      })
    )
  )

  it.live("is refused without one, with a remedy, and its count goes back", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { a, register } = yield* onePair
        const counter = yield* withMemory("cuda f32 contiguous", 64, 0)
        writeCounts(counter.file, 1n)
        const error = yield* Effect.flip(a.client.send(register("b", counter.payload)))
        assert.strictEqual(error.reason._tag, "UnsupportedTensor")
        assert.strictEqual(countIn(counter.file), 0n)
        // Given back already: the place may be somebody else's by now, and never counts below zero.
        const again = yield* Effect.flip(a.client.send(register("b", counter.payload)))
        assert.strictEqual(again.reason._tag, "UnsupportedTensor")
        assert.strictEqual(countIn(counter.file), 0n)
      })
    )
  )
})
