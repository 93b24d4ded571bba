// SPDX-License-Identifier: Apache-2.0
/** Reads the values of a weight, region by region, from the stored tensors that it is made of. */
import { bitsOf, type DType } from "@tensorferry/core/base/DType"
import { elementCount, isEmptyRegion, type Region, regionShape } from "@tensorferry/core/base/Region"
import * as Effect from "effect/Effect"
import type { CheckpointError } from "../checkpoint/CheckpointError.ts"
import type { Model } from "../Model.ts"
import { type ModelError, modelError } from "../ModelError.ts"
import { roundTo, toFloats } from "./codes.ts"
import { applyScales, powerOfTwo, type ScaleGrid, scalesFor, shiftedByPower, unpackE2m1 } from "./dequantize.ts"
import { readPacked } from "./readPacked.ts"
import type { ValueForm, Weight } from "./ValueForm.ts"

type Read<A> = Effect.Effect<A, CheckpointError | ModelError>

/** Dense bytes of a region of a stored tensor. */
const bytesOf = (model: Pick<Model, "readRegion">, name: string, dtype: DType, region: Region): Read<Uint8Array> =>
  Effect.suspend(() => {
    const bytes = new Uint8Array((elementCount(regionShape(region)) * bitsOf(dtype)) / 8)
    return isEmptyRegion(region) ? Effect.succeed(bytes) : Effect.as(model.readRegion(name, region, bytes), bytes)
  })

const floatsOf = (model: Pick<Model, "readRegion">, name: string, dtype: DType, region: Region): Read<Float32Array> =>
  Effect.map(bytesOf(model, name, dtype, region), (bytes) => toFloats(dtype, bytes))

const scaleFloats = (
  model: Pick<Model, "readRegion">,
  { dtype, grid, name }: { readonly name: string; readonly dtype: DType; readonly grid: ScaleGrid },
  region: Region
): Read<Float32Array> => floatsOf(model, name, dtype, scalesFor(grid, region))

/** The bytes that hold pairs of the numbers of a region, and the numbers. */
const unpacked = (model: Pick<Model, "readRegion">, data: string, region: Region, plusZero: boolean) =>
  Effect.gen(function* () {
    const last = region.length - 1
    const [start, stop] = region[last]!
    const inBytes = region.map((interval, dim) => (dim === last ? ([start >> 1, (stop + 1) >> 1] as const) : interval))
    const bytes = yield* bytesOf(model, data, "uint8", inBytes)
    const rowBytes = inBytes[last]![1] - inBytes[last]![0]
    return unpackE2m1(bytes, { rowBytes, skip: start % 2, count: stop - start, plusZero })
  })

/** Blocks hold inputs last, the weight holds outputs last. */
const readBlocks = (model: Pick<Model, "readRegion">, data: string, scales: string, region: Region) =>
  Effect.gen(function* () {
    const [experts, inputs, outputs] = region as [Region[number], Region[number], Region[number]]
    const groups = [Math.floor(inputs[0] / 32), Math.ceil(inputs[1] / 32)] as const
    const bytes = yield* bytesOf(model, data, "uint8", [experts, outputs, groups, [0, 16]])
    const scale = yield* bytesOf(model, scales, "uint8", [experts, outputs, groups])
    const [rows, width, count] = [outputs[1] - outputs[0], inputs[1] - inputs[0], groups[1] - groups[0]]
    const all = unpackE2m1(bytes, { rowBytes: 16 * count, skip: inputs[0] % 32, count: width, plusZero: false })
    const values = new Float32Array(all.length)
    for (let expert = 0; expert < experts[1] - experts[0]; expert++) {
      for (let row = 0; row < rows; row++) {
        const from = (expert * rows + row) * width
        for (let at = 0; at < width; at++) {
          const group = Math.floor((at + inputs[0]) / 32) - groups[0]
          const byte = scale[(expert * rows + row) * count + group]!
          values[(expert * width + at) * rows + row] = shiftedByPower(all[from + at]!, byte)
        }
      }
    }
    return values
  })

const readForm = (model: Pick<Model, "readRegion">, form: ValueForm, region: Region): Read<Float32Array> =>
  Effect.gen(function* () {
    switch (form.kind) {
      case "plain":
        return yield* floatsOf(model, form.data, form.dtype, region)
      case "scaled": {
        const values = yield* floatsOf(model, form.data, form.dtype, region)
        const scales = yield* scaleFloats(model, form.scale, region)
        applyScales(values, region, form.scale.grid, form.isPower ? scales.map(powerOfTwo) : scales)
        // Whoever keeps scales in a narrow type multiplies in it.
        return roundTo(form.scale.dtype, values)
      }
      case "mxfp4": {
        const values = yield* unpacked(model, form.data, region, false)
        const scales = yield* scaleFloats(model, form.scale, region)
        const powers = form.scale.dtype === "uint8" ? scales.map(powerOfTwo) : scales
        applyScales(values, region, form.scale.grid, powers)
        return values
      }
      case "nvfp4": {
        const values = yield* unpacked(model, form.data, region, !form.divides)
        const scales = yield* scaleFloats(model, form.scale, region)
        const global = yield* scaleFloats(model, form.global, region)
        const scaleRegion = scalesFor(form.scale.grid, region)
        applyScales(scales, scaleRegion, form.global.grid, global, (scale, over) =>
          form.divides ? scale / over : scale * over
        )
        applyScales(values, region, form.scale.grid, scales)
        return values
      }
      case "mxfp4 blocks":
        return yield* readBlocks(model, form.data, form.scales, region)
      case "packed":
        return yield* readPacked(model, form, region)
      case "unreadable":
      case "opaque":
        return yield* modelError("Unsupported", {
          detail: `Its values cannot be read: ${form.why}.`,
          remedy: "Leave --dtype and --tolerance out, or dequantize the model with the tool that quantized it."
        })
    }
  })

/** The values of a region of a weight, row-major. Fails with Unsupported where its codes are not understood. */
export const readValues = (model: Pick<Model, "readRegion">, weight: Weight, region: Region): Read<Float32Array> =>
  isEmptyRegion(region) ? Effect.succeed(new Float32Array(0)) : readForm(model, weight.form, region)
