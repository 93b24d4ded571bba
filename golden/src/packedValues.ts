// SPDX-License-Identifier: Apache-2.0
/**
 * Compares the values that we read from packed integers with those that the reference implementations read, whole weights
 * and recorded shards. References that hold inputs first are turned.
 */
import type { DType } from "@tensorferry/core/base/DType"
import type { Shape } from "@tensorferry/core/base/Region"
import { roundTo, toFloats } from "@tensorferry/model/values/codes"
import type { QuantizationHint } from "@tensorferry/model/values/ValueForm"
import type { RecordedPacking } from "./formCuts.ts"
import { inMemory, type Verdict, valuesOf } from "./quantizedValues.ts"

interface Elements {
  readonly dtype: string
  readonly shape: Shape
  readonly bits: string
}

type RecordedValues = RecordedPacking & {
  readonly dequantised: Elements
  readonly converted_to_compressed_tensors?: Readonly<Record<string, Elements>>
}

const hintOf = ({ config, format }: RecordedPacking): QuantizationHint => {
  const bits = [config.num_bits, config.bits, config.w_bit].find((one) => typeof one === "number") as number
  const group = config.group_size
  const method = format.startsWith("AutoGPTQ") ? "gptq" : format.startsWith("AutoAWQ") ? "awq" : "compressed-tensors"
  return { method, bits, ...(typeof group === "number" ? { group } : {}) }
}

const storedOf = (tensors: Readonly<Record<string, Elements>>) =>
  Object.fromEntries(
    Object.entries(tensors).map(([suffix, { bits, dtype, shape }]) => [
      `m.${suffix}`,
      { dtype: dtype as DType, shape, hex: bits }
    ])
  )

/** Columns that a recorded `weight_shape` states. */
const lengthsOf = (tensors: Readonly<Record<string, Elements>>): Pick<QuantizationHint, "lengths"> => {
  const stated = tensors.weight_shape?.bits
  return stated === undefined ? {} : { lengths: new Map([["m.weight_packed", Number(`0x${stated.slice(16)}`)]]) }
}

/** A matrix of the other order. */
const turned = (values: Float32Array, [rows, columns]: readonly [number, number]): Float32Array =>
  Float32Array.from(values, (_, at) => values[(at % rows) * columns + Math.floor(at / rows)]!)

const faultIn = (found: Float32Array, expected: Float32Array): string | undefined => {
  if (found.length !== expected.length) return `${found.length} values, the reference has ${expected.length}`
  const at = expected.findIndex((value, place) => value !== found[place])
  return at < 0 ? undefined : `element ${at} is ${found[at]}, the reference has ${expected[at]}`
}

const checkOne = (recorded: RecordedValues): string | undefined => {
  const { dequantised, dims, logical_shape, tensors } = recorded
  const read = (from: Readonly<Record<string, Elements>>, hint: QuantizationHint) =>
    valuesOf(storedOf(from), "m.weight", { ...hint, ...lengthsOf(from) })
  const dtype = dequantised.dtype as DType
  const theirs = toFloats(dtype, inMemory(dequantised.bits, dtype))
  const isTurned = dims[0] === "in"
  const whole = isTurned ? turned(theirs, logical_shape) : theirs
  const fault = faultIn(read(tensors, hintOf(recorded)), whole)
  if (fault !== undefined) return fault
  const converted = recorded.converted_to_compressed_tensors
  if (converted !== undefined) {
    const { bits, group } = hintOf(recorded)
    const own = read(converted, { method: "compressed-tensors", bits: bits!, group: group! })
    // Its scales may be of another type: of the same products one more rounding.
    const scales = converted.weight_scale!.dtype as DType
    const fault = faultIn(own, roundTo(scales, whole))
    if (fault !== undefined) return `converted to compressed-tensors: ${fault}`
  }
  for (const cut of recorded.cuts) {
    // In an order of their own, inputs of a shard are not those of whole groups.
    const [rows, columns] = isTurned ? [logical_shape[1], logical_shape[0]] : logical_shape
    const isOut = cut.name.startsWith("out")
    for (const [side, shard] of cut.example.shards.entries()) {
      const [from, to] = side === 0 ? [0, cut.example.at] : [cut.example.at, isOut ? rows : columns]
      const wanted = whole.filter((_, at) => {
        const place = isOut ? Math.floor(at / columns) : at % columns
        return place >= from && place < to
      })
      const fault = faultIn(read(shard, hintOf(recorded)), wanted)
      if (fault !== undefined) return `${cut.name} at ${cut.example.at}, shard ${side}: ${fault}`
    }
  }
  return undefined
}

/** Packed integers and their shards by their values. */
export const checkPackedValues = (data: unknown): ReadonlyArray<Verdict> =>
  (data as { readonly cases: ReadonlyArray<RecordedValues> }).cases.map((recorded) => ({
    name: `${recorded.id} ${recorded.title}`,
    fault: checkOne(recorded)
  }))
