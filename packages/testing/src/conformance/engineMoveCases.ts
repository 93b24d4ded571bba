// SPDX-License-Identifier: Apache-2.0
/**
 * Cases of `TensorEngine.copy` between equal types, `fill` and memory: the right bytes in the right places, and no other.
 */

import { byteLengthOf, dtypes, isSubByte } from "@tensorferry/core/base/DType"
import { elementCount, formatShape, type Shape } from "@tensorferry/core/base/Region"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { type Move, transposeTensor } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"
import { check, checkEqual, type TensorEngineCase } from "./Case.ts"
import {
  expectElements,
  expectPoison,
  type Form,
  loadBytes,
  patternBytes,
  patternFor,
  place,
  setElements,
  setPoison,
  storeBytes,
  viewOf
} from "./memory.ts"

/** Copies a pattern between two forms and judges all bytes of the destination. */
const copyOnce = Effect.fnUntraced(function* (
  dtype: (typeof dtypes)[number],
  shape: Shape,
  from: Form,
  to: Form,
  seed = shape.length
) {
  const engine = yield* TensorEngine
  const src = yield* place(dtype, shape, from)
  const dst = yield* place(dtype, shape, to)
  const elements = patternFor(src.tensor, seed)
  yield* setElements(src, elements)
  yield* engine.copy([{ dst: dst.tensor, src: src.tensor }])
  yield* expectElements(`Copy from ${from} to ${to}`, dst, elements)
  yield* expectElements("The source afterwards", src, elements)
})

const forms: ReadonlyArray<Form> = ["dense", "padded", "transposed", "spread"]
const widths = ["uint8", "int16", "float32", "float64"] as const

const scoped = (name: string, program: TensorEngineCase["program"]): TensorEngineCase => ({
  name,
  program: Effect.scoped(program)
})

/** Which elements a copy takes, and where it puts them. */
const layouts: ReadonlyArray<TensorEngineCase> = [
  scoped(
    "copies dense tensors of every length",
    Effect.forEach(
      [1, 2, 3, 7, 15, 16, 17, 31, 63, 64, 65, 251, 4095, 4096, 4097, 65_537],
      (length) => copyOnce("uint8", [length], "dense", "dense", length),
      { discard: true }
    )
  ),
  scoped(
    "copies strided regions",
    Effect.forEach(
      forms.flatMap((from) => forms.flatMap((to) => widths.map((dtype) => ({ from, to, dtype })))),
      ({ from, to, dtype }) =>
        Effect.forEach(
          [
            [5, 7],
            [1, 13],
            [13, 1],
            [3, 5, 2]
          ] as ReadonlyArray<Shape>,
          (shape) => copyOnce(dtype, shape, from, to),
          {
            discard: true
          }
        ),
      { discard: true }
    )
  ),
  scoped(
    "copies transposed views in logical order",
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      const src = yield* place("uint8", [4, 4])
      const dst = yield* place("uint8", [4, 4])
      yield* setElements(
        src,
        Uint8Array.from({ length: 16 }, (_, at) => at)
      )
      yield* engine.copy([{ dst: dst.tensor, src: transposeTensor(src.tensor, 0, 1) }])
      const columns = Uint8Array.from({ length: 16 }, (_, at) => (at % 4) * 4 + Math.floor(at / 4))
      yield* expectElements("x.T into dense memory", dst, columns)
      yield* setPoison(dst)
      yield* engine.copy([{ dst: transposeTensor(dst.tensor, 0, 1), src: src.tensor }])
      yield* expectElements("x into a transposed view", dst, columns)
    })
  ),
  scoped(
    "copies tensors of many dimensions",
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      const src = yield* place("int16", [2, 3, 1, 4, 2, 3])
      const dst = yield* place("int16", [3, 2, 4, 1, 2, 3], "padded")
      const elements = patternFor(src.tensor, 3)
      yield* setElements(src, elements)
      const view = transposeTensor(transposeTensor(src.tensor, 0, 1), 2, 3)
      yield* engine.copy([{ dst: dst.tensor, src: view }])
      const expected = new Uint8Array(elements.byteLength)
      let at = 0
      for (let a = 0; a < 3; a++)
        for (let b = 0; b < 2; b++)
          for (let c = 0; c < 4; c++)
            for (let e = 0; e < 2; e++)
              for (let f = 0; f < 3; f++) {
                const from = (((b * 3 + a) * 4 + c) * 2 + e) * 3 + f
                expected.set(elements.subarray(from * 2, from * 2 + 2), at++ * 2)
              }
      yield* expectElements("Two pairs of dimensions exchanged", dst, expected)
    })
  ),
  scoped(
    "copies scalars",
    Effect.forEach(widths, (dtype) => copyOnce(dtype, [], "dense", "dense"), { discard: true })
  ),
  scoped(
    "does nothing for zero-size tensors",
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      for (const shape of [[0], [1, 0, 2], [0, 3], [3, 0]] as ReadonlyArray<Shape>) {
        const allocated = yield* engine.allocate("float32", shape)
        yield* check(
          allocated.shape.length === shape.length && elementCount(allocated.shape) === 0,
          () => `A tensor of shape ${formatShape(shape)} was allocated as ${formatShape(allocated.shape)}.`
        )
        yield* engine.fill(allocated, 1)
        for (const form of forms) {
          const src = yield* place("float32", shape, form)
          const dst = yield* place("float32", shape, form)
          yield* engine.copy([
            { dst: dst.tensor, src: src.tensor },
            { dst: allocated, src: src.tensor }
          ])
          yield* engine.fill(dst.tensor, 0)
          yield* expectPoison(`Zero-size ${formatShape(shape)}`, dst)
        }
      }
      yield* engine.copy([])
    })
  )
]

