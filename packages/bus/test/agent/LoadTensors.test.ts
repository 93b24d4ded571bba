// SPDX-License-Identifier: Apache-2.0
/**
 * Tensors of a client that one agent fills from a checkpoint: every rank gets what recordings of its system say, what does
 * not fit is refused by name before a byte is written, and a client that ends takes its load with it.
 */
import { spawn } from "node:child_process"
import { closeSync, fstatSync, mkdirSync, openSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import type { DType } from "@tensorferry/core/base/DType"
import { processStart } from "@tensorferry/core/group/processStart"
import { type Placement, partial, replicate, shard, stridedShard } from "@tensorferry/core/layout/Placement"
import type { HostMemoryShape } from "@tensorferry/core/service/HostMemory"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import { recordedSide, writeModel } from "@tensorferry/golden/recordedSides"
import { writeSafetensors } from "@tensorferry/model/checkpoint/SafetensorsWriter"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import { LoadTensors } from "../../src/command/Command.ts"
import { decodeCommand, encodeCommand } from "../../src/command/CommandCodec.ts"
import { encodeMeshShape } from "../../src/payload/LayoutPayload.ts"
import { encodeOwnPayload } from "../../src/payload/OwnPayload.ts"
import { encodeSharedTensor } from "../../src/payload/TensorCodec.ts"
import type { Value } from "../../src/wire/Value.ts"
import { makeCluster, transport } from "../cluster.ts"
import { scratch } from "../support.ts"
import { encode, faultOf, makeTensor, type SideLayout, sourceValues } from "../tensors.ts"

type Fields = Partial<ConstructorParameters<typeof LoadTensors>[0]>

interface Held {
  readonly tensor: Tensor
  readonly placements?: ReadonlyArray<Placement>
}

const payloadOf = Effect.fnUntraced(function* (memory: HostMemoryShape, name: string, { tensor, placements }: Held) {
  const { dtype, shape, strides, byteOffset } = tensor
  const plain = encodeSharedTensor({ dtype, shape, strides, byteOffset, memory: yield* memory.share(tensor.storage) })
  const stated = placements === undefined ? {} : { placements: placements.map((one) => ({ ...one }) as Value) }
  return encodeOwnPayload({ _tag: "NamedTensor", name, payload: plain, ...stated })
})

/** An agent with a client, and a way to have tensors filled. */
const oneAgent = Effect.fnUntraced(function* (options: Parameters<typeof makeCluster>[0] = {}) {
  const { memory, start } = yield* makeCluster(options)
  const { client } = yield* start(0)
  const load = Effect.fnUntraced(function* (path: string, tensors: ReadonlyMap<string, Held>, fields: Fields = {}) {
    const payloads = yield* Effect.forEach(tensors, ([name, held]) =>
      Effect.map(payloadOf(memory, name, held), (payload) => [name, payload] as const)
    )
    yield* client.send(new LoadTensors({ path, tensors: payloads, ...fields }))
  })
  const tensor = (dtype: DType, shape: ReadonlyArray<number>) => makeTensor(memory, dtype, shape)
  return { client, load, tensor, folder: yield* scratch }
})

const live = <E>(title: string, test: () => Effect.Effect<unknown, E, Scope.Scope>) =>
  it.live(title, () => Effect.scoped(test()))

const isPoisoned = ({ storage }: Tensor): boolean => storage.bytes!.every((byte) => byte === 0xa5)

/** The recorded checkpoint with the numbers of its elements as values. */
const writeNumbered = (folder: string, { sources, config }: ReturnType<typeof recordedSide>): string => {
  const path = writeModel(folder, sources, config)
  const file = join(path, "model.safetensors")
  const bytes = readFileSync(file)
  const start = 8 + Number(bytes.readBigUInt64LE(0))
  for (let at = start, number = 1; at < bytes.length; at += 4, number++) bytes.writeFloatLE(number, at)
  writeFileSync(file, bytes)
  return path
}

describe("ranks of recorded systems", () => {
  for (const [system, family, cases] of [
    ["vllm", "llama", "tp4"],
    ["vllm", "qwen3_moe", "tp2"],
    ["sglang", "qwen3", "tp2"],
    ["megatron", "llama", "tp2"],
    ["megatron", "qwen3_moe", "tp2ep1etp2"]
  ] as const)
    live(`hold of ${family} what ${system} has at ${cases}`, () =>
      Effect.gen(function* () {
        const side = recordedSide(system, family, cases)
        const { folder, load, tensor } = yield* oneAgent()
        const path = writeNumbered(folder, side)
        for (const [rank, own] of side.ranks.entries()) {
          const held = new Map<string, Held>()
          for (const { name, shape } of own) held.set(name, { tensor: yield* tensor("float32", shape) })
          yield* load(path, held, {
            names: side.names,
            placement: JSON.stringify(side.placement),
            sideRank: rank,
            meshShapePayload: encodeMeshShape([side.ranks.length])
          })
          for (const { name, numbers } of own) {
            const bytes = held.get(name)!.tensor.storage.bytes!
            const wanted = encode(
              "float32",
              [...numbers].map((number) => Math.max(0, number))
            )
            for (const [at, number] of numbers.entries())
              if (number >= 0)
                assert.isTrue(
                  Buffer.from(wanted.subarray(4 * at, 4 * at + 4)).equals(bytes.subarray(4 * at, 4 * at + 4)),
                  `${name}, element ${at} of rank ${rank} is not ${number}`
                )
          }
        }
      })
    )
})

/** A file with these tensors. */
const write = (
  folder: string,
  tensors: Readonly<
    Record<string, readonly [dtype: DType, shape: ReadonlyArray<number>, values: ReadonlyArray<number>]>
  >
) =>
  Effect.gen(function* () {
    const file = join(folder, "model.safetensors")
    rmSync(file, { force: true })
    yield* writeSafetensors(
      file,
      Object.entries(tensors).map(([name, [dtype, shape, values]]) => ({
        name,
        dtype,
        shape,
        data: encode(dtype, values)
      }))
    )
    return file
  })

describe("tensors of a mesh", () => {
  for (const [title, placements, shape] of [
    ["rows and columns", [shard(0), shard(1)], [7, 5]],
    ["rows of rows", [shard(0), shard(0)], [9, 4]],
    ["strided rows", [stridedShard(0, 2), shard(0)], [10, 3]],
    ["fewer rows than ranks", [shard(0), replicate], [1, 4]],
    ["a dimension counted from the last", [replicate, shard(-1)], [3, 6]]
  ] as const)
    live(`get their part: ${title}`, () =>
      Effect.gen(function* () {
        const { folder, load, tensor } = yield* oneAgent()
        const side: SideLayout = { mesh: [2, 2], placements }
        const whole: SideLayout = { mesh: [1], placements: [replicate] }
        const path = yield* write(folder, { w: ["float32", shape, sourceValues(whole, shape, 0, 3).values] })
        for (let rank = 0; rank < 4; rank++) {
          const { local, values } = sourceValues(side, shape, rank, 3)
          const own = yield* tensor("float32", local)
          const fields = { sideRank: rank, meshShapePayload: encodeMeshShape([2, 2]) }
          yield* load(path, new Map([["w", { tensor: own, placements }]]), fields)
          assert.isUndefined(faultOf(own, values), `rank ${rank}`)
        }
      })
    )
})

const four = [1, 2, 3, 4]

/** A load that is refused; nothing was written. */
const refused = (
  stored: Parameters<typeof write>[1],
  tensors: Readonly<
    Record<string, readonly [dtype: DType, shape: ReadonlyArray<number>, placements?: ReadonlyArray<Placement>]>
  >,
  fields: Fields,
  tag: string,
  ...words: ReadonlyArray<string>
) =>
  Effect.gen(function* () {
    const { folder, load, tensor } = yield* oneAgent()
    const path = yield* write(folder, stored)
    const held = new Map<string, Held>()
    for (const [name, [dtype, shape, placements]] of Object.entries(tensors))
      held.set(name, { tensor: yield* tensor(dtype, shape), ...(placements === undefined ? {} : { placements }) })
    const { reason, message } = yield* Effect.flip(load(path, held, fields))
    assert.strictEqual(reason._tag, tag, message)
    for (const word of words) assert.include(message, word)
    for (const { tensor: own } of held.values()) assert.isTrue(isPoisoned(own))
  })

const f32 = (...shape: ReadonlyArray<number>) => ["float32", shape] as const

describe("what does not fit", () => {
  const stored = { a: ["float32", [2, 2], four], b: ["float32", [4], four] } as const
  live("a tensor that the checkpoint lacks, with one that it has too many", () =>
    refused(stored, { a: f32(2, 2), c: f32(4) }, {}, "CheckpointMismatch", "c is not in the checkpoint", "b is in the")
  )
  live("a tensor of another shape, whole and as a part", () =>
    Effect.andThen(
      refused(
        stored,
        { a: f32(2, 2), b: f32(3) },
        {},
        "CheckpointMismatch",
        "b is [4] in the checkpoint, and [3] here"
      ),
      refused(
        stored,
        { a: f32(2, 2), b: ["float32", [3], [shard(0)]] },
        { meshShapePayload: encodeMeshShape([2]), sideRank: 1 },
        "CheckpointMismatch",
        "of which rank 1 has [2], and [3] here"
      )
    )
  )
  live("a tensor of another type, unless casts are allowed", () =>
    refused(stored, { a: f32(2, 2), b: ["bfloat16", [4]] }, {}, "CheckpointMismatch", "b is float32", "bfloat16 here")
  )
  live("contributions to a sum", () =>
    refused(stored, { a: f32(2, 2), b: ["float32", [4], [partial("sum")]] }, {}, "CheckpointMismatch", "to a sum")
  )
  live("tied tensors that differ in the checkpoint", () =>
    refused(
      { a: ["float32", [4], four], b: ["float32", [4], [1, 2, 3, 5]] },
      { a: f32(4) },
      { aliases: '{"b":"a"}' },
      "CheckpointMismatch",
      "a and b are one tensor here"
    )
  )
  live("ranks that the mesh lacks, no tensors, aliases and sides that are none", () =>
    Effect.forEach(
      [
        [{ sideRank: 2, meshShapePayload: encodeMeshShape([2]) }, "Rank 2 is not one of 2"],
        [{ aliases: "[1]" }, "its aliases are none"],
        [{ aliases: '{"b":"a"}' }, "A tensor has the name of another"],
        [{ names: "vlm:tp=1" }, "names no side"],
        [{ names: "vllm:tp=2" }, "the degrees of 2 ranks"],
        [{ names: "vllm:" }, "nothing says the family"],
        [{ timeout: -1 }, "cannot wait"]
      ] as ReadonlyArray<readonly [Fields, string]>,
      ([fields, words]) => refused(stored, { a: f32(2, 2), b: f32(4) }, fields, "InvalidCommand", words)
    )
  )
  live("is passed by, converted or left alone where that is allowed", () =>
    Effect.gen(function* () {
      const { folder, load, tensor } = yield* oneAgent()
      const path = yield* write(folder, { a: ["float32", [4], four], b: ["float32", [1], [7]] })
      const [a, c] = [yield* tensor("bfloat16", [4]), yield* tensor("float32", [4])]
      const fields = { allowsCast: true, allowsMissing: true, allowsUnexpected: true }
      const held = new Map<string, Held>(Object.entries({ a: { tensor: a }, c: { tensor: c } }))
      yield* load(path, held, fields)
      assert.isUndefined(faultOf(a, four))
      assert.isTrue(isPoisoned(c))
    })
  )
  live("a tied tensor is filled under whichever name the checkpoint has", () =>
    Effect.gen(function* () {
      const { folder, load, tensor } = yield* oneAgent()
      const path = yield* write(folder, { head: ["float32", [4], four] })
      const embed = yield* tensor("float32", [4])
      yield* load(path, new Map([["embed", { tensor: embed }]]), { aliases: '{"head":"embed"}' })
      assert.isUndefined(faultOf(embed, four))
    })
  )
})

describe("checkpoints that cannot be read", () => {
  const stored = { a: ["float32", [2, 2], four] } as const
  const attempt = (spoil: (file: string) => void, tag: string) =>
    Effect.gen(function* () {
      const { folder, load, tensor } = yield* oneAgent()
      const path = yield* write(folder, stored)
      spoil(path)
      const own = yield* tensor("float32", [2, 2])
      const { reason, message } = yield* Effect.flip(load(path, new Map([["a", { tensor: own }]])))
      assert.strictEqual(reason._tag, tag, message)
      assert.strictEqual(reason.file, path)
      assert.isTrue(isPoisoned(own))
    })
  live("one that is cut short", () => attempt((file) => truncateSync(file, 80), "CheckpointDamaged"))
  live("one that is none", () => attempt((file) => writeFileSync(file, "x".repeat(900)), "CheckpointDamaged"))
  live("one that is gone", () => attempt((file) => rmSync(file), "CheckpointUnreadable"))
  live("a folder without one", () =>
    attempt((file) => {
      rmSync(file)
      mkdirSync(file)
    }, "CheckpointUnreadable")
  )
})

describe("the command", () => {
  it("is read back as it is written, and without what was left out", () => {
    const whole = new LoadTensors({
      path: "/checkpoint",
      tensors: [["w", Uint8Array.of(1, 2)]],
      aliases: '{"head":"w"}',
      sideRank: 3,
      meshShapePayload: Uint8Array.of(3),
      names: "vllm:tp=4",
      storedNames: "megatron:",
      model: "/model",
      rules: "{}",
      placement: "{}",
      preset: "llama",
      allowsCast: true,
      allowsMissing: false,
      allowsUnexpected: true,
      timeout: 1.5
    })
    const least = new LoadTensors({ path: "/checkpoint", tensors: [] })
    for (const command of [whole, least])
      assert.deepStrictEqual({ ...Result.getOrThrow(decodeCommand(encodeCommand(command))) }, { ...command })
    assert.notInclude(new TextDecoder("latin1").decode(encodeCommand(least)), "allows_cast")
  })
})

/** Copies of this engine never end; `begun` is done with the first. */
const stuck = (begun: Deferred.Deferred<void>) =>
  Layer.merge(
    transport,
    Layer.provide(
      Layer.effect(
        TensorEngine,
        Effect.map(TensorEngine, (engine) => ({
          ...engine,
          copy: () => Effect.andThen(Deferred.succeed(begun, undefined), Effect.never)
        }))
      ),
      transport
    )
  )

/** A process that only sleeps, and a tensor in memory that it has open. */
const sleeper = Effect.acquireRelease(
  Effect.sync(() => {
    const file = `/dev/shm/tensorferry-test-${process.pid}`
    writeFileSync(file, Buffer.alloc(8), { mode: 0o600 })
    const descriptor = openSync(file, "r+")
    const child = spawn("sleep", ["600"], { stdio: ["ignore", "ignore", "ignore", descriptor] })
    const { ino } = fstatSync(descriptor)
    rmSync(file)
    closeSync(descriptor)
    const payload = encodeOwnPayload({
      _tag: "PeerTensor",
      dtype: "bfloat16",
      shape: [4],
      strides: [1],
      byteOffset: 0,
      pid: child.pid!,
      processStart: processStart(child.pid!)!,
      descriptor: 3,
      inode: String(ino),
      byteLength: 8
    })
    return { child, payload }
  }),
  ({ child }) => Effect.sync(() => child.kill("SIGKILL"))
)

describe("a load that takes too long", () => {
  live("ends at its deadline, and says what it was about", () =>
    Effect.gen(function* () {
      const { folder, load, tensor } = yield* oneAgent({ transport: stuck(Deferred.makeUnsafe<void>()) })
      const path = yield* write(folder, { a: ["float32", [4], four] })
      const held = new Map([["a", { tensor: yield* tensor("bfloat16", [4]) }]])
      const { reason, message } = yield* Effect.flip(load(path, held, { allowsCast: true, timeout: 0.3 }))
      assert.strictEqual(reason._tag, "DeadlineExceeded", message)
      assert.include(message, path)
    })
  )
  live("ends with the process whose memory it fills", () =>
    Effect.gen(function* () {
      const begun = Deferred.makeUnsafe<void>()
      const { client, folder } = yield* oneAgent({ transport: stuck(begun) })
      const path = yield* write(folder, { a: ["float32", [4], four] })
      const { child, payload } = yield* sleeper
      const command = new LoadTensors({ path, tensors: [["a", payload]], allowsCast: true })
      const loading = yield* Effect.forkChild(Effect.flip(client.send(command)), { startImmediately: true })
      yield* Deferred.await(begun)
      child.kill("SIGKILL")
      const { reason, message } = yield* Effect.timeout(Fiber.join(loading), "5 seconds")
      assert.strictEqual(reason._tag, "MemoryUnavailable", message)
    })
  )
})
