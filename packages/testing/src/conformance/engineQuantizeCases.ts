// SPDX-License-Identifier: Apache-2.0
/**
 * Cases of block scaling: the scale rules at values where they part, every form of memory against the rules in
 * `testing/values/quantizing`, slices, and what is refused. They apply to engines that claim `mxfp8`.
 */

import { bitsOf, type DType } from "@tensorferry/core/base/DType"
import { rowMajorStrides, type Shape } from "@tensorferry/core/base/Region"
import { TensorEngine, type TensorEngineCapabilities } from "@tensorferry/core/service/TensorEngine"
import {
  mxBlockSize,
  mxfp8Recipe,
  type QuantizationRecipe,
  type QuantizedTensor,
  type ScaleRule,
  scaleRules,
  scaleShapeOf
} from "@tensorferry/core/tensor/QuantizedTensor"
import type { SourceType } from "@tensorferry/model/quantize/numbers"
import * as Effect from "effect/Effect"
import { quantizeValues, readValues } from "../values/quantizing.ts"
import { check, checkEqual, expectFailure, type TensorEngineCase } from "./Case.ts"
import {
  decode,
  encode,
  expectElements,
  expectPoison,
  type Form,
  gatherElements,
  loadBytes,
  type Placed,
  place,
  setElements
} from "./memory.ts"

const needsMxfp8 = (capabilities: TensorEngineCapabilities): string | undefined =>
  capabilities.quantize.includes("mxfp8") ? undefined : "the engine does not convert to block-scaled types"

/** The rules that go by the fastest loops; all others have the cases of every form. */
const kernelRules = scaleRules.slice(0, 3)

const sourceTypes = ["bfloat16", "float16", "float32"] as const

/** A float32 with these bits. */
const float32 = (bits: number): number => new Float32Array(Uint32Array.of(bits).buffer)[0]!

/** What the rule gives for elements in logical order. */
const expectedOf = (dtype: DType, elements: Uint8Array, rule: ScaleRule) => {
  const values = decode(dtype, elements)
  return quantizeValues(mxfp8Recipe(rule), values, [values.length], dtype as SourceType, "float8_e8m0fnu")
}

interface PlacedPair {
  readonly data: Placed
  readonly scale: Placed
  readonly quantized: QuantizedTensor
}

const placeQuantized = Effect.fnUntraced(function* (
  shape: Shape,
  recipe: QuantizationRecipe,
  form: Form = "dense",
  scaleForm: Form = form
) {
  const data = yield* place("float8_e4m3fn", shape, form)
  const scale = yield* place("float8_e8m0fnu", scaleShapeOf(recipe, shape)!, scaleForm)
  const quantized: QuantizedTensor = { _tag: "QuantizedTensor", data: data.tensor, scale: scale.tensor, recipe }
  return { data, scale, quantized } satisfies PlacedPair
})

/** Magnitudes over many powers of two, both signs, zeros and numbers below the normal ones. */
const mixedValues = (count: number, seed: number): Float32Array => {
  let state = (seed * 2654435761) >>> 0
  const next = () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    return state / 2 ** 32
  }
  return Float32Array.from({ length: count }, (_, at) => {
    const middle = Math.floor(at / mxBlockSize) % 7
    const spread = 2 ** Math.floor(next() * 24 - 12 + (middle - 3) * 40)
    const kind = next()
    if (kind < 0.03) return 0
    return (next() - 0.5) * spread
  })
}

const blockOf = (first: number, rest = 0): Float32Array => new Float32Array(mxBlockSize).fill(rest).fill(first, 0, 1)

const quantizeAndExpect = Effect.fnUntraced(function* (
  what: string,
  dtype: DType,
  shape: Shape,
  elements: Uint8Array,
  rule: ScaleRule,
  forms: { readonly source: Form; readonly data: Form; readonly scale: Form }
) {
  const engine = yield* TensorEngine
  const source = yield* place(dtype, shape, forms.source)
  yield* setElements(source, elements)
  const to = yield* placeQuantized(shape, mxfp8Recipe(rule), forms.data, forms.scale)
  yield* engine.quantize(source.tensor, to.quantized)
  const expected = expectedOf(dtype, elements, rule)
  yield* expectElements(`${what}: data by ${rule} from ${dtype}`, to.data, expected.data)
  yield* expectElements(`${what}: scales by ${rule} from ${dtype}`, to.scale, expected.scales)
  yield* expectElements(`${what}: the source`, source, elements)
  return to
})

