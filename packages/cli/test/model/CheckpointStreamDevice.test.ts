// SPDX-License-Identifier: Apache-2.0
/**
 * Checkpoints come into memory of a device through pinned buffers, and leave it again; digests of the device prove both. The
 * device is the simulated one, whose copies run as late as their order allows and which reports what was not given back.
 */
import { createHash } from "node:crypto"
import { mkdtempSync, readFileSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { assert, it } from "@effect/vitest"
import { descriptor as hostBackend } from "@tensorferry/backend-torch-copy"
import { elementCount, fullRegion, type Region, regionShape } from "@tensorferry/core/base/Region"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { sumOfDigests } from "@tensorferry/core/tensor/ElementDigest"
import { sliceTensor, tensorBytes, tensorView } from "@tensorferry/core/tensor/Tensor"
import { openCheckpoint } from "@tensorferry/model/checkpoint/CheckpointIndex"
import { writeSafetensors } from "@tensorferry/model/checkpoint/SafetensorsWriter"
import { loadRegions, saveTensors } from "@tensorferry/model/stream/CheckpointStream"
import { compareRegions } from "@tensorferry/model/stream/compareRegions"
import { visitTensors } from "@tensorferry/model/stream/visitTensors"
import { assertClean, resetSimulator } from "@tensorferry/simulators/gpu"
import { makeEngine } from "@tensorferry/simulators/gpuEngine"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import { afterEach, beforeEach } from "vitest"

beforeEach(() => resetSimulator("seed=1"))
afterEach(() => assertClean())

const shapes = { "layers.0.wide": [96, 256], "layers.0.norm": [77], "layers.1.wide": [96, 256] } as const

const folder = Effect.acquireRelease(
  Effect.sync(() => mkdtempSync(join(tmpdir(), "tensorferry-device-"))),
  (made) => Effect.sync(() => rmSync(made, { recursive: true, force: true }))
)

const hostEngine = Effect.map(Layer.build(hostBackend.tensorEngine!({})), Context.get(TensorEngine))
const deviceEngine = Effect.map(makeEngine(), ({ engine }) => engine)

const halves: ReadonlyArray<Region> = [
  [
    [0, 96],
    [0, 128]
  ],
  [
    [0, 96],
    [128, 256]
  ]
]

it.live("a checkpoint comes into shards on a device, and its digests are those of the file", () =>
  Effect.gen(function* () {
    const path = join(yield* folder, "model.safetensors")
    // Without NaNs, which a cast makes quiet.
    const tensors = Object.entries(shapes).map(([name, shape], seed) => ({
      ...{ name, shape },
      dtype: "bfloat16" as const,
      data: Uint8Array.from(
        { length: 2 * elementCount(shape) },
        (_, at) => (at * 131 + seed * 29 + (at >> 8) * 7) & (at % 2 === 1 ? 0x3f : 0xff)
      )
    }))
    yield* writeSafetensors(path, tensors)
    const source = yield* openCheckpoint(path)
    const [host, device] = [yield* hostEngine, yield* deviceEngine]
    const shards = yield* Effect.forEach(halves, (region) => device.allocate("bfloat16", regionShape(region)))
    const [norm, cast] = [yield* device.allocate("bfloat16", [77]), yield* device.allocate("float32", [96, 256])]
    const onDevice = Effect.provideService(TensorEngine, device)
    const report = yield* loadRegions(
      source,
      [
        ...halves.map((region, at) => ({ name: "layers.0.wide", region, into: shards[at]! })),
        { name: "layers.0.norm", region: fullRegion([77]), into: norm },
        { name: "layers.1.wide", region: fullRegion([96, 256]), into: cast, storedAs: "bfloat16" }
      ],
      { portionBytes: 5000, inFlight: 3 }
    ).pipe(onDevice)
    assert.strictEqual(report.bytes, 2 * (2 * 96 * 256 + 77))
    assert.isAtMost(report.ringBytes, 3 * 5000)
    const digestOfFile = (at: number) =>
      Effect.gen(function* () {
        const tensor = yield* host.allocate("bfloat16", tensors[at]!.shape)
        tensorBytes(tensor)!.set(tensors[at]!.data)
        return (yield* host.digest([{ tensor }]))[0]!
      })
    const parts = yield* device.digest(
      halves.map((region, at) => ({ tensor: shards[at]!, whole: [96, 256], origin: region.map(([start]) => start) }))
    )
    assert.strictEqual(sumOfDigests(parts), yield* digestOfFile(0))
    assert.deepStrictEqual(yield* device.digest([{ tensor: norm }]), [yield* digestOfFile(1)])
    const back = yield* device.allocate("bfloat16", [96, 256])
    yield* device.copy([{ dst: back, src: cast }])
    assert.deepStrictEqual(yield* device.digest([{ tensor: back }]), [yield* digestOfFile(2)])
  }).pipe(Effect.scoped)
)

it.live("tensors of a device leave it for a file, whatever their strides", () =>
  Effect.gen(function* () {
    const path = join(yield* folder, "out.safetensors")
    const device = yield* deviceEngine
    const whole = yield* device.allocate("bfloat16", [96, 256])
    const bytes = Uint8Array.from({ length: 2 * 96 * 256 }, (_, at) => (at * 131 + (at >> 8) * 7 + 3) & 0xff)
    const src = Result.getOrThrow(tensorView(yield* device.wrapHost(bytes), "bfloat16", [96, 256]))
    yield* device.copy([{ dst: whole, src }])
    const right = Result.getOrThrow(sliceTensor(whole, halves[1]!))
    const onDevice = Effect.provideService(TensorEngine, device)
    // Of all bytes as they lie in the file, in their order there.
    const hash = createHash("sha256")
    const saved = yield* saveTensors(
      path,
      [
        { name: "a whole", tensor: whole },
        { name: "b right", tensor: right }
      ],
      undefined,
      { portionBytes: 5000, onBytes: (_, some) => void hash.update(some) }
    ).pipe(onDevice)
    assert.strictEqual(saved.stagedBytes, saved.bytes)
    const source = yield* openCheckpoint(path)
    const read = new Uint8Array(bytes.length)
    yield* source.readRegion("a whole", fullRegion([96, 256]), read)
    assert.deepStrictEqual(read, bytes)
    const part = new Uint8Array(bytes.length / 2)
    const expected = new Uint8Array(bytes.length / 2)
    yield* source.readRegion("b right", fullRegion([96, 128]), part)
    for (let row = 0; row < 96; row++) expected.set(bytes.subarray(row * 512 + 256, row * 512 + 512), row * 256)
    assert.deepStrictEqual(part, expected)
    assert.isAbove(readFileSync(path).length, saved.bytes)
    assert.strictEqual(hash.digest("hex"), createHash("sha256").update(bytes).update(expected).digest("hex"))
  }).pipe(Effect.scoped)
)

it.live("a device compares its memory with a file, and digests of what was read are those of what it holds", () =>
  Effect.gen(function* () {
    const path = join(yield* folder, "model.safetensors")
    const data = Uint8Array.from({ length: 2 * 96 * 256 }, (_, at) => (at * 131 + (at >> 8) * 7 + 3) & 0xff)
    yield* writeSafetensors(path, [{ name: "wide", dtype: "bfloat16", shape: [96, 256], data }])
    const source = yield* openCheckpoint(path)
    const device = yield* deviceEngine
    const onDevice = Effect.provideService(TensorEngine, device)
    const reads = yield* Effect.forEach(halves, (region) =>
      Effect.map(device.allocate("bfloat16", regionShape(region)), (into) => ({ name: "wide", region, into }))
    )
    const options = { portionBytes: 5000, inFlight: 3 }
    const { digests } = yield* loadRegions(source, reads, { ...options, digests: true }).pipe(onDevice)
    assert.deepStrictEqual(digests, yield* device.digest(reads.map(({ into }) => ({ tensor: into }))))
    assert.isUndefined(yield* compareRegions(source, reads, options).pipe(onDevice))
    // Element [40, 7] of the right half.
    const one = Result.getOrThrow(
      sliceTensor(reads[1]!.into, [
        [40, 41],
        [7, 8]
      ])
    )
    const other = Uint8Array.of(0x5a, 0xa5)
    const src = Result.getOrThrow(tensorView(yield* device.wrapHost(other), "bfloat16", [1, 1]))
    yield* device.copy([{ dst: one, src }])
    const difference = (yield* compareRegions(source, reads, options).pipe(onDevice))!
    const [[top], [left, right]] = difference.region as readonly [readonly [number, number], readonly [number, number]]
    assert.deepStrictEqual(
      { at: difference.at, found: difference.found, expected: difference.expected },
      {
        at: 2 * ((40 - top) * (right - left) + 128 + 7 - left),
        found: 0x5a,
        expected: data[2 * (40 * 256 + 128 + 7)]!
      }
    )
  }).pipe(Effect.scoped)
)

it.live("many small tensors take few pieces of work of the device, whatever they are read from", () =>
  Effect.gen(function* () {
    const device = yield* deviceEngine
    const work = { copy: 0, digest: 0 }
    const counted = (what: keyof typeof work) =>
      Effect.sync(() => {
        work[what] += 1
      })
    const counting: typeof device = {
      ...device,
      copy: (moves) => Effect.andThen(counted("copy"), device.copy(moves)),
      digest: (parts) => Effect.andThen(counted("digest"), device.digest(parts))
    }
    const onDevice = Effect.provideService(TensorEngine, counting)
    const names = Array.from({ length: 60 }, (_, at) => `tensor ${String(at).padStart(2, "0")}`)
    const bytesOf = (name: string) => new Uint8Array(2 * 3 * 7).fill(Number(name.slice(-2)) + 1)
    const source = {
      path: "made up",
      readRegion: (name: string, _: Region, into: Uint8Array) => Effect.sync(() => void into.set(bytesOf(name)))
    }
    const reads = yield* Effect.forEach(names, (name) =>
      Effect.map(device.allocate("bfloat16", [3, 7]), (into) => ({ name, region: fullRegion([3, 7]), into }))
    )
    const report = yield* loadRegions(source, reads, { digests: true }).pipe(onDevice)
    assert.deepStrictEqual(work, { copy: 1, digest: 1 })
    assert.strictEqual(report.fileBytes, 60 * 42)
    assert.deepStrictEqual(report.digests, yield* device.digest(reads.map(({ into }) => ({ tensor: into }))))
    assert.isUndefined(yield* compareRegions(source, reads).pipe(onDevice))
    const tensors = reads.map(({ into, name }) => ({ name, tensor: into }))
    const seen = new Map<number, Uint8Array>()
    yield* visitTensors(tensors, (number, bytes) => void seen.set(number, bytes.slice())).pipe(onDevice)
    const path = join(yield* folder, "out.safetensors")
    yield* saveTensors(path, tensors).pipe(onDevice)
    assert.deepStrictEqual(work, { copy: 3, digest: 2 })
    const written = yield* openCheckpoint(path)
    for (const [at, name] of names.entries()) {
      assert.deepStrictEqual(seen.get(at), bytesOf(name))
      const back = new Uint8Array(42)
      yield* written.readRegion(name, fullRegion([3, 7]), back)
      assert.deepStrictEqual(back, bytesOf(name))
    }
  }).pipe(Effect.scoped)
)
