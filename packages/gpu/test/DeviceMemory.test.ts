// SPDX-License-Identifier: Apache-2.0
/**
 * Memory of a device: blocks and their slices, what goes back to the driver and what may not, memory of others.
 */

import { spawn } from "node:child_process"
import { createInterface } from "node:readline"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import { makeInProcessGroups } from "@tensorferry/core/group/ProcessGroupInProcess"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { mxfp8Recipe } from "@tensorferry/core/tensor/QuantizedTensor"
import type { Storage } from "@tensorferry/core/tensor/Storage"
import { tensorView } from "@tensorferry/core/tensor/Tensor"
import { assertClean, resetSimulator, simulator } from "@tensorferry/simulators/gpu"
import { makeEngine, engineOptions as testOptions } from "@tensorferry/simulators/gpuEngine"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import { alignment } from "../src/DeviceMemory.ts"
import type { DeviceRegion } from "../src/DeviceRegion.ts"
import * as CudaEngine from "../src/TensorEngine.ts"

const arena = testOptions.arenaBytes!

/** Runs over a fresh driver, and looks afterwards. */
const clean = <A, E>(settings: string, body: Effect.Effect<A, E, Scope.Scope>) =>
  Effect.gen(function* () {
    resetSimulator(settings)
    yield* Effect.scoped(body)
    assertClean()
  })

const blockOf = (storage: Storage) => (storage.sharing as DeviceRegion).block

