// SPDX-License-Identifier: Apache-2.0
/**
 * The host engine against the reference engine, which defines the bits, and against requests that it must refuse.
 */
import { assert, describe, it } from "@effect/vitest"
import { bitsOf, byteLengthOf, type DType, dtypes, isCastable, isSubByte, kindOf } from "@tensorferry/core/base/DType"
import { elementCount } from "@tensorferry/core/base/Region"
import type { ReduceOp, TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import { makeStorage } from "@tensorferry/core/tensor/Storage"
import { type Tensor, tensorView, transposeTensor } from "@tensorferry/core/tensor/Tensor"
import * as ReferenceEngine from "@tensorferry/testing/ReferenceEngine"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import { bytesOf, filled, makeEngine, makeRandom, type Random, randomView, tensorOf } from "./support.ts"

const castable = dtypes.filter((dtype) => isCastable(dtype, "float32"))
const whole = dtypes.filter((dtype) => !isSubByte(dtype))

const randomShape = (random: Random): ReadonlyArray<number> => {
  const lengths = [0, 1, 2, 3, 5, 7, 8, 13]
  return Array.from({ length: random.below(5) }, () => lengths[random.below(lengths.length)]!)
}

/** The same tensors in both engines. */
const twins = (
  engines: ReadonlyArray<TensorEngineShape>,
  random: Random,
  dtype: DType,
  shape: ReadonlyArray<number>
) => {
  const view = randomView(random, shape, dtype)
  const bytes = random.bytes(view.byteLength)
  return Effect.forEach(engines, (engine) => tensorOf(engine, dtype, view, bytes))
}

const reasonOf = <A, E extends { readonly reason: { readonly _tag: string } }, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.map(Effect.flip(effect), (error) => error.reason._tag)

describe("copy", () => {
  it.live("agrees with the reference on random views and types", () =>
    Effect.gen(function* () {
      const { engine } = yield* makeEngine()
      const reference = ReferenceEngine.make()
      const random = makeRandom(1)
      for (let round = 0; round < 400; round++) {
        const from = whole[random.below(whole.length)]!
        const to =
          isCastable(from, "float32") && random.below(2) === 0 ? castable[random.below(castable.length)]! : from
        const shape = randomShape(random)
        const sources = yield* twins([engine, reference], random, from, shape)
        const destinations = yield* twins([engine, reference], random, to, shape)
        yield* engine.copy([{ dst: destinations[0]!, src: sources[0]! }])
        yield* reference.copy([{ dst: destinations[1]!, src: sources[1]! }])
        assert.deepStrictEqual(
          bytesOf(destinations[0]!),
          bytesOf(destinations[1]!),
          `round ${round}: ${from} -> ${to} [${shape}] by [${destinations[0]!.strides}] from [${sources[0]!.strides}]`
        )
      }
    })
  )

  it.live("moves many sizes in one batch and touches nothing beside them", () =>
    Effect.gen(function* () {
      const { engine } = yield* makeEngine()
      const sizes = [0, 1, 2, 3, 63, 64, 65, 4095, 4096, 4097, 65521, 2 ** 21 - 1, 2 ** 21, 2 ** 21 + 1, 5_000_011]
      const random = makeRandom(2)
      const moves: Array<{ dst: Tensor; src: Tensor; expected: Uint8Array }> = []
      for (const size of sizes) {
        const view = { shape: [size], strides: [1], byteOffset: 3, byteLength: size + 7 }
        const bytes = random.bytes(size + 7)
        const src = yield* tensorOf(engine, "uint8", view, bytes)
        const dst = yield* tensorOf(engine, "uint8", view, new Uint8Array(size + 7).fill(0xa5))
        const expected = new Uint8Array(size + 7).fill(0xa5)
        expected.set(bytes.subarray(3, 3 + size), 3)
        moves.push({ dst, src, expected })
      }
      yield* engine.copy(moves)
      for (const { dst, expected } of moves) assert.isTrue(Buffer.from(bytesOf(dst)).equals(expected))
    })
  )

  it.live("transposes matrices that several threads share, at aligned and odd addresses", () =>
    Effect.gen(function* () {
      const { engine } = yield* makeEngine({ threads: 3 })
      const reference = ReferenceEngine.make()
      const [rows, columns] = [1511, 397]
      for (const dtype of ["uint8", "int16", "float32", "float64"] as const) {
        const size = bitsOf(dtype) / 8
        for (const byteOffset of [0, 1]) {
          const view = {
            shape: [rows, columns],
            strides: [columns, 1],
            byteOffset,
            byteLength: rows * columns * size + 1
          }
          const bytes = makeRandom(size).bytes(view.byteLength)
          const targets: Array<Tensor> = []
          for (const each of [engine, reference]) {
            const source = transposeTensor(yield* tensorOf(each, dtype, view, bytes), 0, 1)
            const turned = { ...view, shape: [columns, rows], strides: [rows, 1] }
            const target = yield* tensorOf(each, dtype, turned, new Uint8Array(view.byteLength).fill(0xa5))
            yield* each.copy([{ dst: target, src: source }])
            targets.push(target)
          }
          assert.isTrue(Buffer.from(bytesOf(targets[0]!)).equals(bytesOf(targets[1]!)), `${dtype} at ${byteOffset}`)
        }
      }
    })
  )

  it.live("repeats a source of stride 0", () =>
    Effect.gen(function* () {
      const { engine } = yield* makeEngine()
      const row = yield* tensorOf(
        engine,
        "int16",
        { shape: [3, 2], strides: [0, 1], byteOffset: 0, byteLength: 4 },
        Uint8Array.of(1, 2, 3, 4)
      )
      const target = yield* filled(engine, "int16", [3, 2], 0xa5)
      yield* engine.copy([{ dst: target, src: row }])
      assert.deepStrictEqual([...bytesOf(target)], [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4])
      assert.strictEqual(yield* reasonOf(engine.copy([{ dst: row, src: target }])), "InvalidRequest")
    })
  )

  it.live("moves types narrower than a byte along whole bytes", () =>
    Effect.gen(function* () {
      const { engine } = yield* makeEngine()
      const source = yield* filled(engine, "float4_e2m1fn", [3, 6], 0)
      source.storage.bytes!.set([1, 2, 3, 4, 5, 6, 7, 8, 9])
      const target = yield* filled(engine, "float4_e2m1fn", [3, 8], 0xa5)
      const inner = Result.getOrThrow(
        tensorView(target.storage, "float4_e2m1fn", [3, 6], { strides: [8, 1], byteOffset: 0 })
      )
      yield* engine.copy([{ dst: inner, src: source }])
      assert.deepStrictEqual([...bytesOf(target)], [1, 2, 3, 0xa5, 4, 5, 6, 0xa5, 7, 8, 9, 0xa5])
      const odd = Result.getOrThrow(tensorView(target.storage, "float4_e2m1fn", [3, 3], { strides: [8, 1] }))
      assert.strictEqual(yield* reasonOf(engine.copy([{ dst: odd, src: odd }])), "InvalidRequest")
    })
  )

  it.live("takes 16 long dimensions and any number of short ones", () =>
    Effect.gen(function* () {
      const { engine } = yield* makeEngine()
      const shape = [...new Array(16).fill(2), ...new Array(20).fill(1)]
      const source = yield* engine.allocate("uint8", shape)
      source.storage.bytes!.set(makeRandom(3).bytes(2 ** 16))
      let view = source
      for (let dim = 0; dim < 8; dim++) view = transposeTensor(view, dim, 15 - dim)
      const target = yield* filled(engine, "uint8", shape, 0xa5)
      yield* engine.copy([{ dst: target, src: view }])
      const expected = Uint8Array.from({ length: 2 ** 16 }, (_, i) => {
        let reversed = 0
        for (let bit = 0; bit < 16; bit++) if (i & (1 << bit)) reversed |= 1 << (15 - bit)
        return source.storage.bytes![reversed]!
      })
      assert.isTrue(Buffer.from(bytesOf(target)).equals(expected))
      const many = yield* engine.allocate("uint8", new Array(17).fill(2))
      assert.strictEqual(yield* reasonOf(engine.copy([{ dst: many, src: many }])), "Unsupported")
    })
  )
})

describe("reduce and fill", () => {
  const ops: ReadonlyArray<ReduceOp> = ["sum", "avg", "max", "min", "product"]

  it.live("agrees with the reference for every type and operation", () =>
    Effect.gen(function* () {
      const { engine } = yield* makeEngine()
      const reference = ReferenceEngine.make()
      const random = makeRandom(4)
      for (const dtype of castable) {
        for (const op of ops) {
          if (kindOf(dtype) === "bool" && op === "avg") continue
          for (const operands of [1, 2, 3, 5]) {
            const shape = [random.below(4), 1 + random.below(40)]
            const pairs: Array<ReadonlyArray<Tensor>> = []
            for (let i = 0; i <= operands; i++) pairs.push(yield* twins([engine, reference], random, dtype, shape))
            const [mine, theirs] = [0, 1].map((side) => pairs.map((pair) => pair[side]!))
            yield* engine.reduce(mine![0]!, mine!.slice(1), op)
            yield* reference.reduce(theirs![0]!, theirs!.slice(1), op)
            assert.deepStrictEqual(bytesOf(mine![0]!), bytesOf(theirs![0]!), `${op} of ${operands} ${dtype}[${shape}]`)
          }
        }
      }
    })
  )

  it.live("accumulates into its first operand over more elements than one unit of work", () =>
    Effect.gen(function* () {
      const { engine } = yield* makeEngine()
      const count = 600_011
      const floats = (tensor: Tensor) =>
        new Float32Array(tensor.storage.bytes!.buffer, tensor.storage.bytes!.byteOffset, count)
      const a = yield* engine.allocate("float32", [count])
      const b = yield* engine.allocate("float32", [count])
      for (let i = 0; i < count; i++) [floats(a)[i], floats(b)[i]] = [i, 3 * i]
      yield* engine.reduce(a, [a, b], "sum")
      assert.isTrue(floats(a).every((value, i) => value === 4 * i))
    })
  )

  it.live("fills exactly the elements of a view", () =>
    Effect.gen(function* () {
      const { engine } = yield* makeEngine()
      const reference = ReferenceEngine.make()
      const random = makeRandom(5)
      for (let round = 0; round < 60; round++) {
        const dtype = whole[random.below(whole.length)]!
        const [mine, theirs] = yield* twins([engine, reference], random, dtype, randomShape(random))
        yield* engine.fill(mine!, 0x3c)
        yield* reference.fill(theirs!, 0x3c)
        assert.deepStrictEqual(bytesOf(mine!), bytesOf(theirs!), dtype)
      }
      assert.strictEqual(yield* reasonOf(engine.fill(yield* engine.allocate("int8", [1]), 256)), "InvalidRequest")
    })
  )

  it.live("refuses what has no meaning", () =>
    Effect.gen(function* () {
      const { engine } = yield* makeEngine()
      const tensor = (dtype: DType) => engine.allocate(dtype, [4])
      assert.strictEqual(yield* reasonOf(engine.reduce(yield* tensor("int8"), [], "sum")), "InvalidRequest")
      const flag = yield* tensor("bool")
      assert.strictEqual(yield* reasonOf(engine.reduce(flag, [flag], "avg")), "Unsupported")
      const complex = yield* tensor("complex64")
      assert.strictEqual(yield* reasonOf(engine.reduce(complex, [complex], "sum")), "Unsupported")
      assert.strictEqual(yield* reasonOf(engine.reduce(flag, [yield* tensor("int8")], "sum")), "InvalidRequest")
      const recipe = { name: "mxfp8", block: [1, 32], rule: "rceil" } as const
      const quantized = { _tag: "QuantizedTensor", data: flag, scale: flag, recipe } as const
      assert.strictEqual(yield* reasonOf(engine.quantize(flag, quantized)), "Unsupported")
      assert.strictEqual(yield* reasonOf(engine.dequantize(quantized, flag)), "Unsupported")
      assert.sameMembers([...engine.capabilities.quantize], ["mxfp8", "fp8", "mxfp4", "nvfp4"])
    })
  )
})

describe("refusals", () => {
  it.live("names freed storage, foreign devices, fake addresses and wrong shapes before any byte moves", () =>
    Effect.gen(function* () {
      const { engine } = yield* makeEngine()
      const good = yield* filled(engine, "int32", [4], 0x11)
      const other = yield* filled(engine, "int32", [4], 0x22)
      const gone = yield* Effect.scoped(engine.allocate("int32", [4]))
      const fake = (address: bigint, bytes?: Uint8Array) =>
        Result.getOrThrow(
          tensorView(
            makeStorage({
              device: good.device,
              address,
              byteLength: 16,
              ...(bytes === undefined ? {} : { bytes }),
              release: () => {}
            }),
            "int32",
            [4]
          )
        )
      const cases: ReadonlyArray<readonly [string, Tensor, string]> = [
        ["freed", gone, "FreedStorage"],
        ["no bytes", fake(4096n), "InvalidRequest"],
        ["wrong address", fake(4096n, new Uint8Array(16)), "InvalidRequest"],
        ["wrong device", { ...good, device: { family: "cuda", index: 0 } }, "InvalidRequest"],
        ["outside", { ...good, byteOffset: 4 }, "InvalidRequest"],
        ["negative stride", { ...good, strides: [-1] }, "InvalidRequest"],
        ["huge stride", { ...good, strides: [2 ** 53] }, "InvalidRequest"],
        ["wrong shape", { ...good, shape: [2, 2], strides: [2, 1] }, "InvalidRequest"],
        ["opaque cast", { ...good, dtype: "float8_e4m3fnuz" }, "Unsupported"]
      ]
      for (const [name, bad, tag] of cases) {
        const first = { dst: other, src: good }
        assert.strictEqual(yield* reasonOf(engine.copy([first, { dst: good, src: bad }])), tag, name)
        assert.strictEqual(yield* reasonOf(engine.copy([first, { dst: bad, src: good }])), tag, name)
      }
      assert.isTrue(bytesOf(other).every((byte) => byte === 0x22))
    })
  )

  it.live("refuses dense regions of a batch that overlap, but not the same region twice", () =>
    Effect.gen(function* () {
      const { engine } = yield* makeEngine()
      const base = yield* filled(engine, "uint8", [64], 1)
      const part = (byteOffset: number, length: number) =>
        Result.getOrThrow(tensorView(base.storage, "uint8", [length], { byteOffset }))
      assert.strictEqual(yield* reasonOf(engine.copy([{ dst: part(1, 16), src: part(0, 16) }])), "InvalidRequest")
      const twoWrites = [
        { dst: part(0, 8), src: part(32, 8) },
        { dst: part(4, 8), src: part(40, 8) }
      ]
      assert.strictEqual(yield* reasonOf(engine.copy(twoWrites)), "InvalidRequest")
      yield* engine.copy([{ dst: part(0, 16), src: part(0, 16) }])
      yield* engine.copy([{ dst: part(0, 16), src: part(16, 16) }])
    })
  )

  it.live("notices what changed in a batch that it knows", () =>
    Effect.gen(function* () {
      const { engine } = yield* makeEngine()
      const scope = yield* Scope.make()
      const inScope = <A, E, R>(effect: Effect.Effect<A, E, R | Scope.Scope>) => Scope.provide(effect, scope)
      const moves: Array<{ dst: Tensor; src: Tensor }> = []
      for (let i = 0; i < 100; i++) {
        moves.push({
          dst: yield* filled(engine, "uint8", [5], 0xa5),
          src: yield* inScope(filled(engine, "uint8", [5], i))
        })
      }
      const poison = () => {
        for (const { dst } of moves) dst.storage.bytes!.fill(0xa5)
      }
      for (let round = 0; round < 3; round++) {
        poison()
        yield* engine.copy(moves)
        for (const [i, { dst }] of moves.entries()) assert.isTrue(bytesOf(dst).every((byte) => byte === i))
      }
      const other = yield* filled(engine, "uint8", [5], 200)
      moves[7] = { dst: moves[7]!.dst, src: other }
      poison()
      yield* engine.copy(moves)
      assert.isTrue(bytesOf(moves[7]!.dst).every((byte) => byte === 200))
      moves.push({ dst: other, src: yield* filled(engine, "uint8", [5], 201) })
      yield* engine.copy(moves)
      assert.isTrue(bytesOf(other).every((byte) => byte === 201))
      yield* Scope.close(scope, Exit.void)
      poison()
      assert.strictEqual(yield* reasonOf(engine.copy(moves)), "FreedStorage")
      assert.isTrue(bytesOf(moves[0]!.dst).every((byte) => byte === 0xa5))
    })
  )

  it.live("wraps the caller's bytes and notices when they go away", () =>
    Effect.gen(function* () {
      const { engine } = yield* makeEngine()
      const bytes = Uint8Array.of(9, 1, 2, 3, 4).subarray(1)
      const storage = yield* engine.wrapHost(bytes)
      const source = Result.getOrThrow(tensorView(storage, "uint8", [4]))
      const target = yield* filled(engine, "uint8", [4], 0xa5)
      yield* engine.copy([{ dst: target, src: source }])
      assert.deepStrictEqual([...bytesOf(target)], [1, 2, 3, 4])
      structuredClone(bytes.buffer, { transfer: [bytes.buffer] })
      assert.strictEqual(yield* reasonOf(engine.copy([{ dst: target, src: source }])), "FreedStorage")
      assert.strictEqual(yield* reasonOf(engine.wrapHost(bytes)), "FreedStorage")
      const resizable = new Uint8Array(new ArrayBuffer(4, { maxByteLength: 8 }))
      assert.strictEqual(yield* reasonOf(engine.wrapHost(resizable)), "InvalidRequest")
      const empty = Result.getOrThrow(tensorView(yield* engine.wrapHost(new Uint8Array(0)), "uint8", [0]))
      yield* engine.copy([{ dst: empty, src: empty }])
    })
  )

  it.live("says what it cannot allocate", () =>
    Effect.gen(function* () {
      const { engine } = yield* makeEngine()
      assert.strictEqual(yield* reasonOf(engine.allocate("uint8", [2 ** 49])), "OutOfMemory")
      assert.strictEqual(yield* reasonOf(engine.allocate("float64", [2 ** 50, 8])), "InvalidRequest")
      assert.strictEqual(yield* reasonOf(engine.allocate("int8", [1], { family: "cuda", index: 0 })), "Unsupported")
      for (const dtype of dtypes) {
        const empty = yield* engine.allocate(dtype, [3, 0])
        assert.strictEqual(empty.storage.byteLength, 0)
        assert.strictEqual((yield* engine.allocate(dtype, [8])).storage.byteLength, byteLengthOf(dtype, 8))
      }
    })
  )
})

describe("running work", () => {
  it.live("ends on interruption only after the native side has stopped, and goes on working", () =>
    Effect.gen(function* () {
      const { engine } = yield* makeEngine({ threads: 1 })
      const source = yield* filled(engine, "uint8", [2 ** 24], 7)
      const target = yield* filled(engine, "uint8", [2 ** 24], 0xa5)
      for (let round = 0; round < 4; round++) {
        const fiber = yield* Effect.forkChild(engine.copy([{ dst: target, src: source }]), { startImmediately: true })
        yield* Fiber.interrupt(fiber)
        target.storage.bytes!.fill(0xa5)
        yield* Effect.yieldNow
        assert.isTrue(Buffer.from(target.storage.bytes!).equals(Buffer.alloc(2 ** 24, 0xa5)))
      }
      yield* engine.copy([{ dst: target, src: source }])
      assert.isTrue(Buffer.from(bytesOf(target)).equals(Buffer.alloc(2 ** 24, 7)))
    })
  )

  it.live("keeps memory that is freed while it is copied, and fences what runs", () =>
    Effect.gen(function* () {
      const { engine } = yield* makeEngine({ threads: 1 })
      const source = yield* filled(engine, "uint8", [2 ** 24], 7)
      const target = yield* filled(engine, "uint8", [2 ** 24], 0xa5)
      const fiber = yield* Effect.forkChild(engine.copy([{ dst: target, src: source }]), { startImmediately: true })
      source.storage.free()
      const fence = yield* engine.fence
      yield* fence.await
      assert.isTrue(Buffer.from(bytesOf(target)).equals(Buffer.alloc(2 ** 24, 7)))
      yield* Fiber.join(fiber)
      assert.strictEqual(source.storage.bytes!.byteLength, 0, "released after the copy")
    })
  )

  it.live("widths of all types agree with the addon's", () =>
    Effect.gen(function* () {
      const { engine } = yield* makeEngine()
      for (const dtype of whole) {
        const source = yield* filled(engine, dtype, [3], 0x5a)
        const target = yield* filled(engine, dtype, [4], 0xa5)
        const part = Result.getOrThrow(tensorView(target.storage, dtype, [3]))
        yield* engine.copy([{ dst: part, src: source }])
        const size = (elementCount([3]) * bitsOf(dtype)) / 8
        assert.isTrue(
          bytesOf(target).every((byte, i) => byte === (i < size ? 0x5a : 0xa5)),
          dtype
        )
      }
    })
  )
})
