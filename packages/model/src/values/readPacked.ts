// SPDX-License-Identifier: Apache-2.0
/**
 * The values of a packed weight, region by region: (integer - zero point) x scale, one operation of the scale's type, as
 * the references have it.
 */
import { elementCount, type Interval, type Region, regionShape } from "@tensorferry/core/base/Region"
import * as Effect from "effect/Effect"
import type { CheckpointError } from "../checkpoint/CheckpointError.ts"
import type { Model } from "../Model.ts"
import { type ModelError, modelError } from "../ModelError.ts"
import { roundTo, toFloats } from "./codes.ts"
import { awqPlaces, eachInteger, type PackedForm } from "./packedWords.ts"

type Read<A> = Effect.Effect<A, CheckpointError | ModelError>
type Source = Pick<Model, "readRegion">

const readWords = (model: Source, name: string, region: Region): Read<Uint32Array> =>
  Effect.suspend(() => {
    const words = new Uint32Array(elementCount(regionShape(region)))
    return Effect.as(model.readRegion(name, region, new Uint8Array(words.buffer)), words)
  })

const widthOf = ([from, to]: Interval): number => to - from

/** The words that hold integers of an interval. */
const wordsOf = ([from, to]: Interval, bits: number): Interval => [
  Math.floor((from * bits) / 32),
  Math.ceil((to * bits) / 32)
]

/** The bit of the first integer of an interval, counted from the first word that is read. */
const firstBit = (interval: Interval, bits: number): number => interval[0] * bits - wordsOf(interval, bits)[0] * 32

/** One integer per output and input, outputs first. */
const readIntegers = (model: Source, form: PackedForm, lead: Region, outs: Interval, ins: Interval): Read<Uint8Array> =>
  Effect.gen(function* () {
    const { bits, data, layout } = form
    const [height, width] = [widthOf(outs), widthOf(ins)]
    const codes = new Uint8Array(height * width)
    if (layout === "awq") {
      const columns = wordsOf(outs, 4)
      const words = yield* readWords(model, data, [ins, columns])
      for (let input = 0; input < width; input++) {
        for (let out = 0; out < height; out++) {
          const place = out + outs[0]
          const word = words[input * widthOf(columns) + (place >> 3) - columns[0]]!
          codes[out * width + input] = (word >>> (4 * awqPlaces[place & 7]!)) & 15
        }
      }
      return codes
    }
    const along = wordsOf(ins, bits)
    const isRows = layout === "rows"
    const words = yield* readWords(model, data, isRows ? [...lead, outs, along] : [along, outs])
    for (let out = 0; out < height; out++) {
      const start = isRows ? out * widthOf(along) : out
      const line = { start, stride: isRows ? 1 : height, firstBit: firstBit(ins, bits) }
      eachInteger(words, line, bits, width, (code, at) => {
        codes[out * width + at] = code
      })
    }
    return codes
  })

/** Zero points of outputs and groups, outputs first. */
const readZeros = (
  model: Source,
  form: PackedForm,
  lead: Region,
  outs: Interval,
  groups: Interval
): Read<Float32Array> =>
  Effect.gen(function* () {
    const { bits, layout, zeros } = form
    const [height, count] = [widthOf(outs), widthOf(groups)]
    const points = new Float32Array(height * count)
    if (zeros === undefined) return points.fill(2 ** (bits - 1))
    const along = wordsOf(outs, bits)
    const isRows = layout === "rows"
    const words = yield* readWords(model, zeros.name, isRows ? [...lead, along, groups] : [groups, along])
    for (let group = 0; group < count; group++) {
      if (layout === "awq") {
        for (let out = 0; out < height; out++) {
          const place = out + outs[0]
          const word = words[group * widthOf(along) + (place >> 3) - along[0]]!
          points[out * count + group] = (word >>> (4 * awqPlaces[place & 7]!)) & 15
        }
        continue
      }
      const line = isRows ? { start: group, stride: count } : { start: group * widthOf(along), stride: 1 }
      eachInteger(words, { ...line, firstBit: firstBit(outs, bits) }, bits, height, (code, out) => {
        // One less is stored, in as many bits: the largest number stands for zero.
        points[out * count + group] = (code + zeros.step) % 2 ** bits
      })
    }
    return points
  })