describe("DeviceMemory", () => {
  it.live("aligns, and puts small storages into one block and large ones into their own", () =>
    clean(
      "",
      Effect.gen(function* () {
        const { memory } = yield* makeEngine()
        const sizes = [0, 1, 255, 256, 257, 4099, arena / 4 - 1]
        const small = yield* Effect.forEach(sizes, memory.allocate)
        assert.strictEqual(new Set(small.map(({ address }) => address)).size, sizes.length)
        for (const { address } of small) assert.strictEqual(Number(address) % alignment, 0)
        assert.deepStrictEqual(memory.blocks(), { count: 1, byteLength: arena })
        const large = yield* Effect.forEach([arena / 4, 3 * arena + 1], memory.allocate)
        assert.notStrictEqual(blockOf(large[0]!), blockOf(large[1]!))
        assert.strictEqual(memory.blocks().count, 3)
      })
    )
  )

  it.live("keeps one empty block and gives the others back", () =>
    clean(
      "",
      Effect.gen(function* () {
        const { memory } = yield* makeEngine()
        yield* Effect.scoped(
          Effect.forEach(
            Array.from({ length: 20 }, () => Math.floor(arena / 5)),
            memory.allocate
          )
        )
        assert.deepStrictEqual(memory.blocks(), { count: 1, byteLength: arena })
        yield* Effect.scoped(memory.allocate(arena))
        assert.strictEqual(memory.blocks().count, 1)
      })
    )
  )

  it.live("many at once need no more blocks than one after the other", () =>
    clean(
      "",
      Effect.gen(function* () {
        const { memory } = yield* makeEngine()
        yield* Effect.forEach(
          Array.from({ length: 40 }, () => 1000),
          memory.allocate,
          { concurrency: "unbounded" }
        )
        assert.strictEqual(memory.blocks().count, 1)
      })
    )
  )

  it.live("says what there is not enough of", () =>
    clean(
      "memory=64m",
      Effect.gen(function* () {
        const { memory, engine } = yield* makeEngine()
        const error = yield* Effect.flip(memory.allocate(2 ** 30))
        assert.strictEqual(error.reason._tag, "OutOfMemory")
        assert.include(error.message, String(2 ** 30))
        for (const bytes of [-1, 0.5, Number.NaN, 2 ** 53]) {
          assert.strictEqual((yield* Effect.flip(memory.allocate(bytes))).reason._tag, "OutOfMemory")
        }
        yield* engine.allocate("uint8", [10])
      })
    )
  )

  it.live("keeps blocks that peers may know until these let go, and uses them again meanwhile", () =>
    clean(
      "",
      Effect.gen(function* () {
        const { memory } = yield* makeEngine()
        const [group] = yield* makeInProcessGroups(1)
        const sharing = memory.sharingWith(group!, "cuda")
        assert.strictEqual(memory.sharingWith(group!, "cuda"), sharing)
        const scope = yield* Scope.make()
        const first = yield* Scope.provide(memory.allocate(arena), scope)
        sharing.share(blockOf(first))
        yield* Scope.close(scope, Exit.void)
        assert.strictEqual(memory.blocks().count, 1)
        // The same block, in which nothing lies any more, serves the next.
        const again = yield* Scope.make()
        const second = yield* Scope.provide(memory.allocate(arena - 1000), again)
        assert.strictEqual(blockOf(second), blockOf(first))
        yield* Scope.close(again, Exit.void)
        assert.deepStrictEqual(sharing.revoked(1), [blockOf(first).number])
        // Revoked: it is on its way out, and nothing is put into it.
        const third = yield* memory.allocate(arena)
        assert.notStrictEqual(blockOf(third), blockOf(first))
        const before = simulator.report().live.memory!
        sharing.settle(1)
        assert.isAtMost(memory.blocks().count, 1)
        assert.isAbove(before, 1)
      })
    )
  )

  it.live("wraps memory of others without freeing it, whole allocations at a time", () =>
    clean(
      "",
      Effect.gen(function* () {
        const { gpu, memory, engine } = yield* makeEngine()
        const owner = yield* memory.allocate(arena)
        const base = owner.address
        const scope = yield* Scope.make()
        const [one, two] = yield* Scope.provide(
          Effect.all([memory.foreignStorage(base, 100), memory.foreignStorage(base + 512n, 300)]),
          scope
        )
        assert.strictEqual(blockOf(one!), blockOf(two!))
        assert.deepStrictEqual(one!.device, gpu.device)
        const tensor = Result.getOrThrow(tensorView(two!, "uint8", [300]))
        yield* engine.fill(tensor, 7)
        assert.deepStrictEqual([...simulator.read(base + 512n, 300)], new Array(300).fill(7))
        yield* Scope.close(scope, Exit.void)
        const later = yield* memory.foreignStorage(base, 100)
        assert.notStrictEqual(blockOf(later).number, blockOf(one!).number)
        for (const [address, length] of [
          [base, 3 * arena],
          [1n, 10],
          [base, -1],
          [-5n, 1]
        ] as const) {
          const { reason } = yield* Effect.flip(memory.foreignStorage(address, length))
          assert.strictEqual(reason._tag, "InvalidRequest", `${address} ${length}`)
        }
      })
    )
  )

  it.live("finds out that memory cannot be opened elsewhere", () =>
    clean(
      "",
      Effect.gen(function* () {
        const { memory } = yield* makeEngine()
        const address = simulator.allocateVirtual(4096)
        const storage = yield* memory.foreignStorage(address, 4096)
        const exported = blockOf(storage).exported()
        assert.isTrue(Result.isFailure(exported))
        yield* Effect.addFinalizer(() => Effect.sync(() => void simulator.freeVirtual(address)))
      })
    )
  )

  it.live("maps memory of another process until the scope ends, and passes it to no third process", () =>
    clean(
      "",
      Effect.gen(function* () {
        const script = fileURLToPath(new URL("./fixtures/exporter.ts", import.meta.url))
        const child = spawn(process.execPath, [script], { stdio: ["pipe", "pipe", "inherit"] })
        yield* Effect.addFinalizer(() => Effect.sync(() => void child.kill("SIGKILL")))
        const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
        const line = Effect.promise(async () => JSON.parse((await lines.next()).value ?? "null"))
        const { handle, offset, length } = yield* line
        const { memory, engine } = yield* makeEngine()
        const scope = yield* Scope.make()
        const storage = yield* Scope.provide(memory.importStorage(Uint8Array.from(handle), offset, length), scope)
        const tensor = Result.getOrThrow(tensorView(storage, "uint8", [length]))
        const copy = yield* engine.allocate("uint8", [length])
        yield* engine.copy([{ dst: copy, src: tensor }])
        const seen = simulator.read(copy.storage.address, length)
        assert.isTrue(seen.every((byte, index) => byte === ((7 * index + 3) & 255)))
        assert.isTrue(Result.isFailure(blockOf(storage).exported()))
        yield* Scope.close(scope, Exit.void)
        assert.strictEqual((yield* Effect.flip(engine.copy([{ dst: copy, src: tensor }]))).reason._tag, "FreedStorage")
        const { reason } = yield* Effect.flip(memory.importStorage(new Uint8Array(63), 0, 1))
        assert.isNotEmpty(reason.detail)
        const left = Effect.sync(() => simulator.report().live.importedMemory)
        yield* Effect.repeat(
          Effect.tap(left, () => Effect.sleep(1)),
          { until: (count) => count === 0 }
        )
        child.stdin.write("\n")
        assert.deepStrictEqual(yield* line, [])
      })
    )
  )

  it.live("gives everything back when the engine closes, whatever is still held", () =>
    Effect.gen(function* () {
      resetSimulator("")
      const outer = yield* Scope.make()
      const storage = yield* Effect.scoped(
        Effect.gen(function* () {
          const { memory } = yield* makeEngine()
          return yield* Scope.provide(memory.allocate(100), outer)
        })
      )
      assertClean()
      yield* Scope.close(outer, Exit.void)
      assert.isTrue(storage.isFreed())
      assertClean()
    })
  )
})

