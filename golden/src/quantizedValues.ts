// SPDX-License-Identifier: Apache-2.0
/**
 * Compares the values that we read from quantized weights with those that the reference implementations read: FP8 in
 * blocks, NVFP4, MXFP4, and weights that were recast from one to the other. Of a NaN only that it is one is compared.
 *
 * Bit patterns in the data are hexadecimal numbers, most significant digit first. A field `=NAME` is that of another rule.
 */
import { createHash } from "node:crypto"
import type { DType } from "@tensorferry/core/base/DType"
import { bitsOf } from "@tensorferry/core/base/DType"
import { fullRegion, type Region, rowMajorStrides, type Shape } from "@tensorferry/core/base/Region"
import { roundTo } from "@tensorferry/model/values/codes"
import { readValues } from "@tensorferry/model/values/readValues"
import { findWeights, type QuantizationHint } from "@tensorferry/model/values/ValueForm"
import * as Effect from "effect/Effect"

/** One comparison. */
export interface Verdict {
  readonly name: string
  readonly fault: string | undefined
}

/** What a rule gave in a case. */
export type Fields = Readonly<Record<string, unknown>>
type Stored = Readonly<Record<string, { readonly dtype: DType; readonly shape: Shape; readonly hex: string }>>

/** Bytes in memory order of numbers in hexadecimal digits. */
export const inMemory = (hex: string, dtype: DType): Uint8Array => {
  const bytes = Uint8Array.from(Buffer.from(hex, "hex"))
  const width = Math.max(1, bitsOf(dtype) / 8)
  for (let at = 0; at < bytes.length; at += width) bytes.subarray(at, at + width).reverse()
  return bytes
}

/** The values of the weight that these tensors are, whole and put together from parts that begin anywhere. */
export const valuesOf = (stored: Stored, name: string, hint: QuantizationHint): Float32Array => {
  const tensors = Object.entries(stored).map(([name, { dtype, shape }]) => ({ name, dtype, shape }))
  const weight = findWeights(tensors, hint).find((one) => one.name === name)!
  const readRegion = (tensor: string, region: Region, into: Uint8Array) =>
    Effect.sync(() => {
      const { dtype, hex, shape } = stored[tensor]!
      const [bytes, width, strides] = [inMemory(hex, dtype), bitsOf(dtype) / 8, rowMajorStrides(shape)]
      const copy = (dim: number, from: number, to: number): number => {
        if (dim === shape.length) {
          into.set(bytes.subarray(from * width, (from + 1) * width), to * width)
          return to + 1
        }
        let next = to
        for (let at = region[dim]![0]; at < region[dim]![1]; at++) next = copy(dim + 1, from + at * strides[dim]!, next)
        return next
      }
      copy(0, 0, 0)
    })
  const read = (region: Region) =>
    Effect.runSync(readValues({ readRegion }, weight, region) as Effect.Effect<Float32Array>)
  const whole = read(fullRegion(weight.shape))
  // A region reads as the same part of the whole, wherever it cuts blocks, groups and bytes.
  const [rows, columns] = weight.shape.slice(-2) as [number, number]
  const lead = weight.shape.slice(0, -2).map((length) => [length - 1, length] as const)
  const part: Region = [...lead, [Math.floor(rows / 3), rows], [Math.floor(columns / 3), Math.max(1, columns - 1)]]
  const found = read(part)
  const base = whole.length - rows * columns
  const width = part.at(-1)![1] - part.at(-1)![0]
  for (let at = 0; at < found.length; at++) {
    const row = part.at(-2)![0] + Math.floor(at / width)
    const expected = whole[base + row * columns + part.at(-1)![0] + (at % width)]!
    if (!Object.is(found[at], expected)) return Float32Array.of(Number.NEGATIVE_INFINITY)
  }
  return whole
}

/** The upper bits of float32 numbers, digits of each from the highest; every NaN is the same. */
const bitsAsHex = (values: Float32Array, bits: 16 | 32): string => {
  const words = new Uint32Array(values.buffer, values.byteOffset, values.length)
  const bytes = Buffer.allocUnsafe((values.length * bits) / 8)
  for (let at = 0; at < words.length; at++) {
    const shown = Number.isNaN(values[at]!) ? 0x7fc00000 : words[at]!
    if (bits === 32) bytes.writeUInt32BE(shown, 4 * at)
    else bytes.writeUInt16BE(shown >>> 16, 2 * at)
  }
  return bytes.toString("hex")
}