/** What a copy keeps of the bits, and what it leaves alone. */
const contents: ReadonlyArray<TensorEngineCase> = [
  scoped(
    "copies every element type as bits",
    Effect.forEach(
      dtypes.filter((dtype) => !isSubByte(dtype)),
      (dtype) =>
        Effect.andThen(
          copyOnce(dtype, [7, 5], "dense", "padded", 11),
          copyOnce(dtype, [5, 3], "transposed", "dense", 12)
        ),
      { discard: true }
    )
  ),
  scoped(
    "keeps NaN payloads",
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      for (const [dtype, bytes] of [
        ["float32", [1, 0, 0x80, 0x7f, 0x45, 0x23, 0x81, 0xff, 0xff, 0xff, 0xff, 0xff]],
        ["float64", [1, 0, 0, 0, 0, 0, 0xf0, 0x7f, 9, 8, 7, 6, 5, 4, 0xf3, 0xff]],
        ["float16", [1, 0x7c, 0x23, 0xfd]],
        ["bfloat16", [0x81, 0x7f, 0xc1, 0xff]]
      ] as const) {
        const elements = Uint8Array.from(bytes)
        const shape = [elements.byteLength / byteLengthOf(dtype, 1)]
        for (const form of ["dense", "spread"] as const) {
          const src = yield* place(dtype, shape, form)
          const dst = yield* place(dtype, shape)
          yield* setElements(src, elements)
          yield* engine.copy([{ dst: dst.tensor, src: src.tensor }])
          yield* expectElements("Signalling and quiet NaNs", dst, elements)
        }
      }
    })
  ),
  scoped(
    "copies sub-byte elements along whole bytes",
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      for (const [dtype, shape] of [
        ["float4_e2m1fn", [3, 6]],
        ["float6_e2m3fn", [2, 4]],
        ["float6_e3m2fn", [5, 8]]
      ] as const) {
        const src = yield* place(dtype, shape)
        const dst = yield* place(dtype, shape)
        const elements = patternFor(src.tensor, 5)
        yield* setElements(src, elements)
        yield* engine.copy([{ dst: dst.tensor, src: src.tensor }])
        yield* expectElements("Dense sub-byte elements", dst, elements)
      }
      // Rows of four elements out of rows of eight: two bytes of four, with a gap.
      const src = yield* place("float4_e2m1fn", [3, 8])
      const dst = yield* place("float4_e2m1fn", [3, 4])
      yield* setElements(src, patternBytes(12, 1))
      const row = yield* viewOf(src.tensor.storage, "float4_e2m1fn", [3, 4], {
        strides: [8, 1],
        byteOffset: src.tensor.byteOffset
      })
      yield* engine.copy([{ dst: dst.tensor, src: row }])
      const bytes = patternBytes(12, 1)
      yield* expectElements("Half rows", dst, Uint8Array.from([0, 1, 4, 5, 8, 9].map((at) => bytes[at]!)))
    })
  ),
  scoped(
    "touches nothing outside of the destination",
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      for (const dtype of widths) {
        const src = yield* place(dtype, [3])
        const dst = yield* place(dtype, [5, 9])
        yield* setElements(src, patternFor(src.tensor, 1))
        const size = byteLengthOf(dtype, 1)
        const inner = yield* viewOf(dst.tensor.storage, dtype, [3], {
          strides: [9],
          byteOffset: dst.tensor.byteOffset + 13 * size
        })
        yield* engine.copy([{ dst: inner, src: src.tensor }])
        yield* expectElements("One column of a matrix", { ...dst, tensor: inner }, patternFor(src.tensor, 1))
      }
    })
  ),
  scoped(
    "copies a batch of 1000 moves",
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      const total = Array.from({ length: 1000 }, (_, at) => 1 + (at % 13)).reduce((sum, length) => sum + length, 0)
      const src = yield* place("uint8", [total])
      const dst = yield* place("uint8", [total])
      const elements = patternFor(src.tensor, 21)
      yield* setElements(src, elements)
      const moves: Array<Move> = []
      const expected = new Uint8Array(total)
      let from = 0
      for (let at = 0; at < 1000; at++) {
        const length = 1 + (at % 13)
        const to = total - from - length
        const at0 = { byteOffset: src.tensor.byteOffset + from }
        moves.push({
          src: yield* viewOf(src.tensor.storage, "uint8", [length], at0),
          dst: yield* viewOf(dst.tensor.storage, "uint8", [length], { byteOffset: dst.tensor.byteOffset + to })
        })
        expected.set(elements.subarray(from, from + length), to)
        from += length
      }
      yield* engine.copy(moves)
      yield* expectElements("1000 moves in reverse order", dst, expected)
    })
  ),
  scoped(
    "copies a region onto itself",
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      const placed = yield* place("float32", [5, 3], "padded")
      const elements = patternFor(placed.tensor, 2)
      yield* setElements(placed, elements)
      yield* engine.copy([{ dst: placed.tensor, src: placed.tensor }])
      yield* expectElements("The same region", placed, elements)
    })
  )
]

