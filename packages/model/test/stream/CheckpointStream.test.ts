// SPDX-License-Identifier: Apache-2.0
/** Regions of checkpoints arrive in memory of any form, and leave it for files; what goes wrong names the file and the tensor. */
import { readdir, readFile } from "node:fs/promises"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { bitsOf, type DType } from "@tensorferry/core/base/DType"
import { elementCount, fullRegion, type Region, regionShape, type Shape } from "@tensorferry/core/base/Region"
import { TensorEngine, type TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import { sliceTensor, type Tensor, tensorBytes, transposeTensor } from "@tensorferry/core/tensor/Tensor"
import * as ReferenceEngine from "@tensorferry/testing/ReferenceEngine"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Result from "effect/Result"
import { TestClock } from "effect/testing"
import { openCheckpoint } from "../../src/checkpoint/CheckpointIndex.ts"
import { writeSafetensors } from "../../src/checkpoint/SafetensorsWriter.ts"
import { loadRegions, saveTensors } from "../../src/stream/CheckpointStream.ts"
import { expectReason, scratchFolder } from "../checkpoint/checkpointSupport.ts"

const withEngine = Effect.provide(ReferenceEngine.layer())

const patternOf = (dtype: DType, shape: Shape): Uint8Array => {
  const bytes = new Uint8Array((elementCount(shape) * bitsOf(dtype)) / 8)
  for (let at = 0; at < bytes.length; at++) bytes[at] = (at * 131 + (at >> 8) * 7 + 17) & 0xff
  return bytes
}

const shapes = { wide: [64, 96], deep: [5, 12, 30], bias: [77], none: [0, 4], one: [] } as const

const writeModel = Effect.gen(function* () {
  const path = join(yield* scratchFolder, "model.safetensors")
  const tensors = Object.entries(shapes).map(([name, shape]) => ({
    ...{ name, shape },
    dtype: "bfloat16" as const,
    data: patternOf("bfloat16", shape)
  }))
  yield* writeSafetensors(path, [
    ...tensors,
    { name: "packed", dtype: "float4_e2m1fn", shape: [6, 32], data: patternOf("float4_e2m1fn", [6, 32]) }
  ])
  return yield* openCheckpoint(path)
})

/** Dense bytes of a region, by the reader that reads one region at a time. */
const expectedBytes = Effect.fnUntraced(function* (
  source: Effect.Success<typeof writeModel>,
  name: string,
  region: Region,
  bits = 16
) {
  const bytes = new Uint8Array((elementCount(regionShape(region)) * bits) / 8)
  yield* source.readRegion(name, region, bytes)
  return bytes
})

/** The elements in row-major order. */
const denseOf = Effect.fnUntraced(function* (tensor: Tensor) {
  const engine = yield* TensorEngine
  const dense = yield* engine.allocate(tensor.dtype, tensor.shape)
  yield* engine.copy([{ dst: dense, src: tensor }])
  return tensorBytes(dense)!
})

/** The engine as it is for memory that the host does not see. */
const hidden = (tensor: Tensor): Tensor => {
  const { bytes: _, ...storage } = tensor.storage
  return { ...tensor, storage }
}

/** Copies to and from tensors that hide their bytes. */
const deviceLike = (engine: TensorEngineShape, seen: ReadonlyMap<number, Tensor>): TensorEngineShape => ({
  ...engine,
  copy: (moves) => {
    const open = (tensor: Tensor): Tensor => ({
      ...tensor,
      storage: seen.get(tensor.storage.generation)?.storage ?? tensor.storage
    })
    return engine.copy(moves.map(({ dst, src }) => ({ dst: open(dst), src: open(src) })))
  }
})

const regions: ReadonlyArray<readonly [keyof typeof shapes, Region]> = [
  [
    "wide",
    [
      [0, 64],
      [0, 96]
    ]
  ],
  [
    "wide",
    [
      [16, 48],
      [0, 96]
    ]
  ],
  [
    "wide",
    [
      [0, 64],
      [33, 66]
    ]
  ],
  [
    "deep",
    [
      [1, 4],
      [3, 9],
      [0, 30]
    ]
  ],
  [
    "deep",
    [
      [0, 5],
      [0, 12],
      [7, 8]
    ]
  ],
  ["bias", [[5, 77]]],
  [
    "none",
    [
      [0, 0],
      [0, 4]
    ]
  ],
  ["one", []]
]

describe("loading", () => {
  it.effect("fills memory of every form with the regions asked for, whatever the size of portions", () =>
    Effect.gen(function* () {
      const source = yield* writeModel
      const engine = yield* TensorEngine
      for (const portionBytes of [50, 1000, 1 << 20]) {
        const dense = yield* Effect.forEach(regions, ([, region]) => engine.allocate("bfloat16", regionShape(region)))
        const turned = yield* engine.allocate("bfloat16", [96, 64])
        const strided = yield* engine.allocate("bfloat16", [64, 100])
        const view = Result.getOrThrow(
          sliceTensor(strided, [
            [0, 64],
            [2, 98]
          ])
        )
        const report = yield* loadRegions(
          source,
          [
            ...regions.map(([name, region], at) => ({ name, region, into: dense[at]! })),
            { name: "wide", region: fullRegion([64, 96]), into: transposeTensor(turned, 0, 1) },
            { name: "wide", region: fullRegion([64, 96]), into: view }
          ],
          { portionBytes, inFlight: 3 }
        )
        for (const [at, [name, region]] of regions.entries()) {
          assert.deepStrictEqual(
            tensorBytes(dense[at]!),
            yield* expectedBytes(source, name, region),
            `${name} ${portionBytes}`
          )
        }
        const whole = yield* expectedBytes(source, "wide", fullRegion([64, 96]))
        assert.deepStrictEqual(yield* denseOf(transposeTensor(turned, 0, 1)), whole)
        assert.deepStrictEqual(yield* denseOf(view), whole)
        assert.isAtMost(report.ringBytes, 3 * Math.max(192, portionBytes))
      }
    }).pipe(Effect.scoped, withEngine)
  )

  it.effect("reads what lies between short runs with them where a row fits a portion, and nothing else", () =>
    Effect.gen(function* () {
      const source = yield* writeModel
      const engine = yield* TensorEngine
      const into = yield* engine.allocate("bfloat16", [64, 33])
      const region: Region = [
        [0, 64],
        [33, 66]
      ]
      const { stored: _, ...alone } = source
      for (const [from, portionBytes, fileBytes] of [
        [source, 1 << 20, 64 * 96 * 2],
        [source, 100, 64 * 33 * 2],
        [alone, 1 << 20, 64 * 33 * 2]
      ] as const) {
        yield* engine.fill(into, 0)
        const report = yield* loadRegions(from, [{ name: "wide", region, into }], { portionBytes })
        assert.deepStrictEqual([report.bytes, report.fileBytes], [64 * 33 * 2, fileBytes])
        assert.deepStrictEqual(tensorBytes(into), yield* expectedBytes(source, "wide", region))
      }
    }).pipe(Effect.scoped, withEngine)
  )

  it.effect("casts on the way, and takes elements that share bytes as they are", () =>
    Effect.gen(function* () {
      const source = yield* writeModel
      const engine = yield* TensorEngine
      const [cast, stored] = [yield* engine.allocate("float32", [64, 33]), yield* engine.allocate("bfloat16", [64, 33])]
      const packed = yield* engine.allocate("float4_e2m1fn", [4, 32])
      const expected = yield* engine.allocate("float32", [64, 33])
      const region: Region = [
        [0, 64],
        [33, 66]
      ]
      yield* loadRegions(source, [
        { name: "wide", region, into: cast, storedAs: "bfloat16" },
        { name: "wide", region, into: stored },
        {
          name: "packed",
          region: [
            [1, 5],
            [0, 32]
          ],
          into: packed
        }
      ])
      yield* engine.copy([{ dst: expected, src: stored }])
      assert.deepStrictEqual(tensorBytes(cast), tensorBytes(expected))
      assert.deepStrictEqual(
        tensorBytes(packed),
        yield* expectedBytes(
          source,
          "packed",
          [
            [1, 5],
            [0, 32]
          ],
          4
        )
      )
    }).pipe(Effect.scoped, withEngine)
  )

  it.effect("reads through buffers of the ring where the host does not see the memory, and no more of them", () =>
    Effect.gen(function* () {
      const source = yield* writeModel
      const engine = yield* TensorEngine
      const tensor = yield* engine.allocate("bfloat16", [64, 96])
      const like = deviceLike(engine, new Map([[tensor.storage.generation, tensor]]))
      const read = { name: "wide", region: fullRegion([64, 96]), into: hidden(tensor) }
      const report = yield* Effect.provideService(
        loadRegions(source, [read], { portionBytes: 1920, inFlight: 2 }),
        TensorEngine,
        like
      )
      assert.deepStrictEqual(tensorBytes(tensor), yield* expectedBytes(source, "wide", read.region))
      assert.deepStrictEqual(report, { bytes: 12_288, fileBytes: 12_288, stagedBytes: 12_288, ringBytes: 2 * 1920 })
    }).pipe(Effect.scoped, withEngine)
  )

  it.effect("takes what a source reads that was made of another one, and not what lies in its files", () =>
    Effect.gen(function* () {
      const source = yield* writeModel
      const engine = yield* TensorEngine
      const other = {
        ...source,
        readRegion: (_: string, __: Region, into: Uint8Array) => Effect.sync(() => void into.fill(7))
      }
      const names = ["bias", "wide"] as const
      const tensors = yield* Effect.forEach(names, (name) => engine.allocate("bfloat16", shapes[name]))
      const reads = names.map((name, at) => ({ name, region: fullRegion(shapes[name]), into: tensors[at]! }))
      yield* loadRegions(other, reads)
      for (const tensor of tensors) assert.isTrue(tensorBytes(tensor)!.every((byte) => byte === 7))
      // A quarter of the columns: runs that are read together where they lie in a file.
      const columns: Region = [
        [0, 64],
        [0, 24]
      ]
      const part = yield* engine.allocate("bfloat16", [64, 24])
      yield* loadRegions(other, [{ name: "wide", region: columns, into: part }])
      assert.isTrue(tensorBytes(part)!.every((byte) => byte === 7))
    }).pipe(Effect.scoped, withEngine)
  )

  it.effect("has at most as many portions under way as it was told", () =>
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      const tensor = yield* engine.allocate("uint8", [100, 10])
      const gate = yield* Deferred.make<void>()
      const third = yield* Deferred.make<void>()
      let [now, most, calls] = [0, 0, 0]
      const path = "/nowhere/model.safetensors"
      const readRegion = () =>
        Effect.gen(function* () {
          now += 1
          calls += 1
          most = Math.max(most, now)
          if (calls === 3) yield* Deferred.succeed(third, undefined)
          yield* Deferred.await(gate)
          now -= 1
        })
      const reads = [{ name: "w", region: fullRegion([100, 10]), into: tensor }]
      const fiber = yield* Effect.forkChild(loadRegions({ path, readRegion }, reads, { portionBytes: 50, inFlight: 3 }))
      yield* Effect.raceFirst(Deferred.await(third), Fiber.join(fiber))
      yield* Deferred.succeed(gate, undefined)
      yield* Fiber.join(fiber)
      assert.deepStrictEqual([most, calls], [3, 20])
    }).pipe(Effect.scoped, withEngine)
  )

  it.effect("ends at its deadline with the file and the tensor that did not come", () =>
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      const tensor = yield* engine.allocate("uint8", [100])
      const path = "/nowhere/model.safetensors"
      for (const into of [tensor, hidden(tensor)]) {
        const read = { name: "layers.0.w", region: fullRegion([100]), into }
        const loading = loadRegions({ path, readRegion: () => Effect.never }, [read], { deadline: "5 seconds" })
        const fiber = yield* Effect.forkChild(Effect.flip(loading))
        yield* TestClock.adjust("6 seconds")
        const error = yield* Fiber.join(fiber)
        assert.strictEqual(error._tag, "CheckpointError")
        if (error._tag !== "CheckpointError") return
        expectReason(error, "Unreadable", "layers.0.w")
        assert.strictEqual(error.reason.file, path)
        assert.match(error.reason.detail, /5s/)
      }
    }).pipe(Effect.scoped, withEngine)
  )

  it.effect("refuses shapes, names and options that do not fit, with the tensor's name", () =>
    Effect.gen(function* () {
      const source = yield* writeModel
      const engine = yield* TensorEngine
      const into = yield* engine.allocate("bfloat16", [64, 95])
      const region = fullRegion([64, 96])
      for (const [read, tag, name] of [
        [{ name: "wide", region, into }, "InvalidRequest", "wide"],
        [{ name: "absent", region: fullRegion([64, 95]), into }, "TensorMissing", "absent"],
        [
          { name: "wide", region: fullRegion([64, 95]).map(([a, b]) => [a + 9, b + 9] as const), into },
          "InvalidRequest",
          "wide"
        ]
      ] as const) {
        const error = yield* Effect.flip(loadRegions(source, [read]))
        assert.strictEqual(error._tag, "CheckpointError")
        if (error._tag === "CheckpointError") expectReason(error, tag, name)
      }
      for (const options of [{ inFlight: 0 }, { portionBytes: 1.5 }]) {
        const error = yield* Effect.flip(loadRegions(source, [], options))
        assert.strictEqual(error._tag === "CheckpointError" ? error.reason._tag : error._tag, "InvalidRequest")
      }
    }).pipe(Effect.scoped, withEngine)
  )
})