describe("engines", () => {
  it.live("differ from others by their device, also through wrappers", () =>
    Effect.gen(function* () {
      resetSimulator("")
      yield* Effect.gen(function* () {
        const engine = yield* TensorEngine
        const behind = CudaEngine.deviceOf(engine)
        assert.isDefined(behind)
        assert.strictEqual(CudaEngine.deviceOf({ ...engine, name: "wrapped" }), behind)
        assert.deepStrictEqual(behind!.gpu.device, { family: "cuda", index: 3 })
      }).pipe(Effect.provide(CudaEngine.layer({ ...testOptions, device: 3 })))
      assertClean()
    })
  )

  it.live("copy between devices of the process, and refuse what they cannot reach", () =>
    Effect.gen(function* () {
      for (const [settings, isReachable] of [
        ["", true],
        ["peers=none", false]
      ] as const) {
        resetSimulator(settings)
        yield* Effect.scoped(
          Effect.gen(function* () {
            const here = yield* makeEngine({ device: 0 })
            const there = yield* makeEngine({ device: 1 })
            const src = yield* there.engine.allocate("float32", [33, 5])
            const dst = yield* here.engine.allocate("float32", [33, 5])
            yield* there.engine.fill(src, 9)
            yield* here.engine.fill(dst, 1)
            const copied = yield* Effect.result(here.engine.copy([{ dst, src }]))
            assert.strictEqual(Result.isSuccess(copied), isReachable)
            if (Result.isFailure(copied)) assert.strictEqual(copied.failure.reason._tag, "Unsupported")
            assert.strictEqual(simulator.read(dst.storage.address, 660)[659], isReachable ? 9 : 1)
          })
        )
        assertClean()
      }
    })
  )

  it.live("run a batch that comes again as the program it was made into", () =>
    clean(
      "",
      Effect.gen(function* () {
        const { engine } = yield* makeEngine()
        const scope = yield* Scope.make()
        const src = yield* engine.allocate("int32", [100, 3])
        const dst = yield* Scope.provide(engine.allocate("int32", [100, 3]), scope)
        const moves = [{ dst, src }]
        for (let round = 1; round <= 5; round++) {
          yield* engine.fill(src, round)
          yield* engine.copy(moves)
          assert.isTrue(simulator.read(dst.storage.address, 1200).every((byte) => byte === round))
        }
        // The same list while it runs already: both are done.
        yield* Effect.all([engine.copy(moves), engine.copy(moves), engine.copy(moves)], { concurrency: "unbounded" })
        yield* Scope.close(scope, Exit.void)
        const { reason } = yield* Effect.flip(engine.copy(moves))
        assert.strictEqual(reason._tag, "FreedStorage")
      })
    )
  )

  it.live("scale the same blocks again by the program that was made of them, also where their contents change", () =>
    clean(
      "",
      Effect.gen(function* () {
        const { engine } = yield* makeEngine()
        const scope = yield* Scope.make()
        const plain = yield* engine.allocate("float32", [4, 64])
        const data = yield* engine.allocate("float8_e4m3fn", [4, 64])
        const scale = yield* Scope.provide(engine.allocate("float8_e8m0fnu", [4, 2]), scope)
        const quantized = { _tag: "QuantizedTensor" as const, data, scale, recipe: mxfp8Recipe("rceil") }
        const kept: Array<number> = []
        for (let round = 1; round <= 6; round++) {
          // Bytes 0x3f.. and 0x40..: values whose scales differ.
          yield* engine.fill(plain, round % 2 === 0 ? 0x40 : 0x3f)
          yield* engine.fill(data, 0xd7)
          yield* engine.fill(scale, 0xd7)
          yield* engine.quantize(plain, quantized)
          const found = simulator.read(scale.storage.address, 8)
          assert.isTrue(found.every((byte) => byte === found[0] && byte !== 0xd7))
          kept.push(found[0]!)
          yield* engine.fill(plain, 0xd7)
          yield* engine.dequantize(quantized, plain)
          assert.notStrictEqual(simulator.read(plain.storage.address, 4)[3], 0xd7)
        }
        assert.deepStrictEqual(kept.slice(0, 2), kept.slice(4))
        assert.notStrictEqual(kept[0], kept[1])
        yield* Scope.close(scope, Exit.void)
        const { reason } = yield* Effect.flip(engine.quantize(plain, quantized))
        assert.strictEqual(reason._tag, "FreedStorage")
      })
    )
  )

  it.live("reach strided and casting host memory by pins, which do not stay", () =>
    clean(
      "",
      Effect.gen(function* () {
        const { engine } = yield* makeEngine()
        const bytes = new Uint8Array(4 * 64)
        const floats = new Float32Array(bytes.buffer)
        const host = yield* engine.wrapHost(bytes)
        const device = yield* engine.allocate("float64", [8])
        for (let at = 0; at < floats.length; at++) floats[at] = at
        const spread = Result.getOrThrow(tensorView(host, "float32", [8], { strides: [5], byteOffset: 4 }))
        yield* engine.copy([{ dst: device, src: spread }])
        const seen = new Float64Array(simulator.read(device.storage.address, 64).slice().buffer)
        assert.deepStrictEqual([...seen], [1, 6, 11, 16, 21, 26, 31, 36])
        yield* engine.copy([{ dst: spread, src: device }])
        assert.deepStrictEqual(
          [...floats],
          Array.from({ length: 64 }, (_, at) => at)
        )
        // They are given back behind what ran, by the device's own thread.
        const left = Effect.sync(() => simulator.report().live.hostRegistrations)
        yield* Effect.repeat(
          Effect.tap(left, () => Effect.sleep(1)),
          { until: (count) => count === 0 }
        )
      })
    )
  )

  it.live("report a failing device as such, and end a wait on it", () =>
    Effect.gen(function* () {
      resetSimulator("")
      yield* Effect.scoped(
        Effect.gen(function* () {
          const { engine } = yield* makeEngine()
          const src = yield* engine.allocate("uint8", [100])
          const dst = yield* engine.allocate("uint8", [100])
          assert.strictEqual(simulator.configure("fail=cuLaunchKernel:1:719"), 0)
          const { reason } = yield* Effect.flip(engine.copy([{ dst, src }]))
          assert.strictEqual(reason._tag, "DeviceFailure")
          assert.strictEqual(reason.nativeCode, 719)
          yield* engine.copy([{ dst, src }])
        })
      )
      assertClean()
    })
  )

  it.live("cannot be opened where there is no device, and say why", () =>
    Effect.gen(function* () {
      for (const [settings, options, text] of [
        ["devices=0", {}, "no device"],
        ["devices=2", { device: 2 }, "cuda:2"],
        ["", { libraries: { runtime: "/none/libcudart.so" } }, "/none/libcudart.so"]
      ] as const) {
        resetSimulator(settings)
        const error = yield* Effect.flip(Effect.scoped(Layer.build(CudaEngine.layer({ ...testOptions, ...options }))))
        assert.strictEqual(error.reason._tag, "Unavailable")
        assert.include(error.message, text)
        assert.isNotEmpty(error.reason.remedy)
        assertClean()
      }
    })
  )
})