/** What is wrong with values against the fields of a recorded output. */
export const faultOf = (
  values: Float32Array,
  output: Fields,
  resolve: (field: string) => unknown
): string | undefined => {
  for (const [field, bits] of [
    ["deq_f32", 32],
    ["deq_bf16", 16]
  ] as const) {
    const expected = resolve(field) ?? output[field]
    const sum = resolve(`${field}_sha256`)
    if (expected === undefined && sum === undefined) continue
    const hex = bitsAsHex(bits === 32 ? values : roundTo("bfloat16", values), bits)
    if (typeof expected === "string" && expected !== hex) {
      const at = [...expected].findIndex((digit, place) => digit !== hex[place])
      const element = Math.floor((at * 4) / bits)
      const digits = (text: string) => text.slice(element * (bits / 4), (element + 1) * (bits / 4))
      return `${field}: element ${element} is ${digits(hex)}, the reference has ${digits(expected)}`
    }
    if (typeof sum === "string" && sum !== createHash("sha256").update(Buffer.from(hex, "hex")).digest("hex")) {
      return `${field} has another digest than the reference's`
    }
  }
  return undefined
}

/** Follows `=NAME` to the field of that rule. */
export const resolver = (outputs: Readonly<Record<string, Fields>>, rule: string) => (field: string) => {
  let value = outputs[rule]?.[field]
  for (let steps = 0; typeof value === "string" && value.startsWith("=") && steps < 8; steps++)
    value = outputs[value.slice(1)]?.[field]
  return value
}

/** A matrix and what each rule made of it. */
export interface RecordedCase {
  readonly id: string
  readonly title: string
  readonly shape: readonly [number, number]
  readonly block?: readonly [number, number]
  readonly dtype: "float32" | "bfloat16" | "float16"
  readonly input: string
  readonly undefined_blocks?: ReadonlyArray<number>
  readonly outputs: Readonly<Record<string, Fields>>
}

const caseVerdicts = (
  { id, outputs, title }: RecordedCase,
  judge: (rule: string, get: (field: string) => unknown) => string | undefined | "left out"
): ReadonlyArray<Verdict> =>
  Object.keys(outputs).flatMap((rule) => {
    const get = resolver(outputs, rule)
    if (get("error") !== undefined || get("passthrough") !== undefined || get("undefined") === true) return []
    const fault = judge(rule, get)
    return fault === "left out" ? [] : [{ name: `${id} ${title}, ${rule}`, fault }]
  })

/** FP8 in blocks: scales of float32, bfloat16 or float16, and powers of two by their byte. */
export const checkFp8Block = (data: unknown): ReadonlyArray<Verdict> =>
  (data as { readonly cases: ReadonlyArray<RecordedCase> }).cases.flatMap((recorded) =>
    caseVerdicts(recorded, (rule, get) => {
      const [rows, columns] = recorded.shape
      const block = recorded.block!
      const scales = [Math.ceil(rows / block[0]), Math.ceil(columns / block[1])]
      const dtype = (get("scale_dtype") ?? "float32") as DType
      const weight = { dtype: "float8_e4m3fn", shape: [rows, columns], hex: get("data") as string } as const
      const name = rule === "compressed_tensors" ? "m.weight_scale" : "m.weight_scale_inv"
      const check = (scale: Stored[string]) =>
        faultOf(valuesOf({ "m.weight": weight, [name]: scale }, "m.weight", { block }), {}, get)
      const fault = check({ dtype, shape: scales, hex: get("scale") as string })
      const power = get("scale_e8m0")
      if (fault !== undefined || typeof power !== "string") return fault
      return check({ dtype: "float8_e8m0fnu", shape: scales, hex: power })
    })
  )

const halved = ([rows, columns]: readonly [number, number], get: (field: string) => unknown, group: number) => ({
  data: { dtype: "uint8", shape: [rows, columns / 2], hex: get("data") as string } as const,
  scaleShape: [rows, columns / group]
})

