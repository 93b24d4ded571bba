// SPDX-License-Identifier: Apache-2.0
/** The reference engine moves exactly the elements asked for, reduces in the order given, and refuses the rest unharmed. */
import { assert, describe, it } from "@effect/vitest"
import { bitsOf, type DType, dtypes, isSubByte } from "@tensorferry/core/base/DType"
import { elementCount, type Region, rowMajorStrides, type Shape } from "@tensorferry/core/base/Region"
import { TensorEngine, type TensorError } from "@tensorferry/core/service/TensorEngine"
import { makeStorage } from "@tensorferry/core/tensor/Storage"
import { sliceTensor, type Tensor, tensorBytes, tensorView, transposeTensor } from "@tensorferry/core/tensor/Tensor"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import { bytePattern as pattern } from "../src/bytePattern.ts"
import { layer, make } from "../src/ReferenceEngine.ts"

const engine = make()

const slice = (tensor: Tensor, region: Region) => Effect.fromResult(sliceTensor(tensor, region))

/** A dense tensor of the engine with the bytes given. */
const tensorOf = (dtype: DType, shape: Shape, bytes: { readonly buffer: ArrayBufferLike }) =>
  Effect.gen(function* () {
    const tensor = yield* engine.allocate(dtype, shape)
    tensor.storage.bytes!.set(new Uint8Array(bytes.buffer))
    return tensor
  })

const expectReason = (error: TensorError, tag: TensorError["reason"]["_tag"]) =>
  assert.strictEqual(error.reason._tag, tag, error.message)

describe("memory", () => {
  it.effect("is poisoned, has addresses of its own, and is poisoned again when freed", () =>
    Effect.gen(function* () {
      const scope = yield* Scope.make()
      const tensors: Array<Tensor> = []
      for (const shape of [[0], [1], [4097], [1, 0, 2], []]) {
        tensors.push(yield* Scope.provide(engine.allocate("uint8", shape), scope))
      }
      for (const { storage, shape } of tensors) {
        assert.strictEqual(storage.byteLength, elementCount(shape))
        assert.isTrue(storage.bytes!.every((byte) => byte === 0xa5))
      }
      const starts = tensors.map(({ storage }) => storage.address).sort((a, b) => (a < b ? -1 : 1))
      const ends = tensors
        .map(({ storage }) => storage.address + BigInt(storage.byteLength))
        .sort((a, b) => (a < b ? -1 : 1))
      for (let at = 1; at < starts.length; at++) assert.isTrue(starts[at]! > ends[at - 1]!)
      yield* Scope.close(scope, Exit.void)
      for (const { storage } of tensors) {
        assert.isTrue(storage.isFreed())
        assert.isTrue(storage.bytes!.every((byte) => byte === 0x5a))
      }
      const error = yield* Effect.flip(engine.copy([{ dst: tensors[2]!, src: tensors[2]! }]))
      expectReason(error, "FreedStorage")
    })
  )

  it.effect("uses the poison and the limit that its options set", () =>
    Effect.gen(function* () {
      const small = make({ poison: 0x11, memoryLimit: 100 })
      const first = yield* small.allocate("uint8", [60])
      assert.isTrue(first.storage.bytes!.every((byte) => byte === 0x11))
      const error = yield* Effect.flip(small.allocate("uint8", [41]))
      expectReason(error, "OutOfMemory")
      assert.isTrue(error.reason.isRetryable)
      yield* Effect.scoped(small.allocate("uint8", [40]))
      yield* small.allocate("uint8", [40])
      expectReason(yield* Effect.flip(make().allocate("uint8", [2 ** 40])), "OutOfMemory")
      expectReason(yield* Effect.flip(make().allocate("uint8", [2 ** 32, 2 ** 32])), "InvalidRequest")
      expectReason(yield* Effect.flip(make().allocate("uint8", [-1])), "InvalidRequest")
      expectReason(yield* Effect.flip(make().allocate("uint8", [1], { family: "other", index: 0 })), "InvalidRequest")
    })
  )

  it.effect("wraps bytes of the caller and leaves them alone afterwards", () =>
    Effect.gen(function* () {
      const bytes = pattern(8, 1)
      const storage = yield* Effect.scoped(engine.wrapHost(bytes))
      assert.isTrue(storage.isFreed())
      assert.deepStrictEqual(bytes, pattern(8, 1))
    })
  )

  it.effect("is a service for the family that it stands for", () =>
    Effect.gen(function* () {
      const service = yield* TensorEngine
      assert.deepStrictEqual(service.deviceFamilies, ["other"])
      const tensor = yield* service.allocate("uint8", [1])
      assert.deepStrictEqual(tensor.device, { family: "other", index: 0 })
      yield* (yield* service.fence).await
      expectReason(yield* Effect.flip(engine.fill(tensor, 0)), "InvalidRequest")
    }).pipe(Effect.provide(layer({ deviceFamily: "other" })))
  )
})

