// SPDX-License-Identifier: Apache-2.0
/**
 * Where weights may be cut that are stored as numbers with companions, against recorded cuts: packed integers with all legal
 * places and shards of one of them bit by bit; block and group scales by the values that shards stand for.
 */
import type { DType } from "@tensorferry/core/base/DType"
import type { Interval, Shape } from "@tensorferry/core/base/Region"
import { nearestPlaces, storedInterval } from "@tensorferry/model/forms/cutPlaces"
import type { Form, StoredTensor } from "@tensorferry/model/forms/Form"
import { formOf } from "@tensorferry/model/forms/formOf"
import type { QuantizationConfig } from "@tensorferry/model/forms/QuantizationConfig"
import { listValues, statedValues } from "@tensorferry/model/forms/statedValues"
import { weightDims } from "@tensorferry/model/forms/WeightDims"
import * as Result from "effect/Result"

/** Elements as their bits in hexadecimal digits, row by row. */
interface Elements {
  readonly dtype: string
  readonly shape: Shape
  readonly bits: string
}

interface RecordedCut {
  readonly dim: number
  readonly name: string
  readonly step: number
  readonly legal: ReadonlyArray<number>
  readonly illegal: ReadonlyArray<{ readonly at: number; readonly nearest_legal: ReadonlyArray<number> }>
  readonly example: {
    readonly at: number
    readonly shards: readonly [Readonly<Record<string, Elements>>, Readonly<Record<string, Elements>>]
  }
}

/** A packed weight and where it may be cut. */
export interface RecordedPacking {
  readonly id: string
  readonly title: string
  readonly format: string
  readonly config: { readonly [name: string]: unknown }
  readonly tensors: Readonly<Record<string, Elements>>
  readonly logical_shape: readonly [number, number]
  readonly dims: ReadonlyArray<string>
  readonly cuts: ReadonlyArray<RecordedCut>
}

const linear = weightDims([
  { is: "out", roles: ["up"] },
  { is: "in", roles: ["down"] }
])

const count = (value: unknown): number | undefined => (typeof value === "number" ? value : undefined)

const quantizationOf = ({ config, format }: RecordedPacking): QuantizationConfig => ({
  method: format,
  format: undefined,
  bits: count(config.num_bits) ?? count(config.bits) ?? count(config.w_bit),
  group: count(config.group_size),
  block: undefined,
  isReordered: config.desc_act === true || config.actorder === "group"
})

/** Elements of a region that is a whole of all dimensions but one. */
const sliced = ({ dtype, shape, bits }: Elements, dim: number, [from, to]: Interval): Elements => {
  const total = shape.reduce((all, length) => all * length, 1)
  const digits = total === 0 ? 0 : bits.length / total
  const inner = shape.slice(dim + 1).reduce((all, length) => all * length, digits)
  const outer = shape.slice(0, dim).reduce((all, length) => all * length, 1)
  const row = shape[dim]! * inner
  const parts = Array.from({ length: outer }, (_, at) => bits.slice(at * row + from * inner, at * row + to * inner))
  return { dtype, shape: shape.map((length, at) => (at === dim ? to - from : length)), bits: parts.join("") }
}

const numberBits = (value: number, dtype: string): string =>
  value.toString(16).padStart(dtype === "int64" ? 16 : 8, "0")

/** One tensor's part of a weight that is cut to `interval` along `dim`. */
const shardOf = (
  form: Form,
  part: number,
  whole: Elements,
  dim: number,
  interval: Interval
): Result.Result<Elements, string> => {
  const stated = statedValues(form, part, { dim, interval })
  if (stated !== undefined) {
    const values = listValues(stated)
    return Result.succeed({
      dtype: whole.dtype,
      shape: [values.length],
      bits: values.map((value) => numberBits(value, whole.dtype)).join("")
    })
  }
  const { maps } = form.parts[part]!
  const own = maps.findIndex((map) => map.dim === dim)
  if (own < 0) return Result.succeed(whole)
  return Result.map(storedInterval(interval, form.shape[dim]!, whole.shape[own]!, maps[own]!), (stored) =>
    sliced(whole, own, stored)
  )
}

/** Elements that no cut of the weight along a dimension may part. */
const stepOf = (form: Form, dim: number): number =>
  form.parts
    .flatMap(({ maps }) => maps.filter((map) => map.dim === dim))
    .reduce((all, { per }) => {
      let step = all
      while (step % per !== 0) step += all
      return step
    }, 1)