/** NVFP4 as ModelOpt and compressed-tensors store it. */
export const checkNvfp4 = (data: unknown): ReadonlyArray<Verdict> =>
  (data as { readonly cases: ReadonlyArray<RecordedCase> }).cases.flatMap((recorded) =>
    caseVerdicts(recorded, (rule, get) => {
      if (!["modelopt", "modelopt_cuda", "compressed_tensors"].includes(rule) || get("deq_error") !== undefined)
        return "left out"
      const { data, scaleShape } = halved(recorded.shape, get, 16)
      const scale = { dtype: "float8_e4m3fn", shape: scaleShape, hex: get("scale") as string } as const
      const global = { dtype: "float32", shape: [], hex: get("global") as string } as const
      const stored: Stored =
        rule === "compressed_tensors"
          ? { "m.weight_packed": data, "m.weight_scale": scale, "m.weight_global_scale": global }
          : { "m.weight": data, "m.weight_scale": scale, "m.weight_scale_2": global }
      return faultOf(valuesOf(stored, "m.weight", {}), {}, get)
    })
  )

interface RecordedMxfp4 {
  readonly cases: ReadonlyArray<RecordedCase>
  readonly dequantise: ReadonlyArray<{
    readonly id: string
    readonly title: string
    readonly blocks_shape: readonly [number, number, number, number]
    readonly packed_shape: readonly [number, number]
    readonly blocks: string
    readonly scales: string
    readonly outputs: Readonly<Record<string, Fields>>
  }>
}

/** Elements [experts, inputs, outputs] as [experts, outputs, inputs]. */
const turned = (values: Float32Array, inputs: number, outputs: number): Float32Array =>
  Float32Array.from(values, (_, at) => {
    const [expert, rest] = [Math.floor(at / (inputs * outputs)), at % (inputs * outputs)]
    return values[expert * inputs * outputs + (rest % inputs) * outputs + Math.floor(rest / inputs)]!
  })

/** MXFP4 as compressed-tensors packs it, and as gpt-oss keeps blocks and scales. */
export const checkMxfp4 = (data: unknown): ReadonlyArray<Verdict> => {
  const { cases, dequantise } = data as RecordedMxfp4
  const quantized = cases.flatMap((recorded) =>
    caseVerdicts(recorded, (rule, get) => {
      if (rule !== "compressed_tensors" || recorded.undefined_blocks !== undefined) return "left out"
      const { data, scaleShape } = halved(recorded.shape, get, 32)
      const scale = { dtype: "uint8", shape: scaleShape, hex: get("scale") as string } as const
      return faultOf(valuesOf({ "m.weight_packed": data, "m.weight_scale": scale }, "m.weight", {}), {}, get)
    })
  )
  const read = dequantise.flatMap(({ blocks, blocks_shape, id, outputs, packed_shape, scales, title }) =>
    ["gpt_oss", "transformers", "compressed_tensors"].map((rule): Verdict => {
      const get = resolver(outputs, rule)
      const [experts, rows, groups] = blocks_shape
      const name = `${id} ${title}, ${rule}`
      if (rule === "compressed_tensors") {
        const stored: Stored = {
          "m.weight_packed": { dtype: "uint8", shape: packed_shape, hex: blocks },
          "m.weight_scale": { dtype: "uint8", shape: [packed_shape[0], packed_shape[1] / 16], hex: scales }
        }
        return { name, fault: faultOf(valuesOf(stored, "m.weight", {}), {}, get) }
      }
      const stored: Stored = {
        e_blocks: { dtype: "uint8", shape: blocks_shape, hex: blocks },
        e_scales: { dtype: "uint8", shape: [experts, rows, groups], hex: scales }
      }
      const values = turned(valuesOf(stored, "e", {}), groups * 32, rows)
      return { name, fault: faultOf(values, {}, get) }
    })
  )
  return [...quantized, ...read]
}

interface RecordedRecast {
  readonly id: string
  readonly kind: string
  readonly title: string
  readonly shape: readonly [number, number]
  readonly packed?: string
  readonly scale?: string
  readonly data?: string
  readonly exact?: boolean
  readonly reference?: Readonly<Record<string, string>>
}