describe("copy", () => {
  const dimension = Schema.Literals([0, 1, 2, 3, 5, 7])
  const shapes = Arbitrary.array(Arbitrary.schema(dimension), { maxLength: 4 })
  const wholeByte = dtypes.filter((dtype) => !isSubByte(dtype))

  it.effect.prop(
    "any region and transposition, and no byte beside it",
    {
      shape: shapes,
      pick: Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 10_000 })),
      dtype: Schema.Literals(wholeByte)
    },
    ({ shape, pick, dtype }) =>
      Effect.gen(function* () {
        const size = bitsOf(dtype) / 8
        const source = yield* tensorOf(dtype, shape, pattern(elementCount(shape) * size, pick))
        const region = shape.map((length, dim): [number, number] => {
          const [a, b] = [(pick >> dim) % (length + 1), (pick >> (dim + 3)) % (length + 1)]
          return [Math.min(a, b), Math.max(a, b)]
        })
        const [p, q] = [pick % Math.max(1, shape.length), (pick >> 2) % Math.max(1, shape.length)]
        const view = shape.length === 0 ? source : transposeTensor(yield* slice(source, region), p, q)
        // The destination is the inside of a larger array, so that a write beside it shows.
        const outer = yield* engine.allocate(
          dtype,
          view.shape.map((length) => length + 2)
        )
        const target = yield* slice(
          outer,
          view.shape.map((length): [number, number] => [1, length + 1])
        )
        yield* engine.copy([{ dst: target, src: view }])
        const expected = new Uint8Array(outer.storage.byteLength).fill(0xa5)
        const strides = rowMajorStrides(view.shape)
        for (let element = 0; element < elementCount(view.shape); element++) {
          const at = view.shape.map((length, dim) => Math.floor(element / strides[dim]!) % length)
          const from = view.byteOffset + at.reduce((sum, index, dim) => sum + index * view.strides[dim]!, 0) * size
          const to = at.reduce((sum, index, dim) => sum + (index + 1) * outer.strides[dim]!, 0) * size
          expected.set(source.storage.bytes!.subarray(from, from + size), to)
        }
        assert.deepStrictEqual(outer.storage.bytes, expected)
      }).pipe(Effect.scoped),
    { arbitrary: { runs: 300, seed: "copy" } }
  )

  it.effect("casts between strided views", () =>
    Effect.gen(function* () {
      const source = yield* tensorOf("float32", [2, 3], Float32Array.of(1, -2, 3.7, 1e10, Number.NaN, 0))
      const target = yield* engine.allocate("bfloat16", [3, 4])
      const columns = transposeTensor(
        yield* slice(target, [
          [0, 3],
          [1, 3]
        ]),
        0,
        1
      )
      yield* engine.copy([{ dst: columns, src: source }])
      const free = 0xa5a5
      assert.deepStrictEqual(
        new Uint16Array(target.storage.bytes!.slice().buffer),
        Uint16Array.of(free, 0x3f80, 0x5015, free, free, 0xc000, 0x7fc0, free, free, 0x406d, 0, free)
      )
    })
  )

  it.effect("sub-byte elements move along whole bytes only", () =>
    Effect.gen(function* () {
      for (const dtype of dtypes.filter(isSubByte)) {
        const bits = bitsOf(dtype)
        const source = yield* tensorOf(dtype, [3, 8], pattern(3 * bits, bits))
        const target = yield* engine.allocate(dtype, [3, 16])
        yield* engine.copy([
          {
            dst: yield* slice(target, [
              [0, 3],
              [4, 12]
            ]),
            src: source
          }
        ])
        const expected = new Uint8Array(6 * bits).fill(0xa5)
        for (let row = 0; row < 3; row++) {
          expected.set(pattern(3 * bits, bits).subarray(row * bits, (row + 1) * bits), row * 2 * bits + bits / 2)
        }
        assert.deepStrictEqual(target.storage.bytes, expected, dtype)
        const narrow = {
          dst: yield* slice(target, [
            [0, 3],
            [0, 1]
          ]),
          src: yield* slice(source, [
            [0, 3],
            [0, 1]
          ])
        }
        expectReason(yield* Effect.flip(engine.copy([narrow])), "InvalidRequest")
        expectReason(
          yield* Effect.flip(engine.copy([{ dst: yield* engine.allocate("float32", [3, 8]), src: source }])),
          "Unsupported"
        )
      }
    })
  )

  it.effect("a source may repeat elements, and a region may be copied onto itself", () =>
    Effect.gen(function* () {
      const source = yield* tensorOf("uint8", [3], Uint8Array.of(1, 2, 3))
      const target = yield* engine.allocate("uint8", [2, 3])
      yield* engine.copy([{ dst: target, src: { ...source, shape: [2, 3], strides: [0, 1] } }])
      assert.deepStrictEqual(target.storage.bytes, Uint8Array.of(1, 2, 3, 1, 2, 3))
      yield* engine.copy([{ dst: target, src: target }])
      assert.deepStrictEqual(target.storage.bytes, Uint8Array.of(1, 2, 3, 1, 2, 3))
      yield* engine.copy([])
    })
  )

  it.effect("interleaved regions are apart; regions that meet are refused before any byte moves", () =>
    Effect.gen(function* () {
      const base = yield* tensorOf("uint8", [4, 4], pattern(16, 1))
      const other = yield* tensorOf("uint8", [4, 4], pattern(16, 2))
      const column = (tensor: Tensor, start: number, stop: number) =>
        slice(tensor, [
          [0, 4],
          [start, stop]
        ])
      yield* engine.copy([
        { dst: yield* column(other, 0, 2), src: yield* column(base, 0, 2) },
        { dst: yield* column(other, 2, 4), src: yield* column(base, 2, 4) }
      ])
      assert.deepStrictEqual(other.storage.bytes, base.storage.bytes)
      yield* engine.copy([{ dst: yield* column(base, 0, 1), src: yield* column(base, 3, 4) }])
      const before = base.storage.bytes!.slice()
      const overlapping = [
        [{ dst: yield* column(base, 0, 2), src: yield* column(base, 1, 3) }],
        [
          { dst: yield* column(base, 0, 2), src: yield* column(other, 0, 2) },
          { dst: yield* column(base, 1, 3), src: yield* column(other, 0, 2) }
        ],
        [
          { dst: base, src: other },
          { dst: base, src: other }
        ],
        [
          { dst: yield* column(base, 0, 1), src: yield* column(other, 0, 1) },
          { dst: yield* column(other, 1, 2), src: yield* column(base, 0, 1) }
        ],
        [{ dst: transposeTensor(base, 0, 1), src: base }],
        [{ dst: { ...base, strides: [0, 1] }, src: other }]
      ]
      for (const [at, moves] of overlapping.entries()) {
        expectReason(yield* Effect.flip(engine.copy(moves)), "InvalidRequest")
        assert.deepStrictEqual(base.storage.bytes, before, `batch ${at}`)
      }
    })
  )

  it.effect("refuses shapes, views, storage and types that do not fit, before any byte moves", () =>
    Effect.gen(function* () {
      const target = yield* engine.allocate("uint8", [4])
      const good = { dst: target, src: yield* engine.allocate("uint8", [4]) }
      const hidden = makeStorage({ device: target.device, address: 1n, byteLength: 4, release: () => {} })
      const invisible = yield* Effect.fromResult(tensorView(hidden, "uint8", [4]))
      yield* engine.fill(target, 1)
      const bad: ReadonlyArray<readonly [Tensor, TensorError["reason"]["_tag"]]> = [
        [yield* engine.allocate("uint8", [5]), "InvalidRequest"],
        [yield* engine.allocate("uint8", [2, 2]), "InvalidRequest"],
        [{ ...target, byteOffset: 1 }, "InvalidRequest"],
        [{ ...target, strides: [2] }, "InvalidRequest"],
        [{ ...target, strides: [] }, "InvalidRequest"],
        [{ ...target, device: { family: "cpu", index: 1 } }, "InvalidRequest"],
        [invisible, "InvalidRequest"],
        [yield* engine.allocate("float8_e4m3fnuz", [4]), "Unsupported"]
      ]
      for (const [src, tag] of bad) {
        expectReason(yield* Effect.flip(engine.copy([good, { dst: yield* engine.allocate("uint8", [4]), src }])), tag)
        assert.deepStrictEqual(target.storage.bytes, Uint8Array.of(1, 1, 1, 1))
      }
    })
  )
})