/** Scales of outputs and groups, outputs first. */
const readScales = (
  model: Source,
  form: PackedForm,
  lead: Region,
  outs: Interval,
  groups: Interval
): Read<Float32Array> =>
  Effect.gen(function* () {
    const { dtype, name } = form.scale
    const isRows = form.layout === "rows"
    const region = isRows ? [...lead, outs, groups] : [groups, outs]
    const bytes = new Uint8Array(elementCount(regionShape(region)) * (dtype === "float32" ? 4 : 2))
    yield* model.readRegion(name, region, bytes)
    const stored = toFloats(dtype, bytes)
    if (isRows) return stored
    const [height, count] = [widthOf(outs), widthOf(groups)]
    return Float32Array.from(
      { length: height * count },
      (_, at) => stored[(at % count) * height + Math.floor(at / count)]!
    )
  })

/** The group of each input. */
const readGroups = (model: Source, { data, group, groups, index }: PackedForm, ins: Interval): Read<Int32Array> =>
  Effect.gen(function* () {
    const inOrder = () => Int32Array.from({ length: widthOf(ins) }, (_, at) => Math.floor((at + ins[0]) / group))
    if (index === undefined) return inOrder()
    const found = new Int32Array(widthOf(ins))
    yield* model.readRegion(index, [ins], new Uint8Array(found.buffer))
    // compressed-tensors writes -1 where inputs have no order of their own.
    if (index.endsWith("weight_g_idx") && found.includes(-1)) return inOrder()
    const wrong = found.findIndex((one) => one < 0 || one >= groups)
    if (wrong < 0) return found
    return yield* modelError("Unsupported", {
      paramName: data,
      detail: `${index} puts input ${ins[0] + wrong} into group ${found[wrong]}, and there are ${groups} groups.`,
      remedy: "Fetch the file again, or dequantize the model with the tool that quantized it."
    })
  })

const readMatrix = (model: Source, form: PackedForm, lead: Region, outs: Interval, ins: Interval): Read<Float32Array> =>
  Effect.gen(function* () {
    const codes = yield* readIntegers(model, form, lead, outs, ins)
    const groupOf = yield* readGroups(model, form, ins)
    const groups = [
      groupOf.reduce((least, one) => Math.min(least, one), form.groups),
      groupOf.reduce((most, one) => Math.max(most, one), 0) + 1
    ] as const
    const zeros = yield* readZeros(model, form, lead, outs, groups)
    const scales = yield* readScales(model, form, lead, outs, groups)
    const [width, count] = [widthOf(ins), widthOf(groups)]
    const values = new Float32Array(codes.length)
    for (let out = 0; out < widthOf(outs); out++) {
      for (let at = 0; at < width; at++) {
        const of = out * count + groupOf[at]! - groups[0]
        values[out * width + at] = (codes[out * width + at]! - zeros[of]!) * scales[of]!
      }
    }
    return roundTo(form.scale.dtype, values)
  })

/** Positions of dimensions in front of a matrix, one after the other. */
const positions = (lead: Region): ReadonlyArray<Region> =>
  lead.reduce<ReadonlyArray<Region>>(
    (all, [from, to]) =>
      all.flatMap((one) => Array.from({ length: to - from }, (_, at): Region => [...one, [from + at, from + at + 1]])),
    [[]]
  )

/** The values of a region that is not empty, row-major. */
export const readPacked = (model: Source, form: PackedForm, region: Region): Read<Float32Array> =>
  Effect.gen(function* () {
    const [outs, ins] = region.slice(-2) as unknown as readonly [Interval, Interval]
    const values = new Float32Array(elementCount(regionShape(region)))
    const size = widthOf(outs) * widthOf(ins)
    for (const [at, lead] of positions(region.slice(0, -2)).entries())
      values.set(yield* readMatrix(model, form, lead, outs, ins), at * size)
    return values
  })
