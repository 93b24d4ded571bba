// SPDX-License-Identifier: Apache-2.0
/**
 * Cases of `TensorEngine.reduce`: order of operands, width of the accumulator, number of roundings.
 */

import type { DType } from "@tensorferry/core/base/DType"
import { type ReduceOp, TensorEngine, type TensorEngineCapabilities } from "@tensorferry/core/service/TensorEngine"
import * as Effect from "effect/Effect"
import { elementCodec } from "../values/casts.ts"
import { check, type TensorEngineCase } from "./Case.ts"
import { expectElements, type Form, loadBytes, patternFor, place, setElements } from "./memory.ts"

const needsReduce = (capabilities: TensorEngineCapabilities): string | undefined =>
  capabilities.reduce ? undefined : "the engine does not reduce"

const encode = (dtype: DType, values: ReadonlyArray<number>): Uint8Array => {
  const codec = elementCodec(dtype)!
  const bytes = new Uint8Array(values.length * 8)
  const view = new DataView(bytes.buffer)
  const size = dtype === "float64" || dtype === "int64" ? 8 : dtype === "float32" || dtype === "int32" ? 4 : 2
  for (const [at, value] of values.entries()) codec.write(view, at * size, value)
  return bytes.slice(0, values.length * size)
}

/** Operands by element: `operands[k][i]` is element i of operand k. */
const reduceOnce = Effect.fnUntraced(function* (
  dtype: DType,
  op: ReduceOp,
  operands: ReadonlyArray<ReadonlyArray<number>>,
  expected: ReadonlyArray<number>,
  form: Form = "dense"
) {
  const engine = yield* TensorEngine
  const shape = [expected.length]
  const sources = yield* Effect.forEach(operands, (values) =>
    Effect.tap(place(dtype, shape, form), (placed) => setElements(placed, encode(dtype, values)))
  )
  const dst = yield* place(dtype, shape, form)
  yield* engine.reduce(
    dst.tensor,
    sources.map((source) => source.tensor),
    op
  )
  yield* expectElements(`${op} of ${operands.length} operands`, dst, encode(dtype, expected))
  for (const [at, source] of sources.entries()) {
    yield* expectElements("An operand afterwards", source, encode(dtype, operands[at]!))
  }
})

const reduceCase = (name: string, program: TensorEngineCase["program"]): TensorEngineCase => ({
  name,
  requires: needsReduce,
  program: Effect.scoped(program)
})