describe("reduce", () => {
  const f32 = (...values: ReadonlyArray<number>) => tensorOf("float32", [values.length], Float32Array.from(values))
  const reduced = (op: Parameters<typeof engine.reduce>[2], ...sources: ReadonlyArray<Tensor>) =>
    Effect.gen(function* () {
      const target = yield* engine.allocate(sources[0]!.dtype, sources[0]!.shape)
      yield* engine.reduce(target, sources, op)
      return tensorBytes(target)!.slice()
    })

  it.effect("float32 rounds after every step, in the order given", () =>
    Effect.gen(function* () {
      const [large, one, minus] = [yield* f32(2 ** 24), yield* f32(1), yield* f32(-(2 ** 24))]
      const sum = (...sources: ReadonlyArray<Tensor>) =>
        Effect.map(reduced("sum", ...sources), (bytes) => new Float32Array(bytes.buffer)[0])
      assert.strictEqual(yield* sum(large, one, minus), 0)
      assert.strictEqual(yield* sum(large, minus, one), 1)
    })
  )

  it.effect("16-bit floats accumulate in float32 and round once", () =>
    Effect.gen(function* () {
      // 256 + 1 + 1: a sum kept in bfloat16 would stay at 256.
      const of = (bits: number) => tensorOf("bfloat16", [1], Uint16Array.of(bits))
      const operands = [yield* of(0x4380), yield* of(0x3f80), yield* of(0x3f80)]
      assert.deepStrictEqual(yield* reduced("sum", ...operands), new Uint8Array(Uint16Array.of(0x4381).buffer))
      // 65504 + 65504 overflows float16 and not float32, so that the mean is exact.
      const half = yield* tensorOf("float16", [1], Uint16Array.of(0x7bff))
      assert.deepStrictEqual(yield* reduced("avg", half, half), new Uint8Array(Uint16Array.of(0x7bff).buffer))
      assert.deepStrictEqual(yield* reduced("sum", half, half), new Uint8Array(Uint16Array.of(0x7c00).buffer))
      const narrow = yield* tensorOf("float8_e4m3fn", [1], Uint8Array.of(0x7e))
      assert.deepStrictEqual(yield* reduced("sum", narrow, narrow), Uint8Array.of(0x7e))
    })
  )

  it.effect("float64 stays float64", () =>
    Effect.gen(function* () {
      const of = (value: number) => tensorOf("float64", [1], Float64Array.of(value))
      const bytes = yield* reduced("avg", yield* of(1), yield* of(2 ** -40), yield* of(0))
      assert.strictEqual(new Float64Array(bytes.buffer)[0], (1 + 2 ** -40) / 3)
    })
  )

  it.effect("integers wrap", () =>
    Effect.gen(function* () {
      const i8 = (...values: ReadonlyArray<number>) => tensorOf("int8", [values.length], Int8Array.from(values))
      const [a, b] = [yield* i8(100, -100, 127, -7), yield* i8(100, -100, 2, 2)]
      assert.deepStrictEqual(new Int8Array((yield* reduced("sum", a, b)).buffer), Int8Array.of(-56, 56, -127, -5))
      assert.deepStrictEqual(new Int8Array((yield* reduced("avg", a, b)).buffer), Int8Array.of(-28, 28, -63, -2))
      assert.deepStrictEqual(new Int8Array((yield* reduced("product", a, b)).buffer), Int8Array.of(16, 16, -2, -14))
      assert.deepStrictEqual(new Int8Array((yield* reduced("max", a, b)).buffer), Int8Array.of(100, -100, 127, 2))
      assert.deepStrictEqual(new Int8Array((yield* reduced("min", a, b)).buffer), Int8Array.of(100, -100, 2, -7))
      const u64 = (...values: ReadonlyArray<bigint>) => tensorOf("uint64", [values.length], BigUint64Array.from(values))
      const [c, d] = [yield* u64(2n ** 64n - 1n, 2n ** 63n), yield* u64(2n, 3n)]
      assert.deepStrictEqual(
        new BigUint64Array((yield* reduced("sum", c, d)).buffer),
        BigUint64Array.of(1n, 2n ** 63n + 3n)
      )
      assert.deepStrictEqual(
        new BigUint64Array((yield* reduced("product", c, d)).buffer),
        BigUint64Array.of(2n ** 64n - 2n, 2n ** 63n)
      )
      assert.deepStrictEqual(
        new BigUint64Array((yield* reduced("max", c, d)).buffer),
        BigUint64Array.of(2n ** 64n - 1n, 2n ** 63n)
      )
    })
  )

  it.effect("a NaN reaches the result of max and min from any place; the first of equals stays", () =>
    Effect.gen(function* () {
      const [nan, one, zero, minusZero] = [yield* f32(Number.NaN), yield* f32(1), yield* f32(0), yield* f32(-0)]
      const value = (bytes: Uint8Array) => new Float32Array(bytes.buffer)[0]
      for (const op of ["max", "min"] as const) {
        for (const order of [
          [nan, one, one],
          [one, nan, one],
          [one, one, nan]
        ]) {
          assert.isNaN(value(yield* reduced(op, ...order)))
        }
        assert.strictEqual(value(yield* reduced(op, zero, minusZero)), 0)
        assert.strictEqual(value(yield* reduced(op, minusZero, zero)), -0)
      }
    })
  )

  it.effect("bool is or, and; its mean does not exist", () =>
    Effect.gen(function* () {
      const of = (...values: ReadonlyArray<number>) => tensorOf("bool", [values.length], Uint8Array.from(values))
      const [a, b] = [yield* of(0, 0, 1, 1), yield* of(0, 1, 0, 1)]
      for (const op of ["sum", "max"] as const)
        assert.deepStrictEqual(yield* reduced(op, a, b), Uint8Array.of(0, 1, 1, 1))
      for (const op of ["product", "min"] as const)
        assert.deepStrictEqual(yield* reduced(op, a, b), Uint8Array.of(0, 0, 0, 1))
      expectReason(yield* Effect.flip(reduced("avg", a, b)), "Unsupported")
    })
  )

  it.effect("the result may replace an operand, in any strides and sizes", () =>
    Effect.gen(function* () {
      for (const count of [0, 1, 2, 31, 32, 33]) {
        const a = yield* tensorOf(
          "int32",
          [count, 3],
          Int32Array.from({ length: count * 3 }, (_, at) => at)
        )
        const b = yield* tensorOf(
          "int32",
          [3, count],
          Int32Array.from({ length: count * 3 }, (_, at) => 1000 * at)
        )
        yield* engine.reduce(a, [a, transposeTensor(b, 0, 1)], "sum")
        const expected = Int32Array.from(
          { length: count * 3 },
          (_, at) => at + 1000 * ((at % 3) * count + Math.floor(at / 3))
        )
        assert.deepStrictEqual(tensorBytes(a), new Uint8Array(expected.buffer))
      }
    })
  )

  it.effect("refuses no operands, other types and shapes, opaque types and partial overlap", () =>
    Effect.gen(function* () {
      const a = yield* f32(1, 2, 3, 4)
      const opaque = yield* engine.allocate("complex64", [4])
      const failure = (dst: Tensor, sources: ReadonlyArray<Tensor>) => Effect.flip(engine.reduce(dst, sources, "sum"))
      expectReason(yield* failure(a, []), "InvalidRequest")
      expectReason(yield* failure(a, [yield* f32(1)]), "InvalidRequest")
      expectReason(yield* failure(a, [yield* engine.allocate("int32", [4])]), "InvalidRequest")
      expectReason(yield* failure(opaque, [opaque]), "Unsupported")
      expectReason(yield* failure(yield* slice(a, [[0, 3]]), [yield* slice(a, [[1, 4]])]), "InvalidRequest")
      assert.deepStrictEqual(tensorBytes(a), new Uint8Array(Float32Array.of(1, 2, 3, 4).buffer))
    })
  )
})