const dense = { source: "dense", data: "dense", scale: "dense" } as const

/** Where the rules part: the scale byte of a block with one element that is not zero, and that element's byte. */
const landmarks: ReadonlyArray<{
  readonly value: number
  readonly rule: ScaleRule
  readonly scale: number
  readonly byte: number
}> = [
  { value: 1, rule: "ocp_floor", scale: 119, byte: 0x78 },
  { value: 1, rule: "rceil", scale: 119, byte: 0x78 },
  { value: 448, rule: "ocp_floor", scale: 127, byte: 0x7e },
  // One step above what 448 covers: the floor saturates, the ceiling takes the next power of two.
  { value: 480, rule: "ocp_floor", scale: 127, byte: 0x7e },
  { value: 480, rule: "rceil", scale: 128, byte: 0x77 },
  { value: -480, rule: "rceil_te", scale: 128, byte: 0xf7 },
  { value: 0, rule: "ocp_floor", scale: 0, byte: 0 },
  { value: 0, rule: "rceil", scale: 0, byte: 0 },
  { value: float32(0x0040_0000), rule: "ocp_floor", scale: 0, byte: 0x38 - 8 * 0 },
  { value: float32(0x0040_0000), rule: "rceil_te", scale: 0, byte: 0 },
  { value: Number.POSITIVE_INFINITY, rule: "ocp_floor", scale: 255, byte: 0x7f },
  { value: Number.NEGATIVE_INFINITY, rule: "rceil", scale: 255, byte: 0x7f },
  { value: Number.NEGATIVE_INFINITY, rule: "rceil_te", scale: 254, byte: 0xfe },
  { value: Number.NaN, rule: "rceil", scale: 255, byte: 0x7f }
]

const refusals: TensorEngineCase = {
  name: "refuses block scaling that does not fit, and writes nothing",
  requires: needsMxfp8,
  program: Effect.scoped(
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      const source = yield* place("bfloat16", [4, 64])
      yield* setElements(source, encode("bfloat16", mixedValues(256, 1)))
      const good = yield* placeQuantized([4, 64], mxfp8Recipe("rceil"))
      const { quantized } = good
      const cut = yield* place("bfloat16", [4, 48])
      const odd = yield* placeQuantized([4, 96], mxfp8Recipe("rceil"))
      const invalid = (what: string, from: Placed["tensor"], to: QuantizedTensor) =>
        expectFailure(what, engine.quantize(from, to), ["InvalidRequest"])
      yield* invalid("A row of 48 elements", cut.tensor, {
        ...quantized,
        data: { ...quantized.data, shape: [4, 48] }
      })
      yield* invalid("Data of another shape", source.tensor, odd.quantized)
      yield* invalid("Scales of another shape", source.tensor, { ...quantized, scale: odd.quantized.scale })
      yield* invalid("Data of another type", source.tensor, {
        ...quantized,
        data: { ...quantized.data, dtype: "float8_e5m2" }
      })
      yield* invalid("Scales over the data", source.tensor, {
        ...quantized,
        scale: { ...quantized.scale, storage: quantized.data.storage, byteOffset: quantized.data.byteOffset }
      })
      const shared = <T extends { readonly strides: ReadonlyArray<number> }>(tensor: T) => ({
        ...tensor,
        strides: [0, 1]
      })
      yield* invalid("Data that shares memory", source.tensor, { ...quantized, data: shared(quantized.data) })
      yield* invalid("Scales that share memory", source.tensor, { ...quantized, scale: shared(quantized.scale) })
      const back = engine.dequantize(quantized, shared(source.tensor))
      yield* expectFailure("Dequantizing into rows that share memory", back, ["InvalidRequest"])
      const integers = yield* place("int16", [4, 64])
      const unsupported = (what: string, from: Placed["tensor"], to: QuantizedTensor) =>
        expectFailure(what, engine.quantize(from, to), ["Unsupported"])
      yield* unsupported("Integers", integers.tensor, quantized)
      yield* unsupported("Swizzled scales", source.tensor, { ...quantized, recipe: mxfp8Recipe("rceil", "swizzled") })
      const foreign = { ...quantized, recipe: { ...quantized.recipe, rule: "round" as ScaleRule } }
      yield* unsupported("A rule that nobody knows", source.tensor, foreign)
      yield* expectFailure("Dequantizing by it", engine.dequantize(foreign, source.tensor), ["Unsupported"])
      const gone = yield* Effect.scoped(engine.allocate("bfloat16", [4, 64]))
      yield* expectFailure("A freed source", engine.quantize(gone, quantized), ["FreedStorage"])
      yield* expectPoison("A refused destination", good.data)
      yield* expectPoison("Its scales", good.scale)
      yield* engine.quantize(source.tensor, quantized)
      // Scales that are only read may share memory.
      yield* engine.dequantize({ ...quantized, scale: shared(quantized.scale) }, source.tensor)
    })
  )
}