/** The same bytes under two conventions, each read as its own reference reads it. */
const checkNvfp4Recast = (
  { packed, reference, shape: [rows, columns], ...more }: RecordedRecast & Fields,
  name: string
): ReadonlyArray<Verdict> => {
  const data = { dtype: "uint8", shape: [rows, columns / 2], hex: packed! } as const
  const scale = { dtype: "float8_e4m3fn", shape: [rows, columns / 16], hex: more.block_scale as string } as const
  const global = (hex: string) => ({ dtype: "float32", shape: [1], hex }) as const
  const one = valuesOf(
    { "m.weight": data, "m.weight_scale": scale, "m.weight_scale_2": global(more.scale_2 as string) },
    "m.weight",
    {}
  )
  const two = valuesOf(
    { "m.weight_packed": data, "m.weight_scale": scale, "m.weight_global_scale": global(reference!.global_scale!) },
    "m.weight",
    {}
  )
  const by = (from: string) => (field: string) => reference![field.replace("deq", `deq_${from}`)]
  return [
    { name: `${name}, by ModelOpt`, fault: faultOf(one, {}, by("modelopt")) },
    { name: `${name}, by compressed-tensors`, fault: faultOf(two, {}, by("compressed_tensors")) }
  ]
}

/** Weights that a reference recast without loss stand for the same values before and after. */
export const checkRecasts = (data: unknown): ReadonlyArray<Verdict> =>
  (data as { readonly cases: ReadonlyArray<RecordedRecast & Fields> }).cases.flatMap(
    (recorded): ReadonlyArray<Verdict> => {
      const { id, kind, packed, reference, scale, shape, title } = recorded
      const [rows, columns] = shape
      const name = `${id} ${kind}, ${title}`
      if (reference === undefined) return []
      if (kind === "nvfp4_modelopt_to_compressed_tensors") return checkNvfp4Recast(recorded, name)
      if (recorded.exact !== true) return []
      const same = (one: Float32Array, two: Float32Array): string | undefined => {
        const at = one.findIndex(
          (value, place) => !(value === two[place] || (Number.isNaN(value) && Number.isNaN(two[place]!)))
        )
        return one.length !== two.length || at >= 0
          ? `element ${at} is ${one[at]} before and ${two[at]} after`
          : undefined
      }
      const mxfp4 = () =>
        valuesOf(
          {
            "m.weight_packed": { dtype: "uint8", shape: [rows, columns / 2], hex: packed! },
            "m.weight_scale": { dtype: "float8_e8m0fnu", shape: [rows, columns / 32], hex: scale! }
          },
          "m.weight",
          {}
        )
      switch (kind) {
        case "mxfp4_to_fp8_block": {
          const before = mxfp4()
          const fault = faultOf(before, recorded, (field) => recorded[field])
          const after = valuesOf(
            {
              "m.weight": { dtype: "float8_e4m3fn", shape, hex: reference.data! },
              "m.weight_scale_inv": {
                dtype: "float8_e8m0fnu",
                shape: [rows / 128, columns / 128],
                hex: reference.scale!
              }
            },
            "m.weight",
            { block: [128, 128] }
          )
          return [{ name, fault: fault ?? same(before, after) }]
        }
        case "mxfp4_to_nvfp4": {
          const after = valuesOf(
            {
              "m.weight": { dtype: "uint8", shape: [rows, columns / 2], hex: reference.data! },
              "m.weight_scale": { dtype: "float8_e4m3fn", shape: [rows, columns / 16], hex: reference.block_scale! },
              "m.weight_scale_2": { dtype: "float32", shape: [], hex: reference.scale_2! }
            },
            "m.weight",
            {}
          )
          return [{ name, fault: faultOf(after, reference, (field) => reference[field]) ?? same(mxfp4(), after) }]
        }
        case "fp8_block_ue8m0_to_mxfp8": {
          // The data stays as it is, whatever it is: every code.
          const hex = Array.from({ length: rows * columns }, (_, at) => (at & 0xff).toString(16).padStart(2, "0")).join(
            ""
          )
          const weight = { dtype: "float8_e4m3fn", shape, hex } as const
          const scaled = (scaleShape: Shape, scaleHex: string, hint: QuantizationHint) =>
            valuesOf(
              {
                "m.weight": weight,
                "m.weight_scale_inv": { dtype: "float8_e8m0fnu", shape: scaleShape, hex: scaleHex }
              },
              "m.weight",
              hint
            )
          const before = scaled(recorded.scale_shape as Shape, scale!, { block: [128, 128] })
          return [{ name, fault: same(before, scaled([rows, columns / 32], reference.scale!, {})) }]
        }
        default:
          return [{ name, fault: `the kind ${kind} is not known` }]
      }
    }
  )
