// SPDX-License-Identifier: Apache-2.0
/**
 * Compares the codes and scales that our quantizers make with those that the reference implementations made of the same
 * values, bit by bit and rule by rule. Of a NaN only that it is one is compared. What a reference refuses is to be refused.
 */
import type { DType } from "@tensorferry/core/base/DType"
import { powerBytes, quantizeFp8 } from "@tensorferry/model/quantize/fp8"
import { type Fp8RuleName, fp8Rules } from "@tensorferry/model/quantize/fp8Rules"
import { type Matrix, maximumOf, type QuantizeFault } from "@tensorferry/model/quantize/Matrix"
import { type QuantizedMx, quantizeMxfp4, quantizeMxfp8, readMxfp4, readMxfp8 } from "@tensorferry/model/quantize/mx"
import { type Mxfp4RuleName, mxfp4Rules } from "@tensorferry/model/quantize/mxfp4Rules"
import { type Mxfp8RuleName, mxfp8Rules } from "@tensorferry/model/quantize/mxfp8Rules"
import { fusedMaximum, type QuantizedNvfp4, quantizeNvfp4, readNvfp4 } from "@tensorferry/model/quantize/nvfp4"
import { type Nvfp4RuleName, nvfp4Rules } from "@tensorferry/model/quantize/nvfp4Rules"
import { roundTo, toFloats } from "@tensorferry/model/values/codes"
import * as Result from "effect/Result"
import type { RecordedMxfp8 } from "./mxfp8.ts"
import { faultOf, inMemory, type RecordedCase, resolver, type Verdict } from "./quantizedValues.ts"

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

interface RecordedNvfp4 extends RecordedCase {
  readonly given_amax?: string
  readonly members?: ReadonlyArray<{ readonly name: string; readonly rows: number; readonly own_amax: string }>
}

const numberOf = (hex: string): number => toFloats("float32", inMemory(hex, "float32"))[0]!

/** Rows of a matrix. */
const rowsOf = ({ columns, dtype, values }: Matrix, from: number, to: number): Matrix => ({
  values: values.slice(from * columns, to * columns),
  rows: to - from,
  columns,
  dtype
})

const same = (one: Uint8Array, two: Uint8Array): boolean => Buffer.compare(one, two) === 0

/** Members of a fused group, each quantized alone with the maximum of all, are the rows of the joint matrix. */
const membersFault = (
  { members }: RecordedNvfp4,
  matrix: Matrix,
  rule: Nvfp4RuleName,
  whole: QuantizedNvfp4
): string | undefined => {
  let from = 0
  const parts = (members ?? []).map(({ name, own_amax, rows }) => {
    const part = { name, own: numberOf(own_amax), origin: from, matrix: rowsOf(matrix, from, from + rows) }
    from += rows
    return part
  })
  const amax = fusedMaximum(parts.map((part) => part.matrix))
  for (const { matrix: member, name, origin, own } of parts) {
    if (maximumOf(member) !== own) return `the largest magnitude of ${name} is not the recorded one`
    // Tiles of 16 rows do not begin at every member.
    if (origin % nvfp4Rules[rule].group.rows !== 0) continue
    const made = Result.getOrThrow(quantizeNvfp4(member, rule, { amax, origin: [origin, 0] }))
    const [data, scales] = [made.data.length / member.rows, made.scales.length / member.rows]
    const isSame =
      made.global === whole.global &&
      same(made.data, whole.data.subarray(origin * data, (origin + member.rows) * data)) &&
      same(made.scales, whole.scales.subarray(origin * scales, (origin + member.rows) * scales))
    if (!isSame) return `${name} by itself with the shared maximum is not its rows of the joint matrix`
  }
  return undefined
}