const checkCut = (form: Form, recorded: RecordedPacking, cut: RecordedCut): string | undefined => {
  const dim = cut.name.startsWith("out") ? 0 : 1
  // The last word of a row may be filled in part: the form counts what would fill it.
  const length = recorded.logical_shape[cut.dim]!
  const step = stepOf(form, dim)
  if (step !== cut.step) return `${cut.name}: a step of ${step}, recorded ${cut.step}`
  const legal = Array.from({ length: length - 1 }, (_, at) => at + 1).filter((place) => place % step === 0)
  if (legal.join() !== cut.legal.join()) return `${cut.name}: cuts at ${legal.join()}, recorded ${cut.legal.join()}`
  for (const { at, nearest_legal } of cut.illegal) {
    const nearest = nearestPlaces(at, length, step)
    if (nearest.join() !== nearest_legal.join())
      return `${cut.name} ${at}: nearest ${nearest}, recorded ${nearest_legal}`
    const names = Object.keys(recorded.tensors)
    const isRefused = names.some((name, part) =>
      Result.isFailure(shardOf(form, part, recorded.tensors[name]!, dim, [0, at]))
    )
    if (!isRefused) return `${cut.name} ${at}: it is not refused`
  }
  const { at, shards } = cut.example
  for (const [side, interval] of [[0, at] as const, [at, form.shape[dim]!] as const].entries()) {
    for (const [part, [name, whole]] of Object.entries(recorded.tensors).entries()) {
      const found = shardOf(form, part, whole, dim, interval)
      if (Result.isFailure(found)) return `${cut.name}, ${name}: ${found.failure}`
      const wanted = shards[side]![name]
      const [own, theirs] = [found.success, wanted].map((one) => `${one?.shape.join("x")}:${one?.bits}`)
      if (own !== theirs) return `${cut.name} at ${at}, shard ${side}: ${name} is ${own}, recorded ${theirs}`
    }
  }
  return undefined
}

/** What is wrong with the cuts of a packed weight, if anything. */
export const checkPacking = (recorded: RecordedPacking): string | undefined => {
  const tensors = Object.entries(recorded.tensors).map(
    ([suffix, { dtype, shape }]): StoredTensor => ({ suffix, dtype: dtype as DType, shape })
  )
  const found = formOf({ weight: linear, tensors, quantization: quantizationOf(recorded) })
  if (Result.isFailure(found)) return found.failure
  const form = withLength(found.success, recorded)
  for (const cut of recorded.cuts) {
    const fault = checkCut(form, recorded, cut)
    if (fault !== undefined) return fault
  }
  return undefined
}

/** A row's last word may be filled in part; how many numbers a row has is in the values of `weight_shape`. */
const withLength = (form: Form, { logical_shape, dims }: RecordedPacking): Form => {
  const shape = dims[0]!.startsWith("out") ? logical_shape : [logical_shape[1], logical_shape[0]]
  return { ...form, shape: form.shape.map((length, dim) => Math.min(length, shape[dim]!)) }
}

/** A weight in blocks or groups, quantized by several rules. */
export interface RecordedScales {
  readonly id: string
  readonly title: string
  readonly tags: ReadonlyArray<string>
  readonly shape: readonly [number, number]
  readonly block?: readonly [number, number]
  readonly outputs: Readonly<
    Record<
      string,
      {
        readonly data?: string
        readonly scale?: string
        readonly scale_dtype?: string
        readonly data_shape?: Shape
        readonly scale_shape?: Shape
        readonly deq_f32?: string
        readonly undefined?: boolean
      }
    >
  >
}

/** How numbers of one set are stored, and what one of them stands for with its scale. */
interface Coding {
  readonly suffixes: readonly [data: string, scale: string, ...ReadonlyArray<string>]
  readonly dtypes: readonly [data: DType, scale: DType]
  /** Numbers in one stored element along the columns. */
  readonly perElement: number
  readonly block: (recorded: RecordedScales) => readonly [number, number]
}

/** The sets whose cuts are compared. */
export const codings = {
  fp8_block: {
    suffixes: ["weight", "weight_scale_inv"],
    dtypes: ["float8_e4m3fn", "float32"],
    perElement: 1,
    block: ({ block }: RecordedScales) => block!
  },
  nvfp4: {
    suffixes: ["weight", "weight_scale", "weight_scale_2"],
    dtypes: ["uint8", "float8_e4m3fn"],
    perElement: 2,
    block: () => [1, 16]
  },
  mxfp4: {
    suffixes: ["weight_packed", "weight_scale"],
    dtypes: ["uint8", "uint8"],
    perElement: 2,
    block: () => [1, 32]
  }
} as const satisfies { readonly [set: string]: Coding }

/** A field that is equal to another rule's names that rule. */
const fieldOf = (recorded: RecordedScales, rule: string, field: "data" | "scale"): string | undefined => {
  const own = recorded.outputs[rule]?.[field]
  return own?.startsWith("=") === true ? fieldOf(recorded, own.slice(1), field) : own
}

const places = (length: number, step: number): ReadonlyArray<number> =>
  Array.from({ length: Math.ceil(length / step) - 1 }, (_, at) => (at + 1) * step)