/** Reductions in the order given, bit by bit. */
export const engineReduceCases: ReadonlyArray<TensorEngineCase> = [
  reduceCase(
    "reduces in the order given",
    Effect.gen(function* () {
      yield* reduceOnce("float32", "sum", [[1e8], [-1e8], [1]], [1])
      yield* reduceOnce("float32", "sum", [[1], [-1e8], [1e8]], [0])
      yield* reduceOnce("float64", "sum", [[1e17], [-1e17], [1]], [1])
      yield* reduceOnce("float32", "product", [[1e30], [1e30], [1e-30]], [Number.POSITIVE_INFINITY])
      yield* reduceOnce(
        "float32",
        "product",
        [[1e30], [1e-30], [2]],
        [Math.fround(Math.fround(1e30) * Math.fround(1e-30)) * 2]
      )
    })
  ),
  reduceCase(
    "accumulates 16-bit floats in float32 with one rounding",
    Effect.gen(function* () {
      yield* reduceOnce("bfloat16", "sum", [[256], [1], [1]], [258])
      yield* reduceOnce("float16", "sum", [[2048], [1], [1]], [2050])
      yield* reduceOnce("bfloat16", "avg", [[256], [1], [1], [2]], [65])
      yield* reduceOnce("float16", "product", [[300], [300], [0.01]], [300 * 300 * 0.01000213623046875])
    })
  ),
  reduceCase(
    "reduces with every operation",
    Effect.gen(function* () {
      yield* reduceOnce(
        "float32",
        "sum",
        [
          [1, 2, -3],
          [4, 5, 6],
          [7, 8, 9]
        ],
        [12, 15, 12]
      )
      yield* reduceOnce(
        "float32",
        "avg",
        [
          [1, 3],
          [2, 6]
        ],
        [1.5, 4.5]
      )
      yield* reduceOnce(
        "float32",
        "max",
        [
          [1, -2],
          [3, -5]
        ],
        [3, -2]
      )
      yield* reduceOnce(
        "float32",
        "min",
        [
          [1, -2],
          [3, -5]
        ],
        [1, -5]
      )
      yield* reduceOnce(
        "int32",
        "sum",
        [
          [0x7fff_ffff, 1],
          [1, 2]
        ],
        [-0x8000_0000, 3]
      )
      yield* reduceOnce(
        "int32",
        "avg",
        [
          [1, -1],
          [2, -2]
        ],
        [1, -1]
      )
      yield* reduceOnce(
        "int16",
        "max",
        [
          [-5, 7],
          [-6, 9]
        ],
        [-5, 9]
      )
      yield* reduceOnce(
        "int32",
        "product",
        [
          [3, 65_536],
          [-5, 65_536]
        ],
        [-15, 0]
      )
    })
  ),
  reduceCase(
    "reduces one operand, many operands and odd sizes",
    Effect.gen(function* () {
      yield* reduceOnce("float32", "sum", [[1.5, 2.5]], [1.5, 2.5])
      for (const length of [1, 2, 3, 15, 16, 17, 257]) {
        const ramp = Array.from({ length }, (_, at) => at)
        yield* reduceOnce(
          "float32",
          "sum",
          Array.from({ length: 9 }, () => ramp),
          ramp.map((value) => value * 9)
        )
      }
    })
  ),
  reduceCase(
    "reduces strided operands",
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      const a = yield* place("int16", [5, 3], "transposed")
      const b = yield* place("int16", [5, 3], "spread")
      const dst = yield* place("int16", [5, 3], "padded")
      const [left, right] = [patternFor(a.tensor, 1), patternFor(b.tensor, 2)]
      yield* setElements(a, left)
      yield* setElements(b, right)
      yield* engine.reduce(dst.tensor, [a.tensor, b.tensor], "sum")
      const sum = new Uint8Array(left.byteLength)
      const views = [left, right, sum].map((bytes) => new DataView(bytes.buffer))
      for (let at = 0; at < sum.byteLength; at += 2) {
        views[2]!.setInt16(at, views[0]!.getInt16(at, true) + views[1]!.getInt16(at, true), true)
      }
      yield* expectElements("Sum of two forms", dst, sum)
    })
  ),
  reduceCase(
    "gives NaN where an operand is NaN",
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      for (const op of ["sum", "max", "min"] as const) {
        for (const values of [
          [Number.NaN, 1],
          [1, Number.NaN]
        ]) {
          const sources = yield* Effect.forEach(values, (value) =>
            Effect.tap(place("float32", [1]), (placed) => setElements(placed, encode("float32", [value])))
          )
          const dst = yield* place("float32", [1])
          yield* engine.reduce(
            dst.tensor,
            sources.map((source) => source.tensor),
            op
          )
          const bytes = yield* loadBytes(dst.whole)
          const result = new DataView(bytes.buffer).getFloat32(dst.tensor.byteOffset, true)
          yield* check(Number.isNaN(result), () => `${op} of ${values.join(" and ")} is ${result} instead of NaN.`)
        }
      }
    })
  ),
  reduceCase(
    "does nothing for zero-size operands",
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      const a = yield* place("float32", [3, 0])
      const dst = yield* place("float32", [3, 0])
      yield* engine.reduce(dst.tensor, [a.tensor, a.tensor], "sum")
      yield* expectElements("Zero-size sum", dst, new Uint8Array(0))
    })
  )
]