/** A stored global scale gives the bytes that the maximum behind it gives, where the rule takes one. */
const storedFault = (matrix: Matrix, rule: Nvfp4RuleName, whole: QuantizedNvfp4): string | undefined => {
  if (nvfp4Rules[rule].stored === undefined) return undefined
  const made = Result.getOrThrow(quantizeNvfp4(matrix, rule, { global: whole.global }))
  return same(made.data, whole.data) && same(made.scales, whole.scales)
    ? undefined
    : "the stored global scale gives other bytes"
}

/** NVFP4: the global scale of the matrix, a given one, and one for a fused group. */
export const checkNvfp4Quantizers = (data: unknown): ReadonlyArray<Verdict> =>
  perRule(data, (recorded, rule, get) => {
    if (!(rule in nvfp4Rules)) return "the rule is not known"
    const { given_amax } = recorded as RecordedNvfp4
    const matrix = matrixOf(recorded)
    const name = rule as Nvfp4RuleName
    const made = quantizeNvfp4(matrix, name, given_amax === undefined ? {} : { amax: numberOf(given_amax) })
    // What the reference itself cannot read, or converts to an integer without a meaning, is refused.
    const isRefused = ["error", "deq_error", "undefined"].some((field) => get(field) !== undefined)
    if (Result.isFailure(made)) return isRefused ? undefined : made.failure.message
    if (isRefused) return notRefused
    const { data, global, scales } = made.success
    return (
      floatFault("global scale", Float32Array.of(global), get("global"), "float32") ??
      e4m3Fault("scale", scales, get("scale")) ??
      byteFault("byte", data, get("data")) ??
      faultOf(readNvfp4(made.success, name), {}, get) ??
      storedFault(matrix, name, made.success) ??
      membersFault(recorded as RecordedNvfp4, matrix, name, made.success)
    )
  })

type MxQuantizer = (matrix: Matrix) => Result.Result<QuantizedMx, QuantizeFault>

/** Blocks one by one: those that the reference leaves undefined are refused, the others have their bytes. */
const blocksFault = (
  matrix: Matrix,
  quantize: MxQuantizer,
  undefinedBlocks: ReadonlyArray<number>,
  get: (field: string) => unknown
): string | undefined => {
  const blocks = matrix.values.length / 32
  const [codes, scales] = [get("data") as string, get("scale") as string]
  const digits = codes.length / blocks
  for (let block = 0; block < blocks; block++) {
    const values = matrix.values.slice(32 * block, 32 * block + 32)
    const made = quantize({ values, rows: 1, columns: 32, dtype: matrix.dtype })
    if (undefinedBlocks.includes(block) !== Result.isFailure(made)) {
      return Result.isFailure(made)
        ? made.failure.message
        : `block ${block} is quantized, the reference leaves it undefined`
    }
    if (Result.isFailure(made)) continue
    const fault =
      byteFault(`scale of block ${block}, byte`, made.success.scales, scales.slice(2 * block, 2 * block + 2)) ??
      byteFault(`block ${block}, byte`, made.success.data, codes.slice(digits * block, digits * (block + 1)))
    if (fault !== undefined) return fault
  }
  return undefined
}

interface MxJudge {
  readonly quantize: MxQuantizer
  readonly read: (made: QuantizedMx) => Float32Array
  readonly codeFault: typeof e4m3Fault
}

/** Readers that make zero or the largest number of the scales at both ends are not ours. */
const readsPlainly = (rule: string): boolean => !rule.startsWith("triton")

const mxFault = (
  recorded: RecordedCase,
  rule: string,
  get: (field: string) => unknown,
  { codeFault, quantize, read }: MxJudge
): string | undefined => {
  const matrix = matrixOf(recorded)
  const undefinedBlocks = get("undefined_blocks")
  if (Array.isArray(undefinedBlocks)) return blocksFault(matrix, quantize, undefinedBlocks, get)
  const made = quantize(matrix)
  const isRefused = get("error") !== undefined
  if (Result.isFailure(made)) return isRefused ? undefined : made.failure.message
  if (isRefused) return notRefused
  return (
    byteFault("scale", made.success.scales, get("scale")) ??
    codeFault("code", made.success.data, get("data")) ??
    (readsPlainly(rule) ? faultOf(read(made.success), {}, get) : undefined)
  )
}