/**
 * Cuts one rule's output at every legal place: each number of a shard must have the scale that it has in the whole, so that
 * the values of the shards are those that were recorded for the whole.
 */
const checkRule = (coding: Coding, recorded: RecordedScales, rule: string): string | undefined => {
  const output = recorded.outputs[rule]!
  const [data, scale] = [fieldOf(recorded, rule, "data"), fieldOf(recorded, rule, "scale")]
  // What the reference pads or cannot quantize is no weight of this form.
  if (data === undefined || scale === undefined || output.data_shape !== undefined) return undefined
  const [rows, columns] = recorded.shape
  const [blockRows, blockColumns] = coding.block(recorded)
  const scaleShape = output.scale_shape ?? [Math.ceil(rows / blockRows), Math.ceil(columns / blockColumns)]
  const stored: ReadonlyArray<Elements> = [
    { dtype: "data", shape: [rows, columns / coding.perElement], bits: data },
    { dtype: "scale", shape: scaleShape, bits: scale }
  ]
  const tensors = coding.suffixes.map(
    (suffix, at): StoredTensor => ({
      suffix,
      dtype: coding.dtypes[at] ?? "float32",
      shape: stored[at]?.shape ?? []
    })
  )
  const quantization = {
    method: "recorded",
    format: undefined,
    bits: undefined,
    group: undefined,
    block: [blockRows, blockColumns] as const,
    isReordered: false
  }
  const found = formOf({ weight: linear, tensors, quantization })
  if (Result.isFailure(found)) return `${rule}: ${found.failure}`
  const form = found.success
  if (form.shape.join() !== recorded.shape.join())
    return `${rule}: a weight of ${form.shape}, recorded ${recorded.shape}`
  for (const [dim, step] of [blockRows, blockColumns].entries()) {
    const length = recorded.shape[dim]!
    for (const at of places(length, step)) {
      const fault = checkShards(form, stored, recorded, coding, dim, [
        [0, at],
        [at, length]
      ])
      if (fault !== undefined) return `${rule}, cut at ${at} of dimension ${dim}: ${fault}`
    }
    // Both sides of a cut through a single block keep its scale.
    if (step === 1 || length <= step) continue
    const inside = [1, step - 1].filter((at) => at < length && at % step !== 0)
    const isParted = inside.find((at) =>
      stored.every((one, part) => Result.isSuccess(shardOf(form, part, one, dim, [0, at])))
    )
    if (isParted !== undefined) return `${rule}: a cut at ${isParted} of dimension ${dim} is not refused`
  }
  return undefined
}

/** Every number of every shard beside its scale, against the number and the scale of the whole. */
const checkShards = (
  form: Form,
  stored: ReadonlyArray<Elements>,
  recorded: RecordedScales,
  coding: Coding,
  dim: number,
  intervals: ReadonlyArray<Interval>
): string | undefined => {
  const [blockRows, blockColumns] = coding.block(recorded)
  const at = ({ shape, bits }: Elements, row: number, column: number): string => {
    const digits = bits.length / (shape[0]! * shape[1]!)
    const index = row * shape[1]! + column
    return bits.slice(index * digits, (index + 1) * digits)
  }
  for (const interval of intervals) {
    const shards = stored.map((one, part) => shardOf(form, part, one, dim, interval))
    const failed = shards.find(Result.isFailure)
    if (failed !== undefined) return failed.failure
    const [data, scale] = shards.map((shard) => Result.getOrThrow(shard)) as [Elements, Elements]
    const size = recorded.shape.map((length, own) => (own === dim ? interval[1] - interval[0] : length))
    const offset = recorded.shape.map((_, own) => (own === dim ? interval[0] : 0))
    for (let row = 0; row < size[0]!; row++) {
      for (let column = 0; column < size[1]!; column++) {
        const [wholeRow, wholeColumn] = [row + offset[0]!, column + offset[1]!]
        const own = at(data, row, Math.floor(column / coding.perElement))
        const wanted = at(stored[0]!, wholeRow, Math.floor(wholeColumn / coding.perElement))
        if (own !== wanted) return `element ${row},${column} has code ${own} instead of ${wanted}`
        const ownScale = at(scale, Math.floor(row / blockRows), Math.floor(column / blockColumns))
        const wantedScale = at(stored[1]!, Math.floor(wholeRow / blockRows), Math.floor(wholeColumn / blockColumns))
        if (ownScale !== wantedScale) return `element ${row},${column} has scale ${ownScale} instead of ${wantedScale}`
      }
    }
  }
  return undefined
}

/** What is wrong with the cuts of a weight in blocks or groups, if anything. */
export const checkScales =
  (set: keyof typeof codings) =>
  (recorded: RecordedScales): string | undefined => {
    for (const rule of Object.keys(recorded.outputs)) {
      const fault = checkRule(codings[set], recorded, rule)
      if (fault !== undefined) return fault
    }
    return undefined
  }
