// SPDX-License-Identifier: Apache-2.0
/**
 * Compares an engine's conversions with recorded results of PyTorch, for every pair of element types of the data: edge
 * values bit by bit, and all 65536 inputs of 16-bit types by digest.
 *
 * Bit patterns in the data are hexadecimal numbers, most significant digit first. What PyTorch leaves open (NaN, infinity
 * and values out of range turned into integers) is not compared; of a NaN only that it is one.
 */
import { createHash } from "node:crypto"
import { bitsOf, DType, kindOf } from "@tensorferry/core/base/DType"
import { TensorEngine, type TensorEngineShape, type TensorError } from "@tensorferry/core/service/TensorEngine"
import type { CaseFailure } from "@tensorferry/testing/conformance/Case"
import { gatherElements, loadBytes, place, setElements } from "@tensorferry/testing/conformance/memory"
import { elementCodec } from "@tensorferry/testing/values/casts"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"

const Cast = Schema.Struct({
  src: DType,
  dst: DType,
  supported: Schema.Boolean,
  outputs: Schema.String,
  undefined: Schema.optionalKey(Schema.String),
  nan: Schema.optionalKey(Schema.String)
})

export const RecordedCasts = Schema.Struct({
  inputs: Schema.Record(Schema.String, Schema.String),
  casts: Schema.Array(Cast),
  exhaustive16: Schema.Array(Schema.Struct({ src: DType, dst: DType, sha256: Schema.String }))
})
export type RecordedCasts = typeof RecordedCasts.Type

const bytesPer = (dtype: DType): number => bitsOf(dtype) / 8

/** Elements from numbers to memory order or back: the bytes of each element are turned around. */
export const turned = (bytes: Uint8Array, size: number): Uint8Array => {
  const out = new Uint8Array(bytes.length)
  for (let at = 0; at < bytes.length; at++) out[at] = bytes[at - (at % size) + size - 1 - (at % size)]!
  return out
}

const fromHex = (text: string, dtype: DType): Uint8Array => turned(Buffer.from(text, "hex"), bytesPer(dtype))

const valueAt = (dtype: DType, bytes: Uint8Array, element: number): number =>
  Number(
    elementCodec(dtype)!.read(new DataView(bytes.buffer, bytes.byteOffset, bytes.length), element * bytesPer(dtype))
  )

const convert = (
  engine: TensorEngineShape,
  src: DType,
  dst: DType,
  input: Uint8Array
): Effect.Effect<Uint8Array, TensorError | CaseFailure, Scope.Scope> =>
  Effect.gen(function* () {
    const count = input.length / bytesPer(src)
    const source = yield* place(src, [count])
    yield* setElements(source, input)
    const target = yield* place(dst, [count])
    yield* engine.copy([{ dst: target.tensor, src: source.tensor }])
    return gatherElements(target.tensor, yield* loadBytes(target.whole))
  }).pipe(Effect.provideService(TensorEngine, engine))

const compareCast = (recorded: typeof Cast.Type, input: Uint8Array, output: Uint8Array): string | undefined => {
  const { src, dst } = recorded
  const expected = fromHex(recorded.outputs, dst)
  const size = bytesPer(dst)
  if (expected.length !== output.length) return `${output.length} bytes instead of ${expected.length}`
  for (let element = 0; element < output.length / size; element++) {
    if (recorded.undefined?.[element] === "1") continue
    const found = output.subarray(element * size, (element + 1) * size)
    const wanted = expected.subarray(element * size, (element + 1) * size)
    const isRight =
      recorded.nan?.[element] === "1"
        ? Number.isNaN(valueAt(dst, output, element))
        : Buffer.compare(found, wanted) === 0
    if (!isRight) {
      return `input ${valueAt(src, input, element)} gives ${valueAt(dst, output, element)} instead of ${valueAt(dst, expected, element)}`
    }
  }
  return undefined
}

const isInteger = (dtype: DType): boolean => kindOf(dtype) === "integer" || kindOf(dtype) === "unsigned"

const canonicalNaN: Partial<Record<DType, number>> = {
  float16: 0x7e00,
  bfloat16: 0x7fc0,
  float8_e5m2: 0x7e,
  float8_e4m3fn: 0x7f,
  float8_e8m0fnu: 0xff
}

/** Brings outputs into the form that digests were taken over: undefined ones zero, NaN canonical. */
const normalize = (src: DType, dst: DType, input: Uint8Array, output: Uint8Array): void => {
  const size = bytesPer(dst)
  const view = new DataView(output.buffer, output.byteOffset, output.length)
  if (kindOf(src) === "float" && isInteger(dst)) {
    const isUnsigned = kindOf(dst) === "unsigned"
    const bits = bitsOf(dst)
    const least = isUnsigned ? 0 : -(2 ** (bits - 1))
    // The data takes 2^63 for a value in range of int64: its largest value, as a float64, is that.
    const largest = 2 ** (isUnsigned ? bits : bits - 1) - 1
    for (let element = 0; element < output.length / size; element++) {
      const whole = Math.trunc(valueAt(src, input, element))
      if (!(whole >= least && whole <= largest)) output.fill(0, element * size, (element + 1) * size)
    }
  }
  if (kindOf(dst) !== "float") return
  for (let element = 0; element < output.length / size; element++) {
    if (!Number.isNaN(valueAt(dst, output, element))) continue
    if (dst === "float64") view.setBigUint64(element * 8, 0x7ff8000000000000n, true)
    else if (dst === "float32") view.setUint32(element * 4, 0x7fc00000, true)
    else if (size === 2) view.setUint16(element * 2, canonicalNaN[dst]!, true)
    else view.setUint8(element, canonicalNaN[dst]!)
  }
}

export interface CastVerdict {
  readonly name: string
  /** What is wrong, if anything. */
  readonly fault: string | undefined
}

/** One verdict per pair of types and per digest. */
export const checkCasts = (
  engine: TensorEngineShape,
  recorded: RecordedCasts
): Effect.Effect<ReadonlyArray<CastVerdict>, TensorError | CaseFailure> =>
  Effect.gen(function* () {
    const verdicts: Array<CastVerdict> = []
    for (const cast of recorded.casts) {
      if (!cast.supported) continue
      const input = fromHex(recorded.inputs[cast.src]!, cast.src)
      const output = yield* Effect.scoped(convert(engine, cast.src, cast.dst, input))
      verdicts.push({ name: `${cast.src} to ${cast.dst}`, fault: compareCast(cast, input, output) })
    }
    const every = new Uint8Array(Uint16Array.from({ length: 65_536 }, (_, value) => value).buffer)
    for (const { src, dst, sha256 } of recorded.exhaustive16) {
      const output = yield* Effect.scoped(convert(engine, src, dst, every))
      normalize(src, dst, every, output)
      const digest = createHash("sha256")
        .update(turned(output, bytesPer(dst)))
        .digest("hex")
      const fault = digest === sha256 ? undefined : "the digest over all inputs differs"
      verdicts.push({ name: `all of ${src} to ${dst}`, fault })
    }
    return verdicts
  })