/** Memory, filling, interruption and fences. */
const lifecycle: ReadonlyArray<TensorEngineCase> = [
  scoped(
    "fills every byte of the elements and no other",
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      for (const form of forms) {
        for (const dtype of widths) {
          const placed = yield* place(dtype, [5, 7], form)
          yield* engine.fill(placed.tensor, 0x3c)
          const bytes = byteLengthOf(dtype, 35)
          yield* expectElements(`Fill ${form}`, placed, new Uint8Array(bytes).fill(0x3c))
        }
      }
    })
  ),
  scoped(
    "allocates dense memory of its own and frees it with the scope",
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      const scope = yield* Scope.make()
      const [a, b] = yield* Scope.provide(
        Effect.all([engine.allocate("float32", [3, 5]), engine.allocate("float32", [3, 5])]),
        scope
      )
      yield* checkEqual("The strides of a new tensor", a.strides.join(","), "5,1")
      yield* checkEqual("Storage of its own", a.storage.generation !== b.storage.generation, true)
      yield* check(a.storage.byteLength - a.byteOffset >= 60, () => "The storage is shorter than the tensor.")
      yield* checkEqual(
        "The family of new memory",
        engine.deviceFamilies.includes(a.device.family) || engine.deviceFamilies.includes("*"),
        true
      )
      yield* checkEqual(
        "Bytes that the host sees, as the capabilities say",
        a.storage.bytes !== undefined,
        engine.capabilities.hostVisible
      )
      yield* Scope.close(scope, Exit.void)
      yield* checkEqual("Freed with its scope", a.storage.isFreed() && b.storage.isFreed(), true)
    })
  ),
  scoped(
    "wraps the caller's bytes without copying them",
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      const bytes = patternBytes(40, 9)
      const storage = yield* engine.wrapHost(bytes)
      const host = yield* viewOf(storage, "uint8", [40])
      const placed = yield* place("uint8", [40])
      yield* engine.copy([{ dst: placed.tensor, src: host }])
      yield* expectElements("From wrapped memory", placed, patternBytes(40, 9))
      yield* setElements(placed, patternBytes(40, 10))
      yield* engine.copy([{ dst: host, src: placed.tensor }])
      yield* check(
        Buffer.compare(bytes, patternBytes(40, 10)) === 0,
        () => "Bytes copied into wrapped memory did not reach the caller's array."
      )
    })
  ),
  scoped(
    "stops writing when interrupted",
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      const src = yield* place("uint8", [640, 480], "transposed")
      const dst = yield* place("uint8", [640, 480])
      const elements = patternFor(src.tensor, 4)
      yield* setElements(src, elements)
      const fiber = yield* Effect.forkChild(engine.copy([{ dst: dst.tensor, src: src.tensor }]), {
        startImmediately: true
      })
      yield* Fiber.interrupt(fiber)
      yield* setPoison(dst)
      for (let turn = 0; turn < 20; turn++) yield* Effect.yieldNow
      const other = yield* place("uint8", [640, 480])
      yield* engine.copy([{ dst: other.tensor, src: src.tensor }])
      yield* (yield* engine.fence).await
      yield* expectElements("A copy after an interrupted one", other, elements)
      yield* expectPoison("The destination of the interrupted copy, poisoned after its end", dst)
    })
  ),
  scoped(
    "fences end after earlier work",
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      const src = yield* place("float32", [257, 3])
      const dst = yield* place("float32", [257, 3], "padded")
      const elements = patternFor(src.tensor, 8)
      yield* setElements(src, elements)
      yield* engine.copy([{ dst: dst.tensor, src: src.tensor }])
      yield* (yield* engine.fence).await
      yield* expectElements("Copied before the fence", dst, elements)
      const bytes = yield* loadBytes(src.whole)
      yield* storeBytes(src.whole, bytes)
      yield* expectElements("The source, read and written back", src, elements)
    })
  )
]

/** Copies within an engine's memory, of every stride. */
export const engineMoveCases: ReadonlyArray<TensorEngineCase> = [...layouts, ...contents, ...lifecycle]
