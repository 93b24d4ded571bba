// SPDX-License-Identifier: Apache-2.0
/**
 * Cases of `TensorEngine.addProduct`: width and order of sums, where roundings are, every form of memory, and what is refused.
 */
import type { DType } from "@tensorferry/core/base/DType"
import { elementCount, type Shape } from "@tensorferry/core/base/Region"
import { TensorEngine, type TensorEngineCapabilities } from "@tensorferry/core/service/TensorEngine"
import * as Effect from "effect/Effect"
import { sumWithProduct } from "../values/products.ts"
import { expectFailure, type TensorEngineCase } from "./Case.ts"
import { decode, encode, expectElements, expectPoison, type Form, place, setElements } from "./memory.ts"

const needsProducts = (capabilities: TensorEngineCapabilities): string | undefined =>
  capabilities.products ? undefined : "the engine adds no products"

/** Numbers over some powers of two, the same for a seed. */
const numbersOf = (shape: Shape, seed: number): Float32Array => {
  let state = (seed * 2_654_435_761) >>> 0
  const next = () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return state / 2 ** 32
  }
  return Float32Array.from({ length: elementCount(shape) }, () => (next() - 0.5) * 2 ** Math.floor(next() * 8 - 4))
}

interface Input {
  readonly rows: number
  readonly columns: number
  readonly rank: number
  readonly dtype: DType
  readonly factors: DType
  readonly scale?: number
  readonly forms?: readonly [destination: Form, base: Form, b: Form, a: Form]
  readonly values?: { readonly base: Float32Array; readonly b: Float32Array; readonly a: Float32Array }
  /** Writes over the base. */
  readonly inPlace?: boolean
}

const addOnce = Effect.fnUntraced(function* (what: string, input: Input) {
  const engine = yield* TensorEngine
  const { rows, columns, rank, dtype, factors, scale = 0.7, values, inPlace = false } = input
  const [to, of, down, across] = input.forms ?? (["dense", "dense", "dense", "dense"] as const)
  const shapes = { base: [rows, columns], b: [rows, rank], a: [rank, columns] }
  const bytes = {
    base: encode(dtype, values?.base ?? numbersOf(shapes.base, 1)),
    b: encode(factors, values?.b ?? numbersOf(shapes.b, 2)),
    a: encode(factors, values?.a ?? numbersOf(shapes.a, 3))
  }
  const placed = {
    base: yield* place(dtype, shapes.base, of),
    b: yield* place(factors, shapes.b, down),
    a: yield* place(factors, shapes.a, across)
  }
  for (const name of ["base", "b", "a"] as const) yield* setElements(placed[name], bytes[name])
  const destination = inPlace ? placed.base : yield* place(dtype, shapes.base, to)
  const product = { b: placed.b.tensor, a: placed.a.tensor, scale }
  yield* engine.addProduct(destination.tensor, placed.base.tensor, product)
  const expected = encode(
    dtype,
    sumWithProduct(decode(dtype, bytes.base), rows, columns, {
      b: decode(factors, bytes.b),
      a: decode(factors, bytes.a),
      rank,
      scale
    })
  )
  yield* expectElements(what, destination, expected)
  for (const name of inPlace ? (["b", "a"] as const) : (["base", "b", "a"] as const)) {
    yield* expectElements(`${what}: ${name} afterwards`, placed[name], bytes[name])
  }
})

const productCase = (name: string, program: TensorEngineCase["program"]): TensorEngineCase => ({
  name,
  requires: needsProducts,
  program: Effect.scoped(program)
})

const types = ["bfloat16", "float16", "float32"] as const

export const engineProductCases: ReadonlyArray<TensorEngineCase> = [
  productCase(
    "adds products to a base that stays as it is",
    Effect.gen(function* () {
      for (const dtype of types) {
        for (const factors of types) {
          for (const [rows, columns, rank] of [
            [1, 1, 1],
            [5, 7, 3],
            [33, 66, 8],
            [9, 1030, 64],
            [300, 5, 2],
            [4, 8, 0]
          ] as const) {
            yield* addOnce(`${dtype} [${rows},${columns}] by ${rank} ${factors}`, {
              rows,
              columns,
              rank,
              dtype,
              factors
            })
          }
        }
      }
    })
  ),
  productCase(
    "adds products of every form, also over the base",
    Effect.gen(function* () {
      const forms = ["dense", "padded", "transposed", "spread"] as const
      const shape = { rows: 13, columns: 27, rank: 5 }
      for (const [at, form] of forms.entries()) {
        const others = [1, 2, 3].map((by) => forms[(at + by) % 4]!) as [Form, Form, Form]
        for (const dtype of types) {
          const input = { ...shape, dtype, factors: "bfloat16" as const }
          yield* addOnce(`${form} ${dtype}`, { ...input, forms: [form, ...others] })
          yield* addOnce(`${form} ${dtype} over the base`, { ...input, forms: [form, form, form, form], inPlace: true })
        }
      }
    })
  ),
  productCase(
    "sums products in float64 in the order of the ranks",
    Effect.gen(function* () {
      // In float32 the small ones are lost beside the large ones; in float64 they stay.
      const [b, a] = [Float32Array.of(2 ** 14, 1, -(2 ** 14)), Float32Array.of(2 ** 14, 2 ** -4, 2 ** 14)]
      const base = Float32Array.of(0)
      yield* addOnce("Large, small, large", {
        ...{ rows: 1, columns: 1, rank: 3, dtype: "float32", factors: "float32", scale: 1 },
        values: { base, b, a }
      })
      // One rounding of the sum, one of the scaled sum, one of the sum with the base.
      yield* addOnce("Thirds", {
        ...{ rows: 1, columns: 3, rank: 2, dtype: "float32", factors: "float32", scale: 1 / 3 },
        values: {
          base: Float32Array.of(1, 2 ** 24, -1e-8),
          b: Float32Array.of(1 + 2 ** -23, 1 - 2 ** -24),
          a: Float32Array.of(1 + 2 ** -20, 3, 1e-8, 1 + 2 ** -21, 2 ** -24, 1e-7)
        }
      })
    })
  ),
  productCase(
    "refuses products that do not fit, and writes nothing",
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      const destination = yield* place("bfloat16", [6, 4])
      const base = (yield* place("bfloat16", [6, 4])).tensor
      const b = (yield* place("bfloat16", [6, 2])).tensor
      const a = (yield* place("bfloat16", [2, 4])).tensor
      const scale = 1
      const to = destination.tensor
      for (const [what, product, from] of [
        ["A rank too few", { b, a: { ...a, shape: [1, 4] }, scale }, base],
        ["Exchanged factors", { b: a, a: b, scale }, base],
        ["Factors of two types", { b, a: { ...a, dtype: "float16" }, scale }, base],
        ["A base of another shape", { b, a, scale }, { ...base, shape: [4, 6], strides: [6, 1] }],
        ["A base of another type", { b, a, scale }, { ...base, dtype: "float16" }],
        ["A vector", { b: { ...b, shape: [12], strides: [1] }, a, scale }, base],
        ["No number", { b, a, scale: Number.NaN }, base],
        ["A factor within the destination", { b: { ...to, shape: [6, 2] }, a, scale }, base],
        ["The base turned", { b, a, scale }, { ...to, strides: [1, 6] }]
      ] as const) {
        yield* expectFailure(what, engine.addProduct(to, from, product), ["InvalidRequest"])
      }
      const whole = (yield* place("int32", [6, 4])).tensor
      yield* expectFailure("Integers", engine.addProduct(whole, whole, { b, a, scale }), ["Unsupported"])
      yield* expectPoison("The destination", destination)
    })
  )
]
