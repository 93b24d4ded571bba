// SPDX-License-Identifier: Apache-2.0
/**
 * Compares an engine's quantization with recorded results, for every rule: data and scales bit by bit, and the values that
 * they stand for. Of a NaN only that it is one is compared.
 *
 * Bit patterns in the data are hexadecimal numbers, most significant digit first.
 */

import { bitsOf } from "@tensorferry/core/base/DType"
import { TensorEngine, type TensorEngineShape, type TensorError } from "@tensorferry/core/service/TensorEngine"
import {
  mxBlockSize,
  mxfp8Recipe,
  type QuantizedTensor,
  type ScaleRule,
  scaleShapeOf
} from "@tensorferry/core/tensor/QuantizedTensor"
import type { CaseFailure } from "@tensorferry/testing/conformance/Case"
import { gatherElements, loadBytes, place, setElements } from "@tensorferry/testing/conformance/memory"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import { turned } from "./dtypeCasts.ts"

const Variant = Schema.Struct({
  data: Schema.String,
  scales: Schema.String,
  dequantized_f32: Schema.String,
  undefined_blocks: Schema.optionalKey(Schema.Array(Schema.Int))
})

export const RecordedMxfp8 = Schema.Struct({
  cases: Schema.Array(
    Schema.Struct({
      id: Schema.Union([Schema.String, Schema.Int]),
      title: Schema.String,
      shape: Schema.Array(Schema.Int),
      dtype: Schema.Literals(["bfloat16", "float32", "float16"]),
      input: Schema.String,
      variants: Schema.optionalKey(Schema.Record(Schema.String, Variant)),
      error: Schema.optionalKey(Schema.Struct({ kind: Schema.String }))
    })
  )
})
export type RecordedMxfp8 = typeof RecordedMxfp8.Type
type RecordedCase = RecordedMxfp8["cases"][number]

export interface Mxfp8Verdict {
  readonly name: string
  /** What is wrong, if anything. */
  readonly fault: string | undefined
}

const fromHex = (text: string): Uint8Array => Uint8Array.from(Buffer.from(text, "hex"))
const isNaNData = (byte: number): boolean => (byte & 0x7f) === 0x7f
const isNaNBits = (bits: number): boolean => (bits & 0x7fffffff) > 0x7f800000

const compareVariant = (
  { data, scales, dequantized_f32, undefined_blocks = [] }: typeof Variant.Type,
  found: { readonly data: Uint8Array; readonly scales: Uint8Array; readonly values: Uint8Array }
): string | undefined => {
  const [wantedData, wantedScales, wantedValues] = [fromHex(data), fromHex(scales), turned(fromHex(dequantized_f32), 4)]
  if (wantedData.length !== found.data.length || wantedScales.length !== found.scales.length) {
    return `${found.data.length} and ${found.scales.length} bytes instead of ${wantedData.length} and ${wantedScales.length}`
  }
  const skipped = new Set(undefined_blocks)
  const valueOf = (bytes: Uint8Array, at: number) =>
    new DataView(bytes.buffer, bytes.byteOffset).getUint32(4 * at, true)
  for (let block = 0; block < wantedScales.length; block++) {
    if (skipped.has(block)) continue
    if (wantedScales[block] !== found.scales[block]) {
      return `scale ${block} is ${found.scales[block]} instead of ${wantedScales[block]}`
    }
    for (let at = block * mxBlockSize; at < (block + 1) * mxBlockSize; at++) {
      const [got, wanted] = [found.data[at]!, wantedData[at]!]
      if (got !== wanted && !(isNaNData(got) && isNaNData(wanted)))
        return `element ${at} is ${got} instead of ${wanted}`
      const [value, wantedValue] = [valueOf(found.values, at), valueOf(wantedValues, at)]
      if (value !== wantedValue && !(isNaNBits(value) && isNaNBits(wantedValue))) {
        return `element ${at} stands for bits 0x${value.toString(16)} instead of 0x${wantedValue.toString(16)}`
      }
    }
  }
  return undefined
}

const convert = (
  engine: TensorEngineShape,
  { shape, dtype, input }: RecordedCase,
  rule: ScaleRule,
  form: "dense" | "padded"
): Effect.Effect<Parameters<typeof compareVariant>[1], TensorError | CaseFailure, Scope.Scope> =>
  Effect.gen(function* () {
    const source = yield* place(dtype, shape, form)
    yield* setElements(source, turned(fromHex(input), bitsOf(dtype) / 8))
    const data = yield* place("float8_e4m3fn", shape, form)
    // Shapes that cannot be cut into blocks are recorded as errors; the engine is to refuse them.
    const scale = yield* place("float8_e8m0fnu", scaleShapeOf(mxfp8Recipe(), shape) ?? shape, form)
    const values = yield* place("float32", shape, form)
    const quantized: QuantizedTensor = {
      _tag: "QuantizedTensor",
      data: data.tensor,
      scale: scale.tensor,
      recipe: mxfp8Recipe(rule)
    }
    yield* engine.quantize(source.tensor, quantized)
    yield* engine.dequantize(quantized, values.tensor)
    return {
      data: gatherElements(data.tensor, yield* loadBytes(data.whole)),
      scales: gatherElements(scale.tensor, yield* loadBytes(scale.whole)),
      values: gatherElements(values.tensor, yield* loadBytes(values.whole))
    }
  }).pipe(Effect.provideService(TensorEngine, engine))

/** One verdict per case, rule and form of memory. */
export const checkMxfp8 = (
  engine: TensorEngineShape,
  recorded: RecordedMxfp8
): Effect.Effect<ReadonlyArray<Mxfp8Verdict>, TensorError | CaseFailure> =>
  Effect.gen(function* () {
    const verdicts: Array<Mxfp8Verdict> = []
    for (const each of recorded.cases) {
      const name = `${each.id} ${each.title}`
      if (each.error !== undefined) {
        const fault = yield* Effect.match(Effect.scoped(convert(engine, each, "rceil", "dense")), {
          onSuccess: () => "it is not refused",
          onFailure: (error) =>
            error._tag === "TensorError" && error.reason._tag === "InvalidRequest" ? undefined : error.message
        })
        verdicts.push({ name, fault })
        continue
      }
      for (const [rule, variant] of Object.entries(each.variants ?? {})) {
        for (const form of ["dense", "padded"] as const) {
          const found = yield* Effect.scoped(convert(engine, each, rule as ScaleRule, form))
          verdicts.push({ name: `${name}, ${rule}, ${form}`, fault: compareVariant(variant, found) })
        }
      }
    }
    return verdicts
  })