describe("small tensors", () => {
  it.effect("are read together with their neighbours in the file, in calls of no more than a portion", () =>
    Effect.gen(function* () {
      const path = join(yield* scratchFolder, "model.safetensors")
      const count = 300
      const names = Array.from({ length: count }, (_, at) => `w.${String((at * 7) % count).padStart(3, "0")}`)
      yield* writeSafetensors(
        path,
        names.map((name, at) => ({
          ...{ name, dtype: at % 3 === 0 ? ("uint8" as const) : ("bfloat16" as const), shape: [10 + (at % 5)] },
          data: patternOf(at % 3 === 0 ? "uint8" : "bfloat16", [10 + (at % 5)]).map((byte) => (byte + at) & 0xff)
        }))
      )
      const source = yield* openCheckpoint(path)
      let calls = 0
      const stored = {
        ...source.stored!,
        readBytes: (file: string, start: number, into: Uint8Array) => {
          calls += 1
          assert.isAtMost(into.length, 1000)
          return source.stored!.readBytes(file, start, into)
        }
      }
      const engine = yield* TensorEngine
      const reads = yield* Effect.forEach(source.tensors.values(), ({ dtype, name, shape }) =>
        Effect.map(engine.allocate(dtype, shape), (into) => ({ name, region: fullRegion(shape), into }))
      )
      const report = yield* loadRegions({ ...source, stored }, reads.reverse(), { portionBytes: 1000 })
      const expected = yield* Effect.forEach(reads, ({ name, region, into }) =>
        expectedBytes(source, name, region, bitsOf(into.dtype))
      )
      assert.deepStrictEqual(
        reads.map(({ into }) => tensorBytes(into)),
        expected
      )
      assert.strictEqual(report.bytes, report.fileBytes)
      assert.isAtMost(calls, Math.ceil(report.bytes / 900))
    }).pipe(Effect.scoped, withEngine)
  )
})