describe("fill and quantization", () => {
  it.effect("fill sets the bytes of the view and no other", () =>
    Effect.gen(function* () {
      const tensor = yield* engine.allocate("int16", [3, 3])
      yield* engine.fill(
        yield* slice(tensor, [
          [0, 3],
          [1, 2]
        ]),
        7
      )
      const expected = new Uint8Array(18).fill(0xa5)
      for (const row of [0, 1, 2]) expected.fill(7, row * 6 + 2, row * 6 + 4)
      assert.deepStrictEqual(tensor.storage.bytes, expected)
      const packed = yield* engine.allocate("float4_e2m1fn", [3])
      yield* Effect.flip(engine.fill(packed, 0))
      const whole = yield* engine.allocate("float4_e2m1fn", [4])
      yield* engine.fill(whole, 0x21)
      assert.deepStrictEqual(whole.storage.bytes, Uint8Array.of(0x21, 0x21))
      for (const byte of [-1, 256, 0.5]) expectReason(yield* Effect.flip(engine.fill(tensor, byte)), "InvalidRequest")
      yield* engine.fill(yield* engine.allocate("int16", [0]), 7)
    })
  )

  it.effect("types without block scaling are refused", () =>
    Effect.gen(function* () {
      assert.deepStrictEqual(engine.capabilities.quantize, ["mxfp8", "fp8", "mxfp4", "nvfp4"])
      const data = yield* engine.allocate("float8_e4m3fn", [32])
      const scale = yield* engine.allocate("float8_e8m0fnu", [1])
      const quantized = {
        _tag: "QuantizedTensor",
        data,
        scale,
        recipe: { name: "mxfp8", block: [1, 32], rule: "rceil" }
      } as const
      const plain = yield* engine.allocate("float64", [32])
      expectReason(yield* Effect.flip(engine.quantize(plain, quantized)), "Unsupported")
      expectReason(yield* Effect.flip(engine.dequantize(quantized, plain)), "Unsupported")
    })
  )
})