/** Quantized forms by every rule, bit by bit, and back. */
export const engineQuantizeCases: ReadonlyArray<TensorEngineCase> = [
  {
    name: "quantizes by the named scale rule",
    requires: needsMxfp8,
    program: Effect.scoped(
      Effect.forEach(
        landmarks,
        Effect.fnUntraced(function* ({ value, rule, scale, byte }) {
          const to = yield* quantizeAndExpect(
            `a block of ${value}`,
            "float32",
            [mxBlockSize],
            encode("float32", blockOf(value)),
            rule,
            dense
          )
          const found = gatherElements(to.scale.tensor, yield* loadBytes(to.scale.whole))[0]
          yield* checkEqual(`The scale of ${value} by ${rule}`, found, scale)
          const first = gatherElements(to.data.tensor, yield* loadBytes(to.data.whole))[0]
          yield* checkEqual(`The element of ${value} by ${rule}`, first, byte)
        }),
        { discard: true }
      )
    )
  },
  {
    name: "quantizes every exponent, from every type, by every rule",
    requires: needsMxfp8,
    program: Effect.scoped(
      Effect.forEach(
        sourceTypes.flatMap((dtype) => kernelRules.map((rule) => [dtype, rule] as const)),
        Effect.fnUntraced(function* ([dtype, rule]) {
          // One block per exponent, mantissas around the thresholds of rounding, and some without any element.
          const blocks = 256
          const values = Float32Array.from({ length: blocks * mxBlockSize }, (_, at) => {
            const exponent = Math.floor(at / mxBlockSize)
            const mantissa = ((at % mxBlockSize) * 0x3_a5e7 + exponent * 0x2_1003) & 0x7f_ffff
            const sign = at % 3 === 0 ? 0x8000_0000 : 0
            const lower = Math.max(exponent - (at % 9), 0)
            return exponent === 255 && at % mxBlockSize > 0 ? 1 : float32((sign | (lower << 23) | mantissa) >>> 0)
          })
          yield* Effect.scoped(
            quantizeAndExpect("every exponent", dtype, [blocks * mxBlockSize], encode(dtype, values), rule, dense)
          )
        }),
        { discard: true }
      )
    )
  },
  {
    name: "quantizes strided sources into strided destinations",
    requires: needsMxfp8,
    program: Effect.scoped(
      Effect.gen(function* () {
        const forms: ReadonlyArray<Form> = ["dense", "padded", "transposed", "spread"]
        let seed = 0
        for (const source of forms) {
          for (const data of forms) {
            const scale = forms[seed % forms.length]!
            const dtype = sourceTypes[seed % sourceTypes.length]!
            const rule = kernelRules[seed % kernelRules.length]!
            const shape = [[3, 64], [2, 3, 32], [96], [5, 1, 160]][seed % 4]!
            const count = shape.reduce((product, length) => product * length, 1)
            const elements = encode(dtype, mixedValues(count, ++seed))
            yield* Effect.scoped(quantizeAndExpect(source, dtype, shape, elements, rule, { source, data, scale }))
          }
        }
      })
    )
  },
  {
    name: "quantizes a slice like the same part of the whole",
    requires: needsMxfp8,
    program: Effect.scoped(
      Effect.gen(function* () {
        const engine = yield* TensorEngine
        const shape = [6, 128] as const
        const elements = encode("bfloat16", mixedValues(6 * 128, 7))
        const source = yield* place("bfloat16", shape)
        yield* setElements(source, elements)
        const whole = yield* placeQuantized(shape, mxfp8Recipe("rceil"))
        const pieces = [
          [0, 2, 0, 128],
          [2, 6, 0, 32],
          [2, 6, 32, 128]
        ] as const
        for (const [top, bottom, left, right] of pieces) {
          const part = (tensor: Placed["tensor"], columns: number, size: number, unit: number) => ({
            ...tensor,
            shape: [bottom - top, (right - left) / unit],
            strides: rowMajorStrides([shape[0], columns]),
            byteOffset: tensor.byteOffset + (top * columns + left / unit) * size
          })
          yield* engine.quantize(part(source.tensor, 128, 2, 1), {
            ...whole.quantized,
            data: part(whole.quantized.data, 128, 1, 1),
            scale: part(whole.quantized.scale, 4, 1, mxBlockSize)
          })
        }
        const expected = expectedOf("bfloat16", elements, "rceil")
        yield* expectElements("The data of three slices", whole.data, expected.data)
        yield* expectElements("The scales of three slices", whole.scale, expected.scales)
      })
    )
  },
  {
    name: "quantizes many blocks",
    requires: needsMxfp8,
    program: Effect.scoped(
      Effect.forEach(
        [
          ["bfloat16", [513, 160]],
          ["float32", [70, 1056]]
        ] as const,
        ([dtype, shape]) => {
          const elements = encode(dtype, mixedValues(shape[0] * shape[1], 11))
          return Effect.scoped(quantizeAndExpect("many blocks", dtype, shape, elements, "rceil", dense))
        },
        { discard: true }
      )
    )
  },
  {
    name: "dequantizes every element under every scale",
    requires: needsMxfp8,
    program: Effect.scoped(
      Effect.forEach(
        sourceTypes,
        Effect.fnUntraced(function* (dtype) {
          const engine = yield* TensorEngine
          for (const form of ["dense", "spread"] as const) {
            const shape = [256, 256]
            const from = yield* placeQuantized(shape, mxfp8Recipe("rceil"), form)
            const data = Uint8Array.from({ length: 256 * 256 }, (_, at) => at & 0xff)
            // Rows go through all scales; the blocks of a row have neighbouring ones.
            const scales = Uint8Array.from({ length: 256 * 8 }, (_, at) => (Math.floor(at / 8) + (at % 8)) & 0xff)
            yield* setElements(from.data, data)
            yield* setElements(from.scale, scales)
            const to = yield* place(dtype, shape, form)
            yield* engine.dequantize(from.quantized, to.tensor)
            const values = readValues(from.quantized.recipe, { data, scales }, shape, "float8_e8m0fnu")
            const expected = encode(dtype, values)
            const found = gatherElements(to.tensor, yield* loadBytes(to.whole))
            const size = bitsOf(dtype) / 8
            const numbers = decode(dtype, found)
            const wrong = values.findIndex((value, at) => {
              if (Number.isNaN(value)) return !Number.isNaN(numbers[at])
              return found.subarray(at * size, (at + 1) * size).some((byte, k) => byte !== expected[at * size + k])
            })
            yield* check(
              wrong < 0,
              () =>
                `${dtype} ${form}: element ${data[wrong]} under scale ${scales[Math.floor(wrong / mxBlockSize)]} is ` +
                `${numbers[wrong]} instead of ${values[wrong]}.`
            )
          }
        }),
        { discard: true }
      )
    )
  },
  {
    name: "block-scales tensors without elements",
    requires: needsMxfp8,
    program: Effect.scoped(
      Effect.gen(function* () {
        const engine = yield* TensorEngine
        for (const shape of [[0], [0, 32], [3, 0], [2, 0, 64]]) {
          const source = yield* place("bfloat16", shape)
          const to = yield* placeQuantized(shape, mxfp8Recipe("rceil"))
          yield* engine.quantize(source.tensor, to.quantized)
          yield* engine.dequantize(to.quantized, source.tensor)
          yield* expectPoison("Data of a tensor without elements", to.data)
          yield* expectPoison("Scales of a tensor without elements", to.scale)
          yield* expectPoison("A tensor without elements", source)
        }
      })
    )
  },
  refusals
]