describe("saving", () => {
  it.effect("writes tensors of every form, which are read back as they were", () =>
    Effect.gen(function* () {
      const folder = yield* scratchFolder
      const path = join(folder, "out.safetensors")
      const engine = yield* TensorEngine
      const make = Effect.fnUntraced(function* (dtype: DType, shape: Shape) {
        const tensor = yield* engine.allocate(dtype, shape)
        tensorBytes(tensor)!.set(patternOf(dtype, shape))
        return tensor
      })
      const [plain, turned, packed] = [
        yield* make("bfloat16", [40, 30]),
        transposeTensor(yield* make("float32", [30, 20]), 0, 1),
        yield* make("float4_e2m1fn", [6, 32])
      ]
      const secret = yield* make("bfloat16", [64, 9])
      const like = deviceLike(engine, new Map([[secret.storage.generation, secret]]))
      const report = yield* Effect.provideService(
        saveTensors(
          path,
          [
            { name: "plain", tensor: plain },
            { name: "turned", tensor: turned },
            { name: "packed", tensor: packed },
            { name: "secret", tensor: hidden(secret) },
            { name: "wider", tensor: plain, storedAs: "float32" },
            { name: "none", tensor: yield* engine.allocate("float32", [0, 3]) }
          ],
          new Map([["format", "pt"]]),
          { portionBytes: 200, inFlight: 3 }
        ),
        TensorEngine,
        like
      )
      const source = yield* openCheckpoint(path)
      assert.strictEqual(source.metadata.get("format"), "pt")
      assert.strictEqual(source.tensors.size, 6)
      const read = (name: string, shape: Shape, bits: number) => expectedBytes(source, name, fullRegion(shape), bits)
      assert.deepStrictEqual(yield* read("plain", [40, 30], 16), tensorBytes(plain))
      assert.deepStrictEqual(yield* read("turned", [20, 30], 32), yield* denseOf(turned))
      assert.deepStrictEqual(yield* read("packed", [6, 32], 4), tensorBytes(packed))
      assert.deepStrictEqual(yield* read("secret", [64, 9], 16), tensorBytes(secret))
      const wider = yield* engine.allocate("float32", [40, 30])
      yield* engine.copy([{ dst: wider, src: plain }])
      assert.deepStrictEqual(yield* read("wider", [40, 30], 32), tensorBytes(wider))
      assert.strictEqual(report.bytes, 2400 + 2400 + 96 + 1152 + 4800)
      assert.strictEqual(report.stagedBytes, 2400 + 1152 + 4800)
      assert.deepStrictEqual(yield* Effect.promise(() => readdir(folder)), ["out.safetensors"])
    }).pipe(Effect.scoped, withEngine)
  )

  it.effect("leaves the file as it was where a tensor cannot be read", () =>
    Effect.gen(function* () {
      const folder = yield* scratchFolder
      const path = join(folder, "out.safetensors")
      const engine = yield* TensorEngine
      const tensor = yield* engine.allocate("uint8", [4])
      yield* saveTensors(path, [{ name: "w", tensor }])
      const before = yield* Effect.promise(() => readFile(path))
      const freed = yield* Effect.scoped(engine.allocate("uint8", [9]))
      yield* Effect.flip(
        saveTensors(path, [
          { name: "w", tensor },
          { name: "freed", tensor: freed }
        ])
      )
      assert.deepStrictEqual(yield* Effect.promise(() => readFile(path)), before)
      assert.deepStrictEqual(yield* Effect.promise(() => readdir(folder)), ["out.safetensors"])
    }).pipe(Effect.scoped, withEngine)
  )
})
