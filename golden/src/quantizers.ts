// SPDX-License-Identifier: Apache-2.0
/**
 * Compares the codes and scales that our quantizers make with those that the reference implementations made of the same
 * values, bit by bit and rule by rule. Of a NaN only that it is one is compared. What a reference refuses is to be refused.
 */
import type { DType } from "@tensorferry/core/base/DType"
import { powerBytes, quantizeFp8 } from "@tensorferry/model/quantize/fp8"
import { type Fp8RuleName, fp8Rules } from "@tensorferry/model/quantize/fp8Rules"
import type { Matrix } from "@tensorferry/model/quantize/Matrix"
import { toFloats } from "@tensorferry/model/values/codes"
import * as Result from "effect/Result"
import { inMemory, type RecordedCase, resolver, type Verdict } from "./quantizedValues.ts"

/** The values of a case. */
export const matrixOf = ({ dtype, input, shape: [rows, columns] }: RecordedCase): Matrix => ({
  values: toFloats(dtype, inMemory(input, dtype)),
  rows,
  columns,
  dtype
})

const isNaNByte = (byte: number): boolean => (byte & 0x7f) === 0x7f

/** What is wrong with bytes, each a whole number, against recorded digits. `isNaN` says which bytes are one NaN. */
export const byteFault = (
  what: string,
  found: Uint8Array,
  recorded: unknown,
  isNaN: (byte: number) => boolean = () => false
): string | undefined => {
  if (typeof recorded !== "string") return `no ${what} is recorded`
  const expected = Buffer.from(recorded, "hex")
  if (found.length !== expected.length) return `${what}: ${found.length} bytes, the reference has ${expected.length}`
  const at = found.findIndex((byte, place) => byte !== expected[place] && !(isNaN(byte) && isNaN(expected[place]!)))
  return at < 0
    ? undefined
    : `${what} ${at} is ${found[at]!.toString(16)}, the reference has ${expected[at]!.toString(16)}`
}

/** What is wrong with numbers against recorded numbers of a type. */
export const floatFault = (what: string, found: Float32Array, recorded: unknown, dtype: DType): string | undefined => {
  if (typeof recorded !== "string") return `no ${what} is recorded`
  const expected = toFloats(dtype, inMemory(recorded, dtype))
  if (found.length !== expected.length) return `${what}: ${found.length} numbers, the reference has ${expected.length}`
  const at = found.findIndex((value, place) => !Object.is(value, expected[place]))
  return at < 0 ? undefined : `${what} ${at} is ${found[at]}, the reference has ${expected[at]}`
}

/** Codes of float8_e4m3fn. */
export const e4m3Fault = (what: string, found: Uint8Array, recorded: unknown) =>
  byteFault(what, found, recorded, isNaNByte)

/** A verdict for each rule of each case. `judge` gives the fault. */
const perRule = (
  data: unknown,
  judge: (recorded: RecordedCase, rule: string, get: (field: string) => unknown) => string | undefined
): ReadonlyArray<Verdict> =>
  (data as { readonly cases: ReadonlyArray<RecordedCase> }).cases.flatMap((recorded) =>
    Object.keys(recorded.outputs).map((rule) => ({
      name: `${recorded.id} ${recorded.title}, quantized by ${rule}`,
      fault: judge(recorded, rule, resolver(recorded.outputs, rule))
    }))
  )

const notRefused = "it is quantized, the reference does not quantize it"

/** FP8 in blocks. */
export const checkFp8Quantizers = (data: unknown): ReadonlyArray<Verdict> =>
  perRule(data, (recorded, rule, get) => {
    if (!(rule in fp8Rules)) return "the rule is not known"
    const [rows, columns] = recorded.block!
    const made = quantizeFp8(matrixOf(recorded), { rows, columns }, rule as Fp8RuleName)
    const isRefused = get("error") !== undefined || get("passthrough") !== undefined
    if (Result.isFailure(made)) return isRefused ? undefined : made.failure.message
    if (isRefused) return notRefused
    const { data, scales } = made.success
    const bytes = get("scale_e8m0")
    return (
      floatFault("scale", scales, get("scale"), (get("scale_dtype") ?? "float32") as DType) ??
      (bytes === undefined ? undefined : byteFault("scale byte", powerBytes(scales) ?? new Uint8Array(), bytes)) ??
      e4m3Fault("code", data, get("data"))
    )
  })