/** MXFP8 by the rules of a set that has no other data: the exponent family of compressed-tensors, and others beside it. */
export const checkMxfp8Quantizers = (data: unknown): ReadonlyArray<Verdict> =>
  perRule(data, (recorded, rule, get) =>
    rule in mxfp8Rules
      ? mxFault(recorded, rule, get, {
          quantize: (matrix) => quantizeMxfp8(matrix, rule as Mxfp8RuleName),
          read: readMxfp8,
          codeFault: e4m3Fault
        })
      : "the rule is not known"
  )

/**
 * vLLM's test reference gives values only, which are those of compressed-tensors but for the sign of zero, and but for blocks
 * that compressed-tensors leaves undefined.
 */
const valuesFault = (recorded: RecordedCase, get: (field: string) => unknown): string | undefined => {
  const matrix = matrixOf(recorded)
  const [field, dtype] =
    get("deq_f16") === undefined ? (["deq_bf16", "bfloat16"] as const) : (["deq_f16", "float16"] as const)
  const hex = get(field) as string
  const expected = toFloats(dtype, inMemory(hex, dtype))
  for (let block = 0; 32 * block < expected.length; block++) {
    const values = matrix.values.slice(32 * block, 32 * block + 32)
    const made = quantizeMxfp4({ values, rows: 1, columns: 32, dtype: matrix.dtype }, "compressed_tensors")
    if (Result.isFailure(made)) continue
    const found = roundTo(dtype, readMxfp4(made.success))
    const at = found.findIndex((value, place) => value !== expected[32 * block + place])
    if (at >= 0) return `element ${32 * block + at} is ${found[at]}, the reference has ${expected[32 * block + at]}`
  }
  return undefined
}

/** MXFP4. */
export const checkMxfp4Quantizers = (data: unknown): ReadonlyArray<Verdict> =>
  perRule(data, (recorded, rule, get) => {
    if (rule === "vllm_qdq") return valuesFault(recorded, get)
    return rule in mxfp4Rules
      ? mxFault(recorded, rule, get, {
          quantize: (matrix) => quantizeMxfp4(matrix, rule as Mxfp4RuleName),
          read: readMxfp4,
          codeFault: byteFault
        })
      : "the rule is not known"
  })

/** The rules of MXFP8 that device kernels have, on recorded blocks of any rank. */
export const checkMxfp8Rules = ({ cases }: RecordedMxfp8): ReadonlyArray<Verdict> =>
  cases.flatMap(({ dtype, error, id, input, shape, title, variants }): ReadonlyArray<Verdict> => {
    const columns = shape.at(-1)!
    const values = toFloats(dtype, inMemory(input, dtype))
    const matrix = { values, rows: columns === 0 ? 0 : values.length / columns, columns, dtype }
    if (error !== undefined) {
      const isRefused = Result.isFailure(quantizeMxfp8(matrix, "rceil"))
      return [{ name: `${id} ${title}, quantized by rceil`, fault: isRefused ? undefined : notRefused }]
    }
    return Object.entries(variants ?? {}).map(([rule, { data, scales, undefined_blocks = [] }]) => {
      const made = Result.getOrThrow(quantizeMxfp8(matrix, rule as Mxfp8RuleName))
      const wanted = [Buffer.from(data, "hex"), Buffer.from(scales, "hex")] as const
      // What a rule leaves undefined is recorded as zeros.
      for (const block of undefined_blocks) {
        made.scales[block] = wanted[1][block]!
        made.data.set(wanted[0].subarray(32 * block, 32 * block + 32), 32 * block)
      }
      const fault = byteFault("scale", made.scales, scales) ?? e4m3Fault("code", made.data, data)
      return { name: `${id} ${title}, quantized by ${rule}`, fault }
    })
  })
